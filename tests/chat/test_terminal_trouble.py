"""The chat under difficult conditions: no daemon, no colour, no cursor, no room."""

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chat.recording_session import get_daemon_pid, kill_daemon
from tests.chat.terminal import ENTER, ChatTerminal, get_control_key, open_chat, run_scripted_daemon
from tests.chat.test_terminal import STAMP, at_both_sizes, send_message
from tests.daemon.in_process_daemon import AGENTS, prepare_home
from tests.model_server import model_server

ESCAPES = re.compile(rb"\x1b[^a-zA-Z]*[a-zA-Z]")
COLOURS = re.compile(rb"\x1b\[[0-9;]*\b(?:3[0-7]|4[0-7]|9[0-7]|38;5;\d+|48;5;\d+)[;m]")


@at_both_sizes
@pytest.mark.req("chat.daemon.restart")
async def test_the_chat_reconnects_to_a_restarted_daemon(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await send_message(terminal, "!say begun and\n!wait\n!say done")
        await daemon.model.until_waiting()
        terminal.type_keys("half a thought")
        await terminal.wait_for_view("> half a thought")
        await daemon.kill()
        await terminal.wait_for_view("no daemon")
        await daemon.start()
        await terminal.wait_for_text("the daemon is back")
        await terminal.wait_for_view("ready")
        assert "> half a thought" in terminal.view_text
        terminal.type_keys(" and the rest" + ENTER)
        await terminal.wait_for_text("heard: half a thought and the rest")
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        said_by_me = [m.content for m in page.messages if m.role == "user"]
        assert said_by_me == ["!say begun and\n!wait\n!say done", "half a thought and the rest"]


@pytest.mark.req("chat.daemon.start")
async def test_the_chat_starts_a_killed_daemon_again(
    tmp_path: Path,
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        await send_message(terminal, "hello")
        await terminal.wait_for_text("heard: hello")
        await daemon.kill()
        await send_message(terminal, "are you there")
        await terminal.wait_for_text("heard: are you there")
        assert "started crabtalkd" in terminal.full_text
        assert daemon.holder_pid is not None


@pytest.mark.req("chat.daemon.none")
async def test_without_a_daemon_and_with_no_start_it_fails(tmp_path: Path) -> None:
    async with open_chat(tmp_path / "home", "--no-start") as terminal:
        assert await terminal.wait_for_exit() == 1
        assert "crabtalk: no daemon answers" in " ".join(terminal.full_text.split())
        assert "Traceback" not in terminal.full_text


@pytest.mark.parametrize("rewraps", [True, False], ids=["rewraps", "hides"])
@pytest.mark.req("chat.resize")
@pytest.mark.slow
async def test_the_terminal_can_be_resized_during_an_answer(tmp_path: Path, rewraps: bool) -> None:
    known = "7600" if rewraps else ""
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, VTE_VERSION=known) as terminal,
    ):
        # Enough chunks that the answer still streams at the last resize.
        await send_message(terminal, "!chunks 1000 400")
        for count, size in ((100, (40, 15)), (250, (100, 30)), (400, (80, 24))):
            await wait_for_stamps(terminal, count)
            terminal.type_keys(f"{count},")
            await terminal.wait_for_view(f"{count},")
            terminal.resize(*size, rewraps=rewraps)
        await terminal.wait_for_view("ready")
        terminal.type_keys("still here")
        await terminal.wait_for_view("> 100,250,400,still here")
        assert terminal.view_text.count("ready") == 1
        assert "Esc stops" not in terminal.full_text
        async with daemon.client() as client:
            page = await client.list_messages("crab")
        spoken = STAMP.findall(page.messages[-1].content)
        seen = STAMP.findall(terminal.full_text)
        # Output that was on its way during a resize was drawn for the old size: one of its lines
        # may stay or vanish. Text hidden by a narrower edge is lost.
        assert len(seen) - len(set(seen)) <= 3 * 5
        once = list(dict.fromkeys(seen))
        assert once == sorted(once)
        assert set(spoken[-20:]) <= set(once) <= set(spoken)
        assert not rewraps or len(spoken) - len(once) <= 3 * 5


