"""The prompt: what was typed before, long pastes, pictures, completion."""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import InMemoryHistory

from apps.tui.tests.chat.terminal import (
    BACKSPACE,
    DOWN,
    ENTER,
    ESCAPE,
    TAB,
    UP,
    Terminal,
    chatting,
    ctrl,
    daemon,
    pasted,
)
from crabtalk_tui.chat import pictures, typed
from crabtalk_tui.chat.candidates import Candidate
from crabtalk_tui.chat.prompt import MOST_PASTED, MOST_UNDONE, PASTED, Prompt
from crabtalk_tui.chat.typed import Typed, entries


def prompt() -> Prompt:
    def nothing(text: str, cursor: int) -> Iterable[Candidate]:
        return ()

    return Prompt(InMemoryHistory(), nothing, lambda: Size(rows=24, columns=80))


# ── What was typed before ──────────────────────────────────────────────────────────────────────


def typed_in(path: Path) -> list[str]:
    """The latest first, as a chat that is opened now has it."""
    return list(Typed(path).load_history_strings())


@pytest.mark.req("chat.history.file")
def test_what_was_typed_is_there_in_the_next_chat_lines_and_all(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = Typed(path), Typed(path)
    first.append_string("one\ntwo\n\nthree")
    second.append_string("ünï → ✓")
    first.append_string("last")
    assert typed_in(path) == ["last", "ünï → ✓", "one\ntwo\n\nthree"]
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.lists(st.text(min_size=1, max_size=50), max_size=20))
@pytest.mark.req("chat.history.file")
def test_any_text_comes_back_as_it_was(texts: list[str]) -> None:
    lines = "".join(f"{json.dumps(text, ensure_ascii=False)}\n" for text in texts)
    assert entries(lines.encode(errors="replace")) == [
        text.encode(errors="replace").decode() for text in texts
    ]


@pytest.mark.req("chat.history.file")
def test_the_file_does_not_grow_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed, "MOST_BYTES", 1000)
    path = tmp_path / "history"
    history = Typed(path)
    for number in range(500):
        history.append_string(f"message {number}")
    assert path.stat().st_size <= 2100
    kept = typed_in(path)
    assert kept == [f"message {499 - number}" for number in range(len(kept))]
    assert len(kept) > 20


@pytest.mark.req("chat.history.file")
def test_what_is_said_twice_is_kept_once_and_nothing_is_not_kept(tmp_path: Path) -> None:
    history = Typed(tmp_path / "history")
    for text in ("a", "a", " \n", "b", "a"):
        history.append_string(text)
    assert typed_in(tmp_path / "history") == ["a", "b", "a"]


def test_a_damaged_file_costs_its_damaged_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n\xff\xfe\n{"no": "text"}\n"two"\n"torn')
    assert typed_in(path) == ["two", "one"]


def test_a_home_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    history = Typed(tmp_path / "missing" / "history")
    history.append_string("still here")
    assert history.get_strings() == ["still here"]


# ── Pastes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.paste")
def test_a_long_paste_is_shown_by_its_size_and_taken_whole() -> None:
    written = prompt()
    lines = "\n".join(f"line {number}" for number in range(120))
    written.buffer.insert_text("look: ")
    written.paste(lines.replace("\n", "\r"))
    written.buffer.insert_text(" and ")
    written.paste("x" * 5000)
    shown = "look: [pasted 120 lines #1] and [pasted 5,000 characters #2]"
    assert written.buffer.text == shown
    assert written.take() == f"look: {lines} and {'x' * 5000}"
    assert written.buffer.text == ""


@pytest.mark.req("chat.paste")
def test_a_paste_has_as_many_lines_as_it_has_whether_the_last_one_ends_or_not() -> None:
    written = prompt()
    for text in ("line\n" * 5000, "line\n" * 4999 + "line", "x" * 2000 + "\n"):
        written.paste(text)
    assert PASTED.sub("", written.buffer.text) == ""
    assert written.buffer.text.split("]")[:3] == [
        "[pasted 5,000 lines #1",
        "[pasted 5,000 lines #2",
        "[pasted 2,001 characters #3",
    ]


@pytest.mark.req("chat.paste")
def test_a_short_paste_is_typed_out() -> None:
    written = prompt()
    written.paste("one\r\ntwo")
    assert written.buffer.text == "one\ntwo"


