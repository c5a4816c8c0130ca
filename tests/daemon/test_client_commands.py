"""crabtalkd commands for a running daemon: status, reload, events, stop; signals and logs."""

import asyncio
import json
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import crabtalk
from crabtalk.client import connect
from crabtalk.daemon.process.client_commands import format_duration, format_event_line
from crabtalk.daemon.process.stop_command import StopError, stop_daemon
from crabtalk.protocol import NotFoundError, Server, wire
from crabtalk.transport import RunFiles, TransportLimits
from tests.daemon.crabtalkd_program import CRABTALKD, CRABTALKD_PROGRAM, run_installed
from tests.daemon.in_process_daemon import AGENTS, CONFIG, PATIENCE, expect_error_code, prepare_home
from tests.forked_programs import PIPE, ForkedProcess
from tests.model_server import model_server
from tests.scripted_server import open_listener

# The tested processes have event loops of their own.
pytestmark = pytest.mark.one_loop


class DaemonWithOutput:
    """A daemon in a child process, with the lines of its stderr."""

    def __init__(self, process: ForkedProcess) -> None:
        self.process = process
        self.output_lines: list[str] = []

    async def wait_for_output(self, words: str) -> None:
        """Wait for a line with these words."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while not self.output_lines or words not in self.output_lines[-1]:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it ended without saying {words!r}"
                self.output_lines.append(line)

    async def stop(self) -> int | None:
        self.process.terminate()
        async with asyncio.timeout(PATIENCE):
            _, rest = await self.process.communicate()
        self.output_lines += rest.decode().splitlines()
        return self.process.returncode


@asynccontextmanager
async def start_daemon(home: Path, url: str = "", *options: str) -> AsyncIterator[DaemonWithOutput]:
    prepare_home(home, AGENTS, CONFIG.replace("{url}", url))
    process = CRABTALKD_PROGRAM.start("run", "--home", home, "--tcp", "off", *options, stderr=PIPE)
    daemon = DaemonWithOutput(process)
    try:
        await daemon.wait_for_output("crabtalkd is ready")
        async with connect(home=home) as client:
            await client.list_agents()  # waits until they are loaded
        yield daemon
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def run_crabtalkd(home: Path, *words: str) -> tuple[int | None, str, str]:
    """Exit status, standard output and standard error of a command."""
    return await CRABTALKD_PROGRAM.run_and_capture(words[0], "--home", home, *words[1:])


# ── No daemon ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.no_daemon")
@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("reload",), ("events",)])
async def test_without_a_daemon_commands_print_a_sentence_and_exit_with_1(
    home: Path, words: tuple[str, ...]
) -> None:
    code, out, err = await run_crabtalkd(home, *words)
    assert (code, out) == (1, "")
    assert err.startswith("crabtalkd: ")
    assert str(home) in err
    assert err.count("\n") == 1


@pytest.mark.req("cli.status")
async def test_control_characters_in_names_and_messages_are_escaped(home: Path) -> None:
    evil = "ev\x1b[2Jil"
    async with model_server() as model, start_daemon(home, model.url):
        (home / "agents" / f"{evil}.toml").write_text("prompt = 3")
        (home / "skills" / evil).mkdir(parents=True)
        (home / "skills" / evil / "SKILL.md").write_text("no head")
        _, out, err = await run_crabtalkd(home, "reload")
        assert "ev\\x1b[2Jil" in err
        assert "skills: " in err
        _, out, _ = await run_crabtalkd(home, "status")
        assert "ev\\x1b[2Jil" in out
        assert "\x1b" not in out + err
    event = wire.AgentEventMsg(
        agent="crab", sender="\x1b]0;x\x07", kind=wire.REFUSED, content="\x9b"
    )
    assert format_event_line(event, {}).isprintable()


# ── stop ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.stop")
async def test_stop_ends_the_daemon_and_waits_for_its_exit(home: Path) -> None:
    async with start_daemon(home) as daemon:
        code, out, err = await run_installed("stop", "--home", home)
        assert (code, out, err) == (0, "", f"stopped (process {daemon.process.pid})\n")
        async with asyncio.timeout(PATIENCE):
            assert await daemon.process.wait() == 0
    assert await run_crabtalkd(home, "stop") == (0, "", f"no daemon runs in {home}\n")


@pytest.mark.req("cli.stop")
async def test_stop_succeeds_where_no_daemon_ever_ran(tmp_path: Path) -> None:
    home = tmp_path / "nowhere"
    assert await run_crabtalkd(home, "stop") == (0, "", f"no daemon runs in {home}\n")
    assert not home.exists()


@pytest.mark.req("cli.stop")
async def test_a_daemon_that_does_not_stop_is_named_with_a_kill_command(home: Path) -> None:
    async with start_daemon(home) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StopError, match=f"kill -9 {daemon.process.pid}"):
                await asyncio.to_thread(stop_daemon, home, timeout=0.1)
        finally:
            daemon.process.send_signal(signal.SIGCONT)


# ── status ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.status")
async def test_status_says_how_the_daemon_is(home: Path) -> None:
    async with start_daemon(home):
        code, out, err = await run_installed("status", "--home", home)
        assert (code, err) == (0, "")
        lines = [line.split(None, 1) for line in out.splitlines()]
        assert out.startswith(f"crabtalkd {crabtalk.__version__} runs in {home}, since ")
        assert lines[1:] == [
            ["model", "scripted"],
            ["agents", "2"],
            ["conversations", "0 in memory, 0 turns running"],
        ]
        code, out, err = await run_crabtalkd(home, "status", "--json")
        assert (code, err) == (0, "")
        status: dict[str, Any] = json.loads(out)
        assert status.pop("uptime_secs") < 60
        assert status == {
            "home": str(home),
            "version": crabtalk.__version__,
            "agents": 2,
            "active_conversations": 0,
            "runs": 0,
            "model": "scripted",
            "problems": [],
        }


@pytest.mark.req("cli.status")
async def test_status_counts_what_runs(home: Path) -> None:
    async with (
        model_server() as model,
        start_daemon(home, model.url),
        connect(home=home) as client,
    ):
        sending = asyncio.ensure_future(client.send("crab", "!say x\n!wait"))
        await model.until_waiting()
        _, out, _ = await run_crabtalkd(home, "status")
        assert "conversations  1 in memory, 1 turn running\n" in out
        model.release()
        await sending


@pytest.mark.req("cli.status")
async def test_status_shows_problems(home: Path) -> None:
    prepare_home(home, AGENTS, "")
    (home / "agents" / "owl.toml").write_text("prompt = ")
    async with start_daemon(home):
        _, out, _ = await run_crabtalkd(home, "status")
        assert f"problem        {home}/agents/owl.toml is not valid TOML" in out
        _, out, _ = await run_crabtalkd(home, "status", "--json")
        assert "owl.toml" in json.loads(out)["problems"][0]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h 0 min"),
        (11_520, "3 h 12 min"),
        (86_400, "1 d 0 h"),
        (200_000, "2 d 7 h"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: int, words: str) -> None:
    assert format_duration(seconds) == words


# ── reload ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.reload")
async def test_reload_reports_its_result(home: Path) -> None:
    async with start_daemon(home), connect(home=home) as client:
        (home / "agents" / "owl.toml").write_text('prompt = "You are owl."\n')
        assert await run_installed("reload", "--home", home) == (0, "", "reloaded\n")
        assert (await client.get_agent("owl")).name == "owl"
        (home / "agents" / "ant.toml").write_text("prompt = ")
        code, out, err = await run_crabtalkd(home, "reload")
        assert (code, out) == (0, "")
        assert "ant.toml" in err
        assert err.endswith("reloaded, but for what is said above\n")
        (home / "config.toml").write_text("[llm")
        code, out, err = await run_crabtalkd(home, "reload")
        assert (code, out) == (1, "")
        assert "config.toml is not valid TOML" in err
        assert err.count("\n") == 1


@pytest.mark.req("daemon.sighup")
async def test_sighup_reloads_and_a_config_that_cannot_be_used_changes_nothing(
    home: Path,
) -> None:
    async with start_daemon(home) as daemon, connect(home=home) as client:
        (home / "agents" / "owl.toml").write_text('prompt = "You are owl."\n')
        assert await expect_error_code(client.get_agent("owl")) == 404
        daemon.process.send_signal(signal.SIGHUP)
        await daemon.wait_for_output("reloaded, with 3 agents")
        assert (await client.get_agent("owl")).name == "owl"
        (home / "agents" / "owl.toml").unlink()
        (home / "config.toml").write_text("[llm")
        daemon.process.send_signal(signal.SIGHUP)
        await daemon.wait_for_output("what was in force stays")
        assert (await client.get_agent("owl")).name == "owl"
        assert (await client.get_stats()).active_model == "scripted"


# ── events ─────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def start_events_command(home: Path, *options: str) -> AsyncIterator[ForkedProcess]:
    process = CRABTALKD_PROGRAM.start("events", "--home", home, *options, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_turn_lines(process: ForkedProcess, home: Path, end: str) -> list[str]:
    """The lines it prints for one whole turn; `end` is in the last one.

    It is not known when the feed starts, so turns are repeated until lines appear. The first turn
    is skipped, because its beginning may be missing.
    """
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE), connect(home=home) as client:
        reading = asyncio.ensure_future(process.stdout.readline())
        while sum(end in line for line in lines) < 2:
            if not reading.done():
                await client.send("crab", "!say one two", sender="bo")
                continue
            lines.append((await reading).decode())
            reading = asyncio.ensure_future(process.stdout.readline())
        reading.cancel()
        await asyncio.wait([reading])
    first = next(number for number, line in enumerate(lines) if end in line)
    return lines[first + 1 :]


@pytest.mark.req("cli.events")
async def test_events_are_printed_one_per_line_until_interrupted(home: Path) -> None:
    async with (
        model_server() as model,
        start_daemon(home, model.url),
        start_events_command(home, "--agent", "crab", "--sender", "bo") as process,
    ):
        hears, says, done = await read_turn_lines(process, home, ": done")
        assert hears[8:] == " crab with bo: hears !say one two\n"
        assert says[8:] == " crab with bo: says one two\n"
        assert done[8:].startswith(" crab with bo: done scripted ")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")


@pytest.mark.req("cli.events")
async def test_events_in_json_are_one_object_per_line_with_its_kind(home: Path) -> None:
    async with (
        model_server() as model,
        start_daemon(home, model.url) as daemon,
        start_events_command(home, "--json") as process,
    ):
        events = [json.loads(line) for line in await read_turn_lines(process, home, "DONE")]
        assert [event["kind"] for event in events] == [
            *("TURN_START", "TEXT_START", "TEXT_DELTA", "TEXT_DELTA", "TEXT_END"),
            *("CONTEXT_USAGE", "DONE"),
        ]
        assert all((event["agent"], event["sender"]) == ("crab", "bo") for event in events)
        assert all(event["run_id"] and event["timestamp"] for event in events)
        await daemon.stop()  # and then there is nothing more to show
        async with asyncio.timeout(PATIENCE):
            _, err = await process.communicate()
        assert process.returncode == 1
        assert err.startswith(b"crabtalkd: ")
        assert err.count(b"\n") == 1


@pytest.mark.req("cli.events")
async def test_a_closed_output_pipe_is_not_an_error(home: Path) -> None:
    async with model_server() as model, start_daemon(home, model.url), connect(home=home) as client:
        process = await asyncio.create_subprocess_shell(
            f"{CRABTALKD} events --home {home} --json | head -1; exit ${{PIPESTATUS[0]}}",
            stdout=PIPE,
            stderr=PIPE,
            executable="/bin/bash",
        )
        output = asyncio.ensure_future(process.communicate())
        async with asyncio.timeout(PATIENCE):
            while not output.done():
                await client.send("crab", "hello")
            out, err = await output
        assert (process.returncode, out.count(b"\n"), err) == (0, 1, b"")


class UnknownEventsServer(Server):
    """A daemon that sends an event kind which does not exist yet."""

    async def subscribe_events(
        self, request: wire.SubscribeEvents
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        yield wire.AgentEventMsg.FromString(b"\x18\xe7\x07")  # kind = 999
        yield wire.AgentEventMsg(agent="crab", kind=wire.TOOL_PROGRESS, content="walking")
        raise NotFoundError("that was all")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.req("cli.events")
async def test_event_kinds_of_a_newer_daemon_are_skipped(
    home: Path, options: tuple[str, ...]
) -> None:
    (home / "run").mkdir(mode=0o700, parents=True)
    async with (
        open_listener(
            UnknownEventsServer(),
            RunFiles.for_home(home).socket_path,
            limits=TransportLimits(drain_timeout=0.1),
        ),
        start_events_command(home, *options) as process,
    ):
        async with asyncio.timeout(PATIENCE):
            out, _ = await process.communicate()
        assert out.count(b"\n") == 1
        assert b"walking" in out


def test_text_deltas_are_joined_per_run() -> None:
    deltas: dict[str, list[str]] = {}

    def line(run: str, kind: wire.AgentEventKind.ValueType, content: str = "", **rest: Any) -> str:
        event = wire.AgentEventMsg(
            agent="crab", sender=run, run_id=run, kind=kind, content=content, **rest
        )
        event.timestamp = "2026-01-02T03:04:05.678Z"
        return format_event_line(event, deltas).removeprefix("03:04:05 crab with ")

    assert line("a", wire.THINKING_START) == ""
    assert line("a", wire.THINKING_DELTA, "hm,\n") == ""
    assert line("b", wire.TEXT_DELTA, "other") == ""
    assert line("a", wire.THINKING_DELTA, "well") == ""
    assert line("a", wire.THINKING_END) == "a: thinks hm, well"
    assert line("b", wire.TEXT_END) == "b: says other"
    assert line("a", wire.TOOL_START, "bash(ls)") == "a: tool start bash(ls)"
    failed = {"tool_output": "no\nmore", "tool_is_error": True}
    assert line("a", wire.TOOL_RESULT, "3ms", **failed) == "a: tool result 3ms failed: no"
    assert line("a", wire.TOOL_RESULT, "3ms", missed=2) == "a: tool result 3ms (after 2 missed)"
    assert line("a", wire.TOOL_PROGRESS, "walking") == "a: tool progress walking"
    assert line("a", wire.TOOLS_COMPLETE) == ""
    assert line("a", wire.DONE, "m 1 in / 2 out") == "a: done m 1 in / 2 out"
    assert line("b", wire.DONE) == "b: done"
    assert deltas == {}


# ── Logs ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("logs.json")
async def test_logs_in_json_are_only_lines_of_json(home: Path) -> None:
    """From the first line to the last, even with errors in between."""
    prepare_home(
        home, AGENTS, CONFIG.replace("{url}", "http://127.0.0.1:1/v1") + "[daemon]\ntpc = 1\n"
    )
    (home / "agents" / "owl.toml").write_text("prompt = ")
    async with start_daemon(home, "", "--log-format", "json", "-v") as daemon:
        async with connect(home=home) as client:
            assert await expect_error_code(client.send("crab", "hello")) == 500
            (home / "config.toml").write_text("[llm")
            daemon.process.send_signal(signal.SIGHUP)
            await daemon.wait_for_output("what was in force stays")
        assert await daemon.stop() == 0
    records = [json.loads(line) for line in daemon.output_lines]
    assert all({"ts", "level", "logger", "message"} <= record.keys() for record in records)
    assert any("owl.toml" in record["message"] for record in records)
    written = (home / "logs" / "crabtalkd.log").read_text().splitlines()
    assert [json.loads(line) for line in written] == records


# ── Stopping ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("conv.persists.killed")
async def test_sigterm_ends_a_running_turn_and_keeps_its_message(home: Path) -> None:
    limits = "[limits]\ndrain_timeout = 0.2\n"
    async with model_server() as model:
        prepare_home(home, AGENTS, CONFIG.replace("{url}", model.url) + limits)
        async with start_daemon(home) as daemon, connect(home=home) as client:
            sending = asyncio.ensure_future(client.send("crab", "!say so far\n!hang"))
            await model.until_asked()
            assert await daemon.stop() == 0
            assert await expect_error_code(sending) == 503
        async with start_daemon(home), connect(home=home) as client:
            assert (await client.send("crab", "go on")).content == "heard: go on"
            page = await client.list_messages("crab")
            assert [message.content for message in page.messages] == [
                *("!say so far\n!hang", "go on", "heard: go on"),
            ]
