"""What is kept over restarts, and how much of it."""

from pathlib import Path

import pytest

from crabtalk.gateway import GatewayError
from crabtalk_wechat.state import WeChatState


@pytest.mark.req("wechat.context")
def test_those_who_wrote_longest_ago_are_forgotten(tmp_path: Path) -> None:
    state = WeChatState(tmp_path / "state.json", most_people=2)
    state.load("token")
    assert all(state.remember_context(person, f"of {person}") for person in ("ann", "bo"))
    assert not state.remember_context("ann", "of ann")
    assert state.remember_context("ann", "newer")
    state.remember_context("eve", "of eve")
    state.save()
    again = WeChatState(tmp_path / "state.json")
    again.load("token")
    assert [again.get_context(person) for person in ("ann", "bo", "eve")] == ["newer", "", "of eve"]


@pytest.mark.req("wechat.cursor")
def test_a_cursor_is_of_one_session_and_contexts_are_not(tmp_path: Path) -> None:
    state = WeChatState(tmp_path / "state.json")
    state.load("secret-token")
    state.cursor = "buf-1"
    state.remember_context("ann", "of ann")
    state.save()
    assert b"secret-token" not in (tmp_path / "state.json").read_bytes()
    same, other = WeChatState(tmp_path / "state.json"), WeChatState(tmp_path / "state.json")
    same.load("secret-token")
    other.load("another")
    assert (same.cursor, other.cursor) == ("buf-1", "")
    assert (same.get_context("ann"), other.get_context("ann")) == ("of ann", "of ann")
    same.begin_session("another")
    assert same.cursor == ""


@pytest.mark.req("wechat.cursor")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"cursor": 1}', b'{"cursor": "b"}', b"\xff"])
def test_what_is_damaged_is_begun_anew(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state.json").write_bytes(data)
    state = WeChatState(tmp_path / "state.json")
    state.load("token")
    assert (state.cursor, state.get_context("ann")) == ("", "")


@pytest.mark.req("wechat.cursor")
def test_what_cannot_be_read_ends_it_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(GatewayError, match="see to the file"):
        WeChatState(tmp_path / "state.json").load("token")
