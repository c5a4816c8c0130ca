"""crabtalk ask --key: a message runs once and its answer can be printed again."""

import asyncio
import signal
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from tests.chat.recording_session import load_messages, open_session, start_task
from tests.chat.terminal import run_scripted_daemon as killable
from tests.cli.cli_process import WARM, run_crabtalk
from tests.daemon.in_process_daemon import run_daemon, script_tool_calls, wait_with_timeout
from tests.daemon.older_daemon_server import OlderDaemonServer
from tests.forked_programs import PIPE

QUESTION = {"question": "Which tide?", "header": "Tide", "options": ["high", "low"]}


@pytest.mark.req("cli.ask.key")
async def test_the_same_key_prints_the_stored_answer(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        words = ("ask", "--home", daemon.home, "--key", "tide", "How high?")
        first, again = await run_crabtalk(*words), await run_crabtalk(*words)
        assert first.output == again.output == "heard: How high?\n"
        assert daemon.model.request_count == 1
        assert [text for _, text in await load_messages(client)] == [
            "How high?",
            "heard: How high?",
        ]


@pytest.mark.req("cli.ask.key")
async def test_two_commands_with_the_same_key_print_the_same_answer(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("ask", "--home", daemon.home, "--key", "tide", "!wait\n!say high")
        both = [start_task(run_crabtalk(*words)) for _ in range(2)]
        await daemon.model.until_waiting()
        daemon.model.release()
        assert [(await each).output for each in both] == ["high\n", "high\n"]
        assert daemon.model.request_count == 1


@pytest.mark.req("cli.ask.key")
@pytest.mark.parametrize(
    "message",
    [
        "!status 401 wrong key",
        "!nothing",
        '!tool bash {"command": "exit 3"}\n!then\n!say so\n!length',
        script_tool_calls([("ask_user", {"questions": [QUESTION]})]),
    ],
)
async def test_the_same_key_exits_with_the_same_status(tmp_path: Path, message: str) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        words = ("ask", "--home", daemon.home, "--key", "k", message)
        first, again = await run_crabtalk(*words), await run_crabtalk(*words)
        assert first.code == again.code, (first, again)
        assert first.out == again.out


@pytest.mark.req("cli.ask.key")
async def test_a_key_used_for_another_message_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("ask", "--home", daemon.home, "--key", "k")
        await run_crabtalk(*where, "one")
        sentence = (await run_crabtalk(*where, "two")).error
        assert "key" in sentence
        assert "409" not in sentence
        assert (await run_crabtalk("ask", "--home", daemon.home, "--key", "k" * 129, "x")).code == 1


@pytest.mark.req("cli.ask.key")
async def test_a_restarted_daemon_finishes_the_command(
    tmp_path: Path,
) -> None:
    async with killable(tmp_path) as running:
        words = ("ask", "--home", running.home, "--key", "k", "!say half an\n!hang")
        ask_task = start_task(run_crabtalk(*words))
        await wait_with_timeout(running.model.until_asked())
        await running.kill()
        await running.start()
        outcome = await wait_with_timeout(ask_task)
        assert outcome.code == 1
        assert "the daemon ended while the agent was answering" in outcome.err
        again = await run_crabtalk(*words)
        assert (again.code, again.err) == (outcome.code, outcome.err)
        assert running.model.request_count == 1


@pytest.mark.req("cli.ask.key")
async def test_ctrl_c_stops_a_turn_with_a_key_at_once(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        words = ("ask", "--home", daemon.home, "--key", "k", "!say half\n!hang")
        process = WARM.start(*words, stdout=PIPE, stderr=PIPE)
        assert process.stdout is not None
        assert await wait_with_timeout(process.stdout.read(4)) == b"half"
        process.send_signal(signal.SIGINT)
        await wait_with_timeout(process.wait())
        await daemon.model.until_hung_up()
        async with asyncio.timeout(5):
            while (await client.get_stats()).runs:
                await asyncio.sleep(0.01)
        again = await run_crabtalk(*words)
        assert again.code == 130


# ── Daemons that know no keys ──────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.older_daemon")
async def test_ask_works_with_an_older_daemon(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, server=OlderDaemonServer) as daemon:
        turn_result = await run_crabtalk("ask", "--home", daemon.home, "--key", "k", "hello")
        assert turn_result.output == "heard: hello\n"


@pytest.mark.req("cli.older_daemon")
@pytest.mark.timeout(60)
async def test_the_chat_works_with_an_older_daemon(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, server=OlderDaemonServer, hooks={}) as daemon,
        open_session(daemon.home) as (session, heard),
    ):
        turn_result = await wait_with_timeout(session.run_turn("hello"))
        assert turn_result.end is not None
        assert heard.text == "heard: hello"
        saying = start_task(session.run_turn("!say so\n!wait"))
        await daemon.model.until_waiting()
        assert await session.steer("!say and this")
        daemon.model.release()
        await wait_with_timeout(saying)
        assert heard.text.endswith("soand this")
        saying = start_task(session.run_turn("!say half\n!hang"))
        await heard.wait_until(lambda: heard.text.endswith("half"))
        await session.stop()
        assert (await wait_with_timeout(saying)).unsent_text == ""
        assert len(await session.load_history()) >= 6
        turn_result = await wait_with_timeout(session.run_turn("hello", guest="missing"))
        assert turn_result.end is not None
        with pytest.raises(ServerError):
            async for _ in session.client.attach("crab"):
                pass
