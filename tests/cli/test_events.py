"""crabtalk events with a daemon: subscriptions, publishing, and watching agents."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.cli.event_formatting import EventFormatter, event_to_json
from crabtalk.daemon.process import client_commands
from crabtalk.protocol import wire
from crabtalk.service.command_line import escape_controls
from tests.cli.canned_daemon import CannedDaemon, serve_daemon
from tests.cli.cli_process import (
    CRABTALK,
    WARM,
    run_at_terminal,
    run_crabtalk,
    strip_colours,
    wait_until_asleep,
)
from tests.daemon.in_process_daemon import (
    PATIENCE,
    InProcessDaemon,
    follow_feed,
    run_daemon,
    wait_until,
)
from tests.forked_programs import PIPE, ForkedProcess

# ── Subscriptions ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("cli.events.subscriptions")
async def test_a_subscription_is_created_listed_and_removed(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("events", "list", *where)
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err.startswith("there are no subscriptions; ")
        outcome = await run_crabtalk("events", "subscribe", *where, "agent:twin:done", "crab")
        assert outcome.output == "1  agent:twin:done  → crab  by user\n"
        outcome = await run_crabtalk(
            "events", "subscribe", *where, "rss", "twin", "--once", "--json"
        )
        second = {"id": 2, "source": "rss", "target_agent": "twin", "once": True}
        second["created_by"] = "user"
        assert json.loads(outcome.output) == second
        outcome = await run_crabtalk("events", "list", *where)
        assert outcome.output == (
            "1  agent:twin:done  → crab       by user\n2  rss              → twin once  by user\n"
        )
        outcome = await run_crabtalk("events", "remove", *where, "1")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "removed 1\n")
        outcome = await run_crabtalk("events", "list", *where, "--json")
        assert json.loads(outcome.output) == {"subscriptions": [second]}


@pytest.mark.req("cli.events.subscriptions")
async def test_a_refused_request_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("events", "remove", *where, "7")
        assert outcome.error == "no subscription has the id 7; `crabtalk events list` has the ids"
        outcome = await run_crabtalk("events", "subscribe", *where, "rss", "owl")
        assert outcome.error == ("no agent is called 'owl'; `crabtalk agents list` has the names")
        assert (await run_crabtalk("events", "publish", *where, "")).error


@pytest.mark.parametrize("number", ["-1", "one", str(2**64)])
@pytest.mark.req("cli.exit_codes")
async def test_an_invalid_id_is_a_usage_error(number: str) -> None:
    outcome = await run_crabtalk("events", "remove", "--", number)
    assert (outcome.code, outcome.out) == (2, "")


# ── Publishing ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("words", "typed"), [(("high water",), b""), ((), b"high water")])
@pytest.mark.req("cli.events.publish")
async def test_a_payload_is_an_argument_or_standard_input(
    tmp_path: Path, words: tuple[str, ...], typed: bytes
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.subscribe_event("tide", "crab")
        async with follow_feed(daemon) as follower:
            where = ("--home", daemon.home)
            outcome = await run_crabtalk("events", "publish", *where, "tide", *words, typed=typed)
            assert (outcome.code, outcome.out, outcome.err) == (0, "", "published tide\n")
            await follower.wait_until_done()
        history = await client.list_messages("crab", sender="event:tide")
        assert history.messages[0].content == "high water"


class RecordingPublishDaemon(CannedDaemon):
    async def publish_event(self, request: wire.PublishEventMsg) -> None:
        self.requests.append(request)


@pytest.mark.req("cli.events.publish")
async def test_at_a_terminal_publishing_without_a_payload_does_not_wait(home: Path) -> None:
    async with serve_daemon(peer := RecordingPublishDaemon(), home):
        code, screen = await run_at_terminal("events", "publish", "--home", home, "tide")
        assert (code, screen) == (0, "published tide\n")
        assert peer.requests == [wire.PublishEventMsg(source="tide")]


@pytest.mark.parametrize(
    ("typed", "sentence"), [(b"\xff", "is not UTF-8"), (b"x" * (17 << 20), "send less at a time")]
)
@pytest.mark.req("cli.events.publish")
async def test_an_invalid_payload_gives_one_error(home: Path, typed: bytes, sentence: str) -> None:
    async with serve_daemon(peer := RecordingPublishDaemon(), home):
        outcome = await run_crabtalk("events", "publish", "--home", home, "tide", typed=typed)
        assert sentence in outcome.error
        assert peer.requests == []


# ── Watching ───────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def watch_events(
    daemon: InProcessDaemon, *options: str
) -> AsyncIterator[tuple[ForkedProcess, asyncio.StreamReader]]:
    """Run `crabtalk events watch`, and wait until the daemon has its subscription."""
    others = len(daemon.daemon.feed)
    words = ("events", "watch", "--home", str(daemon.home), *options)
    process = WARM.start(*words, stdout=PIPE, stderr=PIPE)
    try:
        await wait_until(lambda: len(daemon.daemon.feed) > others)
        assert process.stdout is not None
        yield process, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def read_lines_until(reader: asyncio.StreamReader, last: str) -> list[str]:
    """Read lines up to the one that contains `last`."""
    lines: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while not lines or last not in lines[-1]:
            lines.append((await reader.readline()).decode())
            assert lines[-1], "it ended before that"
    return lines


@pytest.mark.req("cli.events.watch")
async def test_watch_shows_events_until_ctrl_c(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        daemon.client() as client,
        watch_events(daemon, "--agent", "crab", "--sender", "bo") as (process, out),
    ):
        await client.send("twin", "!say not this", sender="bo")
        await client.send("crab", "!say one two", sender="bo")
        hears, says, done = await read_lines_until(out, ": done")
        assert hears[8:] == " crab with bo: hears !say one two\n"
        assert says[8:] == " crab with bo: says one two\n"
        assert done[8:].startswith(" crab with bo: done scripted ")
        await wait_until_asleep(process.pid)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(PATIENCE):
            assert await process.communicate() == (b"", b"")
        assert process.returncode == 0


@pytest.mark.req("cli.events.watch")
async def test_watch_in_json_is_one_object_per_line(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        daemon.client() as client,
        watch_events(daemon, "--json") as (_, out),
    ):
        await client.send("crab", "!say one two", sender="bo")
        known = [json.loads(line) for line in await read_lines_until(out, "DONE")]
        assert [each["kind"] for each in known] == [
            *("TURN_START", "TEXT_START", "TEXT_DELTA", "TEXT_DELTA", "TEXT_END"),
            *("CONTEXT_USAGE", "DONE"),
        ]
        assert {(each["agent"], each["sender"]) for each in known} == {("crab", "bo")}


@pytest.mark.req("cli.events.watch")
async def test_a_daemon_that_goes_away_ends_the_watch_with_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, watch_events(daemon) as (process, _):
        await daemon.listener.close()
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert (process.returncode, out) == (1, b"")
        assert err.startswith(b"crabtalk: ")
        assert err.count(b"\n") == 1


@pytest.mark.req("cli.pipes")
async def test_a_closed_output_pipe_is_no_error(home: Path) -> None:
    peer = CannedDaemon()
    peer.events = [wire.AgentEventMsg(agent="crab", sender="x" * 1000, kind=wire.DONE)] * 5000
    async with serve_daemon(peer, home):
        process = await asyncio.create_subprocess_shell(
            f"{CRABTALK} events watch --home {home} | head -1; exit ${{PIPESTATUS[0]}}",
            stdout=PIPE,
            stderr=PIPE,
            executable="/bin/bash",
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert (process.returncode, out.count(b"\n"), err) == (0, 1, b"")


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.req("cli.events.watch")
async def test_unknown_events_of_a_newer_daemon_are_skipped(
    home: Path, options: tuple[str, ...]
) -> None:
    peer = CannedDaemon()
    newer = wire.AgentEventMsg.FromString(b"\x18\xe7\x07")  # kind = 999
    walks = wire.AgentEventMsg(agent="crab", kind=wire.TOOL_PROGRESS, content="walking")
    peer.events = [newer, walks]
    async with serve_daemon(peer, home):
        outcome = await run_crabtalk("events", "watch", "--home", home, *options)
    assert outcome.out.count("\n") == 1
    assert "walking" in outcome.out


@pytest.mark.req("cli.terminal.safe")
async def test_events_are_escaped_at_a_terminal(home: Path) -> None:
    peer = CannedDaemon()
    peer.events = [
        wire.AgentEventMsg(agent="crab", sender="bo", kind=wire.TOOL_START, content="a\x1b[2J\x07")
    ]
    async with serve_daemon(peer, home):
        code, screen = await run_at_terminal("events", "watch", "--home", home)
    assert code == 1
    assert "a\\x1b[2J\\x07" in screen
    assert "\x1b" not in strip_colours(screen)


@pytest.mark.req("cli.terminal.safe")
async def test_events_are_escaped_in_json(home: Path) -> None:
    outcome = "a\x1b[2J\x9b2J\u202e 海 \\"
    peer = CannedDaemon()
    peer.events = [wire.AgentEventMsg(agent="crab", kind=wire.TOOL_START, content=outcome)]
    async with serve_daemon(peer, home):
        _, screen = await run_at_terminal("events", "watch", "--home", home, "--json")
    line = screen.splitlines()[0]
    assert json.loads(line)["content"] == outcome
    assert "海" in line
    assert not set(line) & set("\x1b\x9b\u202e")


events = st.builds(
    wire.AgentEventMsg,
    agent=st.sampled_from(["crab", "twin"]),
    sender=st.sampled_from(["user", "tg:1"]),
    kind=st.sampled_from(wire.AgentEventKind.values()),
    content=st.text(max_size=10),
    timestamp=st.just("2026-01-02T03:04:05.678Z"),
    tool_output=st.text(max_size=10),
    tool_is_error=st.booleans(),
    run_id=st.sampled_from(["a", "b"]),
    missed=st.integers(0, 2),
)


@given(st.lists(events, max_size=12))
@pytest.mark.req("cli.events.watch")
def test_the_lines_are_the_same_as_of_crabtalkd_events(happened: list[wire.AgentEventMsg]) -> None:
    ours, saying = EventFormatter(), dict[str, Any]()
    for event in happened:
        assert ours.format_event(event) == escape_controls(
            client_commands.format_event_line(event, saying)
        )
        assert event_to_json(event) == json.loads(client_commands.format_event_json(event))
