"""The folder of a sender: a different one for each, always inside the home's folder of files."""

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crabtalk.protocol import get_sender_folder

HOME = Path("/srv/home")
NAME = re.compile(r"[0-9a-z]([0-9a-z-]*[0-9a-z])?")
ANY = st.text(st.characters(exclude_categories=()), max_size=300)  # includes surrogates


@pytest.mark.req("trust.sender_folder")
@given(ANY)
@example("../../etc/passwd")
@example("..")
@example("/")
@example("-rf")
@example("a\0b")
@example("x" * 10_000)
def test_a_folder_has_one_plain_name_inside_the_folder_of_files(sender: str) -> None:
    folder = get_sender_folder(HOME, sender)
    assert folder.parent == HOME / "files"
    assert NAME.fullmatch(folder.name)
    assert len(folder.name) <= 100


@pytest.mark.req("trust.sender_folder")
@given(ANY, ANY)
@example("tg:666", "tg：666")
@example("wx:o9cq80abc", "wx:o9cq80abc ")
@example("user", "USER")
@example("tg:1", "tg-1")
@example("\ud800", "\ufffd")
@example("x" * 40 + "a", "x" * 40 + "b")
def test_different_senders_never_share_a_folder(one: str, other: str) -> None:
    is_same = (one or "user") == (other or "user")
    assert (get_sender_folder(HOME, one) == get_sender_folder(HOME, other)) is is_same


def test_the_name_is_readable_and_does_not_change_between_releases() -> None:
    assert get_sender_folder(HOME, "tg:12345").name == ("tg-12345-d06528ff4ea8d3fb747d2dfcb0357a59")
    assert get_sender_folder(HOME, "") == get_sender_folder(HOME, "user")