@pytest.mark.req("chat.resize")
async def test_resizing_a_rewrapping_terminal_leaves_no_remains(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, VTE_VERSION="7600") as terminal,
    ):
        await send_message(terminal, "hello")
        await terminal.wait_for_text("heard: hello")
        await terminal.wait_for_view("ready")
        terminal.type_keys("words " * 12)
        await terminal.wait_until(lambda: terminal.cursor[0] == 2 + 12 * len("words "))
        for width in (30, 61, 22, 80):
            terminal.resize(width, 20, rewraps=True)
            await wait_for_cursor(terminal, 2 + 72 % (width - 2))
        assert terminal.full_text.count("words words") == 6
        assert terminal.full_text.count("ready") == 1
        assert terminal.full_text.count("heard: hello") == 1


async def wait_for_cursor(terminal: ChatTerminal, column: int) -> None:
    await terminal.wait_until(lambda: terminal.cursor[0] == column, f"the cursor at {column}")


async def wait_for_stamps(terminal: ChatTerminal, count: int) -> None:
    stamp = re.compile(rb"\b\d{19}\b")
    await terminal.wait_until(lambda: len(set(stamp.findall(terminal.written))) >= count)


@pytest.mark.req("chat.no_colour")
async def test_no_color_disables_colours(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        for no_colour in ("1", ""):
            async with open_chat(daemon.home, NO_COLOR=no_colour) as terminal:
                await send_message(terminal, "# a title\n\nsome *words* and `code`")
                await terminal.wait_for_text("heard:")
                await terminal.wait_for_view("ready")
                assert bool(COLOURS.search(terminal.written)) is not bool(no_colour)


@pytest.mark.parametrize("size", [(20, 5), (24, 8), (200, 60)], ids=str)
@pytest.mark.req("chat.resize")
async def test_the_chat_fits_any_terminal_size(tmp_path: Path, size: tuple[int, int]) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, size=size) as terminal,
    ):
        await terminal.wait_for_view("ready")
        terminal.type_keys("/")
        await terminal.wait_for_view("/help")
        terminal.type_keys("\x7f!say begun\n!wait\n!say done" + ENTER)
        await daemon.model.until_waiting()
        terminal.type_keys("steer one" + ENTER)
        terminal.type_keys(get_control_key("J").join(f"line {number}" for number in range(9)))
        await terminal.wait_for_view("line 8")
        assert "too small" not in terminal.view_text
        daemon.model.release()
        await terminal.wait_for_view("ready")
        terminal.type_keys(get_control_key("C"))
        terminal.type_keys(get_control_key("C"))
        assert await terminal.wait_for_exit() == 0
        assert "too small" not in terminal.full_text


@pytest.mark.req("chat.typewriter")
async def test_only_ascii_is_written_to_an_ascii_terminal(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, PYTHONIOENCODING="ascii") as terminal,
    ):
        question = '{"question": "Red?", "header": "h", "options": ["a", "b"]}'
        await send_message(terminal, f'!tool ask_user {{"questions": [{question}]}}')
        await terminal.wait_for_view("> o a")
        terminal.type_keys(ENTER)
        await terminal.wait_for_text('heard: {"Red?": "a"}')
        await terminal.wait_for_view("ready")
        assert terminal.written.isascii()
        assert "?" not in terminal.view_text.replace("Red?", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.req("chat.leave")
async def test_a_signal_ends_the_chat_and_restores_the_terminal(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon, open_chat(daemon.home) as terminal:
        before = terminal.modes
        await terminal.wait_for_view("ready")
        assert terminal.modes != before
        terminal.process.send_signal(number)
        assert await terminal.process.wait() in (0, 130)
        assert terminal.modes == before


async def wait_for_prompt(terminal: ChatTerminal) -> None:
    """Wait until the last line is an empty prompt."""
    await terminal.wait_until(lambda: [line for line in terminal.screen if line][-1:] == [">"])


@pytest.mark.req("chat.dumb")
async def test_a_dumb_terminal_gets_lines_and_no_escapes(tmp_path: Path) -> None:
    question = '{"question": "Red?", "header": "h", "options": ["a", "b"]}'
    ask = f'!tool ask_user {{"questions": [{question}]}}'
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, TERM="dumb") as terminal,
    ):
        await wait_for_prompt(terminal)
        terminal.type_keys("good morning\n")
        await terminal.wait_for_text("heard: good morning")
        terminal.type_keys("/agents\n")
        await terminal.wait_for_text("twin")
        terminal.type_keys(f"{ask}\n")
        await terminal.wait_for_text("  2 b")
        terminal.type_keys("2\n")
        await terminal.wait_for_text('heard: {"Red?": "b"}')
        terminal.type_keys("!say begun\n")
        await terminal.wait_for_text("begun")
        terminal.type_keys(get_control_key("D"))
        assert await terminal.wait_for_exit() == 0
        assert not ESCAPES.search(terminal.written)


