"""The input prompt: history, long pastes, pictures and completion."""

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

from crabtalk.chat import input_history, pictures
from crabtalk.chat.completion import CompletionCandidate
from crabtalk.chat.input_history import InputHistory, parse_entries
from crabtalk.chat.input_prompt import MAX_PASTED, MAX_UNDO_TEXT, PASTE_MARK, InputPrompt
from tests.chat.terminal import (
    BACKSPACE,
    DOWN,
    ENTER,
    ESCAPE,
    TAB,
    UP,
    ChatTerminal,
    bracket_paste,
    get_control_key,
    open_chat,
    run_scripted_daemon,
)


def create_prompt() -> InputPrompt:
    def nothing(text: str, cursor: int) -> Iterable[CompletionCandidate]:
        return ()

    return InputPrompt(InMemoryHistory(), nothing, lambda: Size(rows=24, columns=80))


# ── History ────────────────────────────────────────────────────────────────────────────────────


def load_entries(path: Path) -> list[str]:
    """Load the entries as a new chat does, newest first."""
    return list(InputHistory(path).load_history_strings())


@pytest.mark.req("chat.history.file")
def test_typed_messages_are_in_the_history_of_the_next_chat(tmp_path: Path) -> None:
    path = tmp_path / "history"
    first, second = InputHistory(path), InputHistory(path)
    first.append_string("one\ntwo\n\nthree")
    second.append_string("ünï → ✓")
    first.append_string("last")
    assert load_entries(path) == ["last", "ünï → ✓", "one\ntwo\n\nthree"]
    assert path.stat().st_mode & 0o777 == 0o600


@given(st.lists(st.text(min_size=1, max_size=50), max_size=20))
@pytest.mark.req("chat.history.file")
def test_any_text_survives_the_history_file(texts: list[str]) -> None:
    lines = "".join(f"{json.dumps(text, ensure_ascii=False)}\n" for text in texts)
    assert parse_entries(lines.encode(errors="replace")) == [
        text.encode(errors="replace").decode() for text in texts
    ]


@pytest.mark.req("chat.history.file")
def test_the_history_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_history, "MAX_BYTES", 1000)
    path = tmp_path / "history"
    history = InputHistory(path)
    for number in range(500):
        history.append_string(f"message {number}")
    assert path.stat().st_size <= 2100
    entries = load_entries(path)
    assert entries == [f"message {499 - number}" for number in range(len(entries))]
    assert len(entries) > 20


@pytest.mark.req("chat.history.file")
def test_repeated_and_blank_messages_are_not_stored(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "history")
    for text in ("a", "a", " \n", "b", "a"):
        history.append_string(text)
    assert load_entries(tmp_path / "history") == ["a", "b", "a"]


def test_only_damaged_lines_of_the_history_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_bytes(b'"one"\n\xff\xfe\n{"no": "text"}\n"two"\n"torn')
    assert load_entries(path) == ["two", "one"]


def test_history_works_in_memory_if_the_file_cannot_be_written(tmp_path: Path) -> None:
    history = InputHistory(tmp_path / "missing" / "history")
    history.append_string("still here")
    assert history.get_strings() == ["still here"]


# ── Pastes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.paste")
def test_a_long_paste_is_shown_by_its_size_and_sent_whole() -> None:
    prompt = create_prompt()
    lines = "\n".join(f"line {number}" for number in range(120))
    prompt.buffer.insert_text("look: ")
    prompt.paste(lines.replace("\n", "\r"))
    prompt.buffer.insert_text(" and ")
    prompt.paste("x" * 5000)
    shown = "look: [pasted 120 lines #1] and [pasted 5,000 characters #2]"
    assert prompt.buffer.text == shown
    assert prompt.take_text() == f"look: {lines} and {'x' * 5000}"
    assert prompt.buffer.text == ""


@pytest.mark.req("chat.paste")
def test_a_paste_counts_its_lines_with_or_without_a_final_newline() -> None:
    prompt = create_prompt()
    for text in ("line\n" * 5000, "line\n" * 4999 + "line", "x" * 2000 + "\n"):
        prompt.paste(text)
    assert PASTE_MARK.sub("", prompt.buffer.text) == ""
    assert prompt.buffer.text.split("]")[:3] == [
        "[pasted 5,000 lines #1",
        "[pasted 5,000 lines #2",
        "[pasted 2,001 characters #3",
    ]


@pytest.mark.req("chat.paste")
def test_a_short_paste_is_inserted_as_text() -> None:
    prompt = create_prompt()
    prompt.paste("one\r\ntwo")
    assert prompt.buffer.text == "one\ntwo"