@pytest.mark.req("chat.paste")
def test_a_paste_goes_with_one_key_as_it_came() -> None:
    written = prompt()
    written.paste("\n" * 50)
    assert written.erase_paste()
    assert written.buffer.text == ""
    written.buffer.insert_text("[pasted 9 lines #7]")
    assert not written.erase_paste()
    assert written.take() == "[pasted 9 lines #7]"


@pytest.mark.req("chat.paste")
def test_what_is_too_long_to_send_is_refused() -> None:
    written = prompt()
    assert not written.paste("x" * (MOST_PASTED + 1))
    assert written.buffer.text == ""


def test_what_could_not_be_sent_comes_back_before_what_was_written_since() -> None:
    written = prompt()
    written.buffer.insert_text("second")
    written.restore("first")
    assert written.text == "first\nsecond"


@pytest.mark.req("chat.unsent.folded")
def test_long_words_that_could_not_be_sent_come_back_as_their_size() -> None:
    written = prompt()
    lines = "\n".join(["a line"] * 100)
    written.paste("y" * 3000)
    written.restore(lines)
    assert written.buffer.text == "[pasted 100 lines #2]\n[pasted 3,000 characters #1]"
    assert written.take() == f"{lines}\n{'y' * 3000}"


@pytest.mark.req("chat.unsent.folded")
async def test_long_words_that_come_back_leave_the_screen_to_what_went_wrong(
    tmp_path: Path,
) -> None:
    words = "word " * 1800
    async with daemon(tmp_path) as served, chatting(served.home, "--no-start") as terminal:
        await terminal.until_view("ready")
        await served.kill()
        await terminal.until_view("no daemon")
        terminal.type(pasted(words))
        await terminal.until_view("[pasted 9,000 characters #1]")
        terminal.type(ENTER)
        await terminal.until_gone("#1]")
        terminal.type(ESCAPE)
        await terminal.until_view("> [pasted 9,000 characters #1]")
        await served.start()
        await terminal.until_view("ready")
        terminal.type(ENTER)
        await served.model.until_asked()
        assert served.model.requests[0]["messages"][-1]["content"] == words


# ── Pastes that the terminal does not mark ─────────────────────────────────────────────────────