@pytest.mark.req("chat.dumb")
async def test_at_a_dumb_terminal_ctrl_c_stops_and_a_second_one_leaves(tmp_path: Path) -> None:
    async with (
        run_scripted_daemon(tmp_path) as daemon,
        open_chat(daemon.home, TERM="dumb") as terminal,
    ):
        await wait_for_prompt(terminal)
        terminal.type_keys("good morning\n")
        await terminal.wait_for_text("heard: good morning")
        await wait_for_prompt(terminal)
        terminal.type_keys('!tool bash {"command": "sleep 60"}\n')
        await daemon.model.until_asked(2)
        terminal.type_keys(get_control_key("C"))
        await terminal.wait_for_text("again leaves")
        terminal.type_keys(get_control_key("C"))
        assert await terminal.wait_for_exit() == 0


@pytest.mark.req("chat.history.fast")
async def test_the_last_screens_of_a_long_conversation_are_shown(tmp_path: Path) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        async with daemon.client() as client:
            for number in range(120):
                await client.send("crab", f"!say answer {number}.")
        async with open_chat(daemon.home) as terminal:
            await terminal.wait_for_view("ready")
            answers = re.findall(r"^answer (\d+)\.", terminal.full_text, re.MULTILINE)
            assert answers[-1] == "119"
            assert answers == [str(number) for number in range(120)][-len(answers) :]
            assert 12 <= len(answers) < 120


@at_both_sizes
@pytest.mark.req("chat.greeting")
async def test_a_new_conversation_begins_with_a_greeting(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with run_scripted_daemon(tmp_path) as daemon:
        async with open_chat(daemon.home, size=size) as terminal:
            await terminal.wait_for_view("ready")
            greeting = " ".join(" ".join(terminal.lines).split())
            assert "crab answers with scripted" in greeting
            assert "config.toml" in greeting
            assert "crabtalkd setup" in greeting
            assert "Ctrl+D leaves" in greeting
            if size[0] == 80:
                assert sum(map(bool, terminal.lines)) == 3 + 2  # and the prompt, and the status
            await send_message(terminal, "hello")
            await terminal.wait_for_text("heard: hello")
        async with open_chat(daemon.home, size=size) as terminal:
            await terminal.wait_for_view("ready")
            assert "crabtalkd setup" not in terminal.full_text
            assert "heard: hello" in terminal.full_text


@asynccontextmanager
async def open_starting_chat(home: Path, **env: Any) -> AsyncIterator[ChatTerminal]:
    """Open a chat that starts a daemon, which is killed at the end."""
    try:
        async with open_chat(home, **env) as terminal:
            yield terminal
    finally:
        if pid := get_daemon_pid(home):
            await kill_daemon(pid)


@pytest.mark.req("chat.greeting")
async def test_a_model_found_on_the_first_start_is_in_the_greeting(tmp_path: Path) -> None:
    async with model_server() as model:
        model_env = {"OPENAI_API_KEY": "of-the-tests", "OPENAI_BASE_URL": model.url}
        async with open_starting_chat(tmp_path / "home", **model_env) as terminal:
            await terminal.wait_for_view("ready")
            greeting = " ".join(" ".join(terminal.lines).split())
            assert "crab answers with scripted: it is the first that was found" in greeting
            await terminal.wait_for_view("crab · ask mode · scripted")


@pytest.mark.req("chat.greeting")
async def test_without_a_model_the_greeting_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    prepare_home(home, AGENTS, '[llm]\nbase_url = "http://127.0.0.1:9/v1"\nmax_retries = 0\n')
    async with open_starting_chat(home) as terminal:
        await terminal.wait_for_view("ready")
        assert "No model is set up yet, so no agent can answer." in terminal.full_text
        assert "crab · auto mode · ready" in terminal.view_text