@pytest.mark.req("chat.paste")
def test_one_key_erases_a_whole_paste() -> None:
    prompt = create_prompt()
    prompt.paste("\n" * 50)
    assert prompt.erase_paste()
    assert prompt.buffer.text == ""
    prompt.buffer.insert_text("[pasted 9 lines #7]")
    assert not prompt.erase_paste()
    assert prompt.take_text() == "[pasted 9 lines #7]"


@pytest.mark.req("chat.paste")
def test_a_paste_too_long_to_send_is_refused() -> None:
    prompt = create_prompt()
    assert not prompt.paste("x" * (MAX_PASTED + 1))
    assert prompt.buffer.text == ""


def test_unsent_text_is_restored_before_newer_text() -> None:
    prompt = create_prompt()
    prompt.buffer.insert_text("second")
    prompt.restore("first")
    assert prompt.text == "first\nsecond"


@pytest.mark.req("chat.unsent.folded")
def test_long_unsent_text_is_restored_by_its_size() -> None:
    prompt = create_prompt()
    lines = "\n".join(["a line"] * 100)
    prompt.paste("y" * 3000)
    prompt.restore(lines)
    assert prompt.buffer.text == "[pasted 100 lines #2]\n[pasted 3,000 characters #1]"
    assert prompt.take_text() == f"{lines}\n{'y' * 3000}"


@pytest.mark.req("chat.unsent.folded")
async def test_long_restored_text_leaves_room_for_the_error(
    tmp_path: Path,
) -> None:
    words = "word " * 1800
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, "--no-start") as terminal,
    ):
        await terminal.wait_for_view("ready")
        await daemon.kill()
        await terminal.wait_for_view("no daemon")
        terminal.type_keys(bracket_paste(words))
        await terminal.wait_for_view("[pasted 9,000 characters #1]")
        terminal.type_keys(ENTER)
        await terminal.wait_until_gone("#1]")
        terminal.type_keys(ESCAPE)
        await terminal.wait_for_view("> [pasted 9,000 characters #1]")
        await daemon.start()
        await terminal.wait_for_view("ready")
        terminal.type_keys(ENTER)
        await daemon.model.until_asked()
        assert daemon.model.requests[0]["messages"][-1]["content"] == words


# ── Pastes that the terminal does not mark ─────────────────────────────────────────────────────


@pytest.mark.req("chat.paste.unmarked")
def test_undo_is_bounded_and_keeps_the_latest_steps() -> None:
    prompt = create_prompt()
    prompt.buffer.insert_text("x" * (MAX_UNDO_TEXT // 100))
    for _ in range(1000):
        prompt.buffer.save_to_undo_stack()
        prompt.buffer.insert_text("y")
    assert sum(len(text) for text, _ in prompt.buffer._undo_stack) <= MAX_UNDO_TEXT
    before = prompt.buffer.text
    prompt.buffer.undo()
    assert prompt.buffer.text == before[:-1]
    prompt.clear()
    for key in "abc":
        prompt.buffer.save_to_undo_stack()
        prompt.buffer.insert_text(key)
    for left in ("ab", "a", ""):
        prompt.buffer.undo()
        assert prompt.buffer.text == left


@pytest.mark.req("chat.paste.unmarked")
@pytest.mark.clock
async def test_an_unmarked_paste_is_fast_and_uses_little_memory(tmp_path: Path) -> None:
    line = "as a very fast and tireless person would type "
    text = "".join(f"{line}{number}\n" for number in range(4500)) + "the end"
    assert len(text) > 200_000
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        before = read_peak_memory(terminal)
        since = time.monotonic()
        await asyncio.to_thread(terminal.type_keys, text)
        await terminal.wait_for_view("the end")
        assert time.monotonic() - since < 20
        assert read_peak_memory(terminal) - before < 100 << 20
        terminal.type_keys(ENTER)
        await daemon.model.until_asked()
        assert daemon.model.requests[0]["messages"][-1]["content"] == text


def read_peak_memory(terminal: ChatTerminal) -> int:
    """Return the peak memory of the command in bytes."""
    status = Path(f"/proc/{terminal.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10


@pytest.mark.req("chat.paste")
async def test_a_paste_of_many_lines_is_sent_as_one_message(tmp_path: Path) -> None:
    lines = "\n".join(f"line {number}" for number in range(60))
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys("see " + bracket_paste(lines))
        await terminal.wait_for_view("> see [pasted 60 lines #1]")
        terminal.type_keys(" !" + ENTER)
        await daemon.model.until_asked()
        assert daemon.model.requests[0]["messages"][-1]["content"] == f"see {lines} !"
        terminal.type_keys(bracket_paste("a\nb"))
        await terminal.wait_for_view("> a")
        await terminal.wait_for_view("  b")
        terminal.type_keys(ENTER)
        await daemon.model.until_asked(2)
        assert daemon.model.requests[1]["messages"][-1]["content"] == "a\nb"


# ── Pictures ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.pictures")
def test_a_picture_dropped_on_the_terminal_becomes_its_path(tmp_path: Path) -> None:
    picture = tmp_path / "my holiday.png"
    picture.write_bytes(b"\x89PNG\r\n")
    spelled = str(picture).replace(" ", "\\ ")
    for text in (
        spelled,
        f"'{picture}'",
        f"file://{str(picture).replace(' ', '%20')}",
        f"{spelled} ",
    ):
        assert pictures.parse_dropped_path(text) == str(picture)
    (tmp_path / "notes.txt").write_text("x")
    for text in ("", str(tmp_path / "notes.txt"), "/none/such.png", "two.png words", "it's"):
        assert pictures.parse_dropped_path(text) is None


@pytest.mark.req("chat.pictures")
async def test_a_clipboard_picture_is_saved_and_its_path_inserted(
    tmp_path: Path,
) -> None:
    bin_of_ours = tmp_path / "bin"
    bin_of_ours.mkdir()
    tool = bin_of_ours / "wl-paste"
    tool.write_text("#!/bin/sh\nprintf '\\211PNG\\r\\n\\032\\n'\n")
    tool.chmod(0o755)
    path = f"{bin_of_ours}:{os.environ['PATH']}"
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, PATH=path) as terminal,
    ):
        await terminal.wait_for_view("ready")
        terminal.type_keys("what is on " + get_control_key("V"))
        await terminal.wait_for_view(".png")
        (picture,) = (daemon.home / "pictures").iterdir()
        assert picture.read_bytes() == b"\x89PNG\r\n\x1a\n"
        terminal.type_keys("?" + ENTER)
        await daemon.model.until_asked()
        content = daemon.model.requests[0]["messages"][-1]["content"]
        assert content == f"what is on {picture} ?"


@pytest.mark.req("chat.pictures")
async def test_without_a_clipboard_picture_a_hint_is_shown(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, PATH="/nowhere") as terminal,
    ):
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("V"))
        await terminal.wait_for_text("no picture on the clipboard")


