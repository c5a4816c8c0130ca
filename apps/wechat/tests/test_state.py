"""State that survives restarts, and its bound."""

from pathlib import Path

import pytest

from crabtalk.gateway import GatewayError
from crabtalk_wechat.state import WeChatState


@pytest.mark.req("wechat.context")
def test_the_people_whose_messages_are_oldest_are_forgotten(tmp_path: Path) -> None:
    state = WeChatState(tmp_path / "state.json", max_people=2)
    state.load("token")
    assert all(state.remember_context(person, f"of {person}") for person in ("ann", "bo"))
    assert not state.remember_context("ann", "of ann")
    assert state.remember_context("ann", "newer")
    state.remember_context("eve", "of eve")
    state.save()
    restored = WeChatState(tmp_path / "state.json")
    restored.load("token")
    assert [restored.get_context(person) for person in ("ann", "bo", "eve")] == [
        "newer",
        "",
        "of eve",
    ]


@pytest.mark.req("wechat.cursor")
def test_a_cursor_belongs_to_one_session_and_contexts_to_all(tmp_path: Path) -> None:
    state = WeChatState(tmp_path / "state.json")
    state.load("secret-token")
    state.cursor = "buf-1"
    state.remember_context("ann", "of ann")
    state.save()
    assert b"secret-token" not in (tmp_path / "state.json").read_bytes()
    same_session, other_session = (
        WeChatState(tmp_path / "state.json"),
        WeChatState(tmp_path / "state.json"),
    )
    same_session.load("secret-token")
    other_session.load("another")
    assert (same_session.cursor, other_session.cursor) == ("buf-1", "")
    assert (same_session.get_context("ann"), other_session.get_context("ann")) == (
        "of ann",
        "of ann",
    )
    same_session.begin_session("another")
    assert same_session.cursor == ""


@pytest.mark.req("wechat.cursor")
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"cursor": 1}', b'{"cursor": "b"}', b"\xff"])
def test_a_damaged_state_file_is_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state.json").write_bytes(data)
    state = WeChatState(tmp_path / "state.json")
    state.load("token")
    assert (state.cursor, state.get_context("ann")) == ("", "")


@pytest.mark.req("wechat.cursor")
def test_an_unreadable_state_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(GatewayError, match="see to the file"):
        WeChatState(tmp_path / "state.json").load("token")