@pytest.mark.req("chat.paste.unmarked")
def test_what_can_be_undone_is_bounded_and_the_last_of_it_is_there() -> None:
    written = prompt()
    written.buffer.insert_text("x" * (MOST_UNDONE // 100))
    for _ in range(1000):
        written.buffer.save_to_undo_stack()
        written.buffer.insert_text("y")
    assert sum(len(text) for text, _ in written.buffer._undo_stack) <= MOST_UNDONE
    before = written.buffer.text
    written.buffer.undo()
    assert written.buffer.text == before[:-1]
    written.clear()
    for key in "abc":
        written.buffer.save_to_undo_stack()
        written.buffer.insert_text(key)
    for left in ("ab", "a", ""):
        written.buffer.undo()
        assert written.buffer.text == left


@pytest.mark.req("chat.paste.unmarked")
@pytest.mark.clock
async def test_a_paste_that_comes_key_by_key_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    line = "as somebody would type it who never sleeps "
    text = "".join(f"{line}{number}\n" for number in range(4500)) + "the end"
    assert len(text) > 200_000
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await terminal.until_view("ready")
        before = memory(terminal)
        since = time.monotonic()
        await asyncio.to_thread(terminal.type, text)
        await terminal.until_view("the end")
        assert time.monotonic() - since < 20
        assert memory(terminal) - before < 100 << 20
        terminal.type(ENTER)
        await served.model.until_asked()
        assert served.model.requests[0]["messages"][-1]["content"] == text


def memory(terminal: Terminal) -> int:
    """The most that it has had, in bytes."""
    status = Path(f"/proc/{terminal.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


@pytest.mark.req("chat.paste")
async def test_a_paste_of_many_lines_is_sent_as_one_message(tmp_path: Path) -> None:
    lines = "\n".join(f"line {number}" for number in range(60))
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await terminal.until_view("ready")
        terminal.type("see " + pasted(lines))
        await terminal.until_view("> see [pasted 60 lines #1]")
        terminal.type(" !" + ENTER)
        await served.model.until_asked()
        assert served.model.requests[0]["messages"][-1]["content"] == f"see {lines} !"
        terminal.type(pasted("a\nb"))
        await terminal.until_view("> a")
        await terminal.until_view("  b")
        terminal.type(ENTER)
        await served.model.until_asked(2)
        assert served.model.requests[1]["messages"][-1]["content"] == "a\nb"


# ── Pictures ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.pictures")
def test_a_picture_dropped_on_the_terminal_is_its_path(tmp_path: Path) -> None:
    picture = tmp_path / "my holiday.png"
    picture.write_bytes(b"\x89PNG\r\n")
    spelled = str(picture).replace(" ", "\\ ")
    for text in (
        spelled,
        f"'{picture}'",
        f"file://{str(picture).replace(' ', '%20')}",
        f"{spelled} ",
    ):
        assert pictures.dropped(text) == str(picture)
    (tmp_path / "notes.txt").write_text("x")
    for text in ("", str(tmp_path / "notes.txt"), "/none/such.png", "two.png words", "it's"):
        assert pictures.dropped(text) is None


@pytest.mark.req("chat.pictures")
async def test_the_picture_on_the_clipboard_is_saved_and_named_in_the_message(
    tmp_path: Path,
) -> None:
    bin_of_ours = tmp_path / "bin"
    bin_of_ours.mkdir()
    tool = bin_of_ours / "wl-paste"
    tool.write_text("#!/bin/sh\nprintf '\\211PNG\\r\\n\\032\\n'\n")
    tool.chmod(0o755)
    path = f"{bin_of_ours}:{os.environ['PATH']}"
    async with daemon(tmp_path) as served, chatting(served.home, PATH=path) as terminal:
        await terminal.until_view("ready")
        terminal.type("what is on " + ctrl("V"))
        await terminal.until_view(".png")
        (picture,) = (served.home / "pictures").iterdir()
        assert picture.read_bytes() == b"\x89PNG\r\n\x1a\n"
        terminal.type("?" + ENTER)
        await served.model.until_asked()
        content = served.model.requests[0]["messages"][-1]["content"]
        assert content == f"what is on {picture} ?"


@pytest.mark.req("chat.pictures")
async def test_without_a_picture_on_the_clipboard_it_says_what_else_to_do(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, chatting(served.home, PATH="/nowhere") as terminal:
        await terminal.until_view("ready")
        terminal.type(ctrl("V"))
        await terminal.until("no picture on the clipboard")


# ── Completion ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.completion")
async def test_commands_are_offered_as_they_are_typed(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served, chatting(served.home) as terminal:
        await terminal.until_view("ready")
        terminal.type("/ag")
        await terminal.until_view("/agents")
        terminal.type(DOWN + DOWN)
        await terminal.until_so(lambda: terminal.cursor[0] == len("> /agent "))
        terminal.type("tw")
        await terminal.until_view("twin")
        terminal.type(TAB)
        await terminal.until_view("> /agent twin")
        terminal.type(ENTER + ENTER)
        await terminal.until("now with twin")


@pytest.mark.req("chat.completion")
async def test_agents_skills_and_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "lighthouse.txt").write_text("x")
    async with daemon(tmp_path) as served:
        skill = served.home / "skills" / "tides"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: tides\ndescription: of the sea\n---\nLook.\n")
        async with served.client() as client:
            await client.reload()
        async with chatting(served.home, cwd=tmp_path / "work") as terminal:
            await terminal.until_view("ready")
            for begun, whole in (
                ("@tw", "> @twin"),
                ("/tid", "> /tides"),
                ("see ./lig", "> see ./lighthouse.txt"),
            ):
                terminal.type(begun)
                await terminal.until_view(f"> {begun}")
                await completed(terminal, whole)
                terminal.type(ESCAPE)
                terminal.type(BACKSPACE * 40)
                await terminal.until_gone(whole)


async def completed(terminal: Terminal, whole: str) -> None:
    """Tab, until what is offered has been taken: names arrive a moment after the prompt."""
    async with asyncio.timeout(20):
        while whole not in terminal.view:
            terminal.type(TAB)
            await terminal.until_written(len(terminal.written) + 1)


@pytest.mark.req("chat.history.file")
async def test_up_brings_back_what_was_said_in_another_chat(tmp_path: Path) -> None:
    async with daemon(tmp_path) as served:
        async with chatting(served.home) as terminal:
            await terminal.until_view("ready")
            terminal.type("one" + ctrl("J") + "two" + ENTER)
            await terminal.until("heard: one")
        async with chatting(served.home) as terminal:
            await terminal.until_view("ready")
            terminal.type(UP)
            await terminal.until_view("> one")
            terminal.type(ENTER)
            await served.model.until_asked(2)
            assert served.model.requests[1]["messages"][-1]["content"] == "one\ntwo"