# ── Completion ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("chat.completion")
async def test_commands_are_completed_while_typing(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await terminal.wait_for_view("ready")
        terminal.type_keys("/ag")
        await terminal.wait_for_view("/agents")
        terminal.type_keys(DOWN + DOWN)
        await terminal.wait_until(lambda: terminal.cursor[0] == len("> /agent "))
        terminal.type_keys("tw")
        await terminal.wait_for_view("twin")
        terminal.type_keys(TAB)
        await terminal.wait_for_view("> /agent twin")
        terminal.type_keys(ENTER + ENTER)
        await terminal.wait_for_text("now with twin")


@pytest.mark.req("chat.completion")
async def test_agents_skills_and_paths_are_completed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "lighthouse.txt").write_text("x")
    async with run_scripted_daemon(tmp_path) as daemon:
        skill = daemon.home / "skills" / "tides"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: tides\ndescription: of the sea\n---\nLook.\n")
        async with daemon.client() as client:
            await client.reload()
        async with open_chat(daemon.home, cwd=tmp_path / "work") as terminal:
            await terminal.wait_for_view("ready")
            for start, whole in (
                ("@tw", "> @twin"),
                ("/tid", "> /tides"),
                ("see ./lig", "> see ./lighthouse.txt"),
            ):
                terminal.type_keys(start)
                await terminal.wait_for_view(f"> {start}")
                await press_tab_until(terminal, whole)
                terminal.type_keys(ESCAPE)
                terminal.type_keys(BACKSPACE * 40)
                await terminal.wait_until_gone(whole)


async def press_tab_until(terminal: ChatTerminal, whole: str) -> None:
    """Press Tab until the completion is accepted: names arrive a moment after the prompt."""
    async with asyncio.timeout(20):
        while whole not in terminal.view_text:
            terminal.type_keys(TAB)
            await terminal.wait_for_bytes(len(terminal.written) + 1)


@pytest.mark.req("chat.history.file")
async def test_up_recalls_messages_of_another_chat(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        async with open_chat(daemon.home) as terminal:
            await terminal.wait_for_view("ready")
            terminal.type_keys("one" + get_control_key("J") + "two" + ENTER)
            await terminal.wait_for_text("heard: one")
        async with open_chat(daemon.home) as terminal:
            await terminal.wait_for_view("ready")
            terminal.type_keys(UP)
            await terminal.wait_for_view("> one")
            terminal.type_keys(ENTER)
            await daemon.model.until_asked(2)
            assert daemon.model.requests[1]["messages"][-1]["content"] == "one\ntwo"
