"""The feed: sends the events of all runs to subscribers without slowing runs down."""

import asyncio
import re
import socket
from pathlib import Path

import pytest

from crabtalk.client import ServerError
from crabtalk.daemon.events.feed import (
    Feed,
    FeedLimits,
    describe_call,
    describe_usage,
    truncate_output,
)
from crabtalk.model import ToolCall
from crabtalk.model.messages import Usage
from crabtalk.protocol import UnavailableError, encode_frame, wire
from crabtalk.runtime import Clock, Done, Env, Run, StopReason, TextDelta, ToolDispatch, ToolError
from crabtalk.storage import Pair
from crabtalk.transport import RunFiles
from tests.daemon.in_process_daemon import (
    collect_events,
    expect_error_code,
    follow_feed,
    run_daemon,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)


async def list_files(call: ToolDispatch) -> str:
    return "a.txt"


async def fail_tool(call: ToolDispatch) -> str:
    raise ToolError("permission denied: not you")


def summarize_events(events: list[wire.AgentEventMsg]) -> list[tuple[str, str]]:
    """Kind and content of each; durations differ from run to run."""
    return [
        (wire.AgentEventKind.Name(event.kind), re.sub(r"^\d+ms$", "Nms", event.content))
        for event in events
    ]


# ── Events ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("feed.kinds")
async def test_the_feed_of_a_turn_has_each_kind_with_text_for_display(tmp_path: Path) -> None:
    content = (
        "!think hm so\n!say let me see\n"
        '!tool bash {"command":"ls -l\\nwc"}\n!tool fails {}\n!usage 1000 30\n'
        "!then\n!say one file\n!usage 713 28"
    )
    tools = {"bash": list_files, "fails": fail_tool}
    async with run_daemon(tmp_path, tools=tools) as daemon, follow_feed(daemon) as feed:
        async with daemon.client() as client:
            await client.send("crab", content)
        events = await feed.wait_until_done()
    assert summarize_events(events) == [
        ("THINKING_START", ""),
        ("THINKING_DELTA", "hm "),
        ("THINKING_DELTA", "so"),
        ("THINKING_END", ""),
        ("TEXT_START", ""),
        ("TEXT_DELTA", "let "),
        ("TEXT_DELTA", "me "),
        ("TEXT_DELTA", "see"),
        ("TEXT_END", ""),
        ("TOOL_START", "bash(ls -l), fails"),
        ("TOOL_RESULT", "Nms"),
        ("TOOL_RESULT", "Nms"),
        ("TOOLS_COMPLETE", ""),
        ("TEXT_START", ""),
        ("TEXT_DELTA", "one "),
        ("TEXT_DELTA", "file"),
        ("TEXT_END", ""),
        ("DONE", "scripted 1.7k in / 58 out"),
    ]
    (start,) = [event for event in events if event.kind == wire.TOOL_START]
    assert [(c.name, c.arguments, c.id) for c in start.tool_calls] == [
        ("bash", '{"command":"ls -l\\nwc"}', "call_1"),
        ("fails", "{}", "call_2"),
    ]
    results = {event.call_id: event for event in events if event.kind == wire.TOOL_RESULT}
    assert (results["call_1"].tool_output, results["call_1"].tool_is_error) == ("a.txt", False)
    assert results["call_2"].tool_output == "permission denied: not you"
    assert results["call_2"].tool_is_error
    assert not any(event.HasField("missed") or event.HasField("parent") for event in events)


@pytest.mark.req("feed.identity")
async def test_every_event_has_agent_sender_time_and_run_id(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        follow_feed(daemon) as feed,
        daemon.client() as client,
    ):
        starts = []
        for sender in ("tg:1", None):
            stream = client.stream("crab", "hello", sender=sender)
            starts.append(await wait_for_event(stream, wire.StreamStart))
            await collect_events(stream)
        events = await feed.wait_until_done(2)
        assert {(e.agent, e.sender, e.run_id) for e in events} == {
            ("crab", "tg:1", starts[0].run_id),
            ("crab", "user", starts[1].run_id),
        }
        assert starts[0].run_id != starts[1].run_id
        stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
        assert all(stamp.fullmatch(event.timestamp) for event in events)


@pytest.mark.req("feed.done")
@pytest.mark.parametrize("content", ["!status 400 no", "!hang"])
async def test_a_turn_without_a_completed_step_has_no_usage_text(
    tmp_path: Path, content: str
) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        follow_feed(daemon) as feed,
        daemon.client() as client,
    ):
        stream = client.stream("crab", content)
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_asked()
        await client.kill("crab")
        await collect_events(stream)
        assert summarize_events(await feed.wait_until_done()) == [("DONE", "")]


@pytest.mark.req("feed.no_guests")
async def test_guest_turns_early_notices_steering_and_usage_are_not_on_the_feed(
    tmp_path: Path,
) -> None:
    async with (
        run_daemon(tmp_path, tools={"bash": list_files}) as daemon,
        follow_feed(daemon) as feed,
        daemon.client() as client,
    ):
        await client.send("crab", "hello", guest="twin")
        stream = client.stream("crab", '!wait\n!tool bash {"command":"ls"}')
        start = await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        await client.steer_session("crab", "!say done")
        daemon.model.release()
        await collect_events(stream)
        events = await feed.wait_until_done()
        assert {event.run_id for event in events} == {start.run_id}
        assert [kind for kind, _ in summarize_events(events)] == [
            *("TOOL_START", "TOOL_RESULT", "TOOLS_COMPLETE"),
            *("TEXT_START", "TEXT_DELTA", "TEXT_END", "DONE"),
        ]


@pytest.mark.req("feed.all_of_a_turn")
async def test_with_all_kinds_a_client_can_follow_another_clients_turn(
    tmp_path: Path,
) -> None:
    """The message, steering, usage and the end."""
    async with (
        run_daemon(tmp_path, tools={"bash": list_files}, summary="They met. Twice.") as daemon,
        follow_feed(daemon, all_kinds=True) as feed,
        daemon.client() as client,
    ):
        stream = client.stream("crab", '!wait\n!tool bash {"command":"ls"}\n!usage 70 3')
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        await client.steer_session("crab", "!say done")
        daemon.model.release()
        await collect_events(stream)
        events = await feed.wait_until_done()
        assert summarize_events(events)[0] == (
            "TURN_START",
            '!wait\n!tool bash {"command":"ls"}\n!usage 70 3',
        )
        assert ("USER_STEERED", "!say done") in summarize_events(events)
        (first, _) = [event.usage for event in events if event.kind == wire.CONTEXT_USAGE]
        assert (first.prompt_tokens, first.completion_tokens) == (70, 3)
        done = events[-1]
        assert (done.stop_reason, done.model, done.HasField("error")) == (
            *(wire.STOP_REASON_COMPLETED, "scripted", False),
        )
        assert done.usage.prompt_tokens >= 70
        await client.compact("crab")
        await wait_until(lambda: feed.events[-1].kind == wire.COMPACTED)
        assert feed.events[-1].content == "They met."


@pytest.mark.req("feed.all_of_a_turn")
async def test_with_all_kinds_the_feed_has_guest_turns_and_errors(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        follow_feed(daemon, all_kinds=True) as feed,
        daemon.client() as client,
    ):
        await client.send("crab", "!say hello", guest="twin")
        events = await feed.wait_until_done()
        assert {event.guest for event in events} == {"twin"}
        assert {event.agent for event in events} == {"crab"}
        assert [kind for kind, _ in summarize_events(events)] == [
            *("TURN_START", "TEXT_START", "TEXT_DELTA", "TEXT_END", "CONTEXT_USAGE", "DONE"),
        ]
        assert await expect_error_code(client.send("crab", "!status 400 no")) == 500
        failed = (await feed.wait_until_done(2))[-1]
        assert failed.stop_reason == wire.STOP_REASON_ERROR
        assert failed.error
        assert not failed.HasField("guest")


# ── Subscribers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("feed.filters")
@pytest.mark.parametrize(
    ("agent", "sender", "expected"),
    [
        (None, None, {("crab", "bo"), ("crab", "eva"), ("twin", "bo")}),
        ("", "", {("crab", "bo"), ("crab", "eva"), ("twin", "bo")}),
        ("crab", None, {("crab", "bo"), ("crab", "eva")}),
        (None, "bo", {("crab", "bo"), ("twin", "bo")}),
        ("twin", "bo", {("twin", "bo")}),
        ("cra", None, set()),
    ],
)
async def test_a_feed_can_be_filtered_by_agent_and_sender(
    tmp_path: Path, agent: str | None, sender: str | None, expected: set[tuple[str, str]]
) -> None:
    async with (
        run_daemon(tmp_path) as daemon,
        follow_feed(daemon) as everything,
        follow_feed(daemon, agent=agent, sender=sender) as narrowed,
        daemon.client() as client,
    ):
        for pair in (("crab", "bo"), ("crab", "eva"), ("twin", "bo")):
            await client.send(pair[0], "hello", sender=pair[1])
        await everything.wait_until_done(3)
        events = await narrowed.wait_until_done(len(expected))
        assert {(event.agent, event.sender) for event in events} == expected


@pytest.mark.req("feed.subscribers")
async def test_two_subscribers_get_the_same_events_and_are_removed_when_they_leave(
    tmp_path: Path,
) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        async with follow_feed(daemon) as first, follow_feed(daemon) as second:
            await client.send("crab", "hello")
            assert await first.wait_until_done() == await second.wait_until_done()
        await wait_until(lambda: len(daemon.daemon.feed) == 0)
        async with follow_feed(daemon) as later:  # a feed has no past events
            await client.send("crab", "again")
            assert await later.wait_until_done() == later.events
            assert all("hello" not in event.content for event in later.events)


@pytest.mark.req("feed.bound")
async def test_subscribers_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    limits = FeedLimits(feeds=2)
    async with run_daemon(tmp_path, feed_limits=limits) as daemon, daemon.client() as client:
        async with follow_feed(daemon), follow_feed(daemon):
            assert await expect_error_code(collect_events(client.subscribe_events())) == 503
        await wait_until(lambda: len(daemon.daemon.feed) == 0)
        async with follow_feed(daemon) as feed:
            await client.send("crab", "hello")
            await feed.wait_until_done()


@pytest.mark.req("feed.ends_with_daemon")
async def test_a_feed_ends_with_503_when_the_daemon_stops(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        client = daemon.client()
        feed = asyncio.ensure_future(collect_events(client.subscribe_events()))
        await wait_until(lambda: len(daemon.daemon.feed) == 1)
    with pytest.raises(ServerError) as caught:
        await wait_with_timeout(feed)
    assert caught.value.code == 503


@pytest.mark.req("feed.never_slows")
async def test_a_subscriber_that_never_reads_does_not_slow_turns_down(tmp_path: Path) -> None:
    limits = FeedLimits(feed_events=16)
    async with run_daemon(tmp_path, feed_limits=limits) as daemon, daemon.client() as client:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(str(RunFiles.for_home(daemon.home).socket_path))
            request = wire.ClientMessage(subscribe_events=wire.SubscribeEvents())
            deaf.sendall(encode_frame(request))
            await wait_until(lambda: len(daemon.daemon.feed) == 1)
            answer = await wait_with_timeout(client.send("crab", "!chunks 10000 0"))
            assert len(answer.content.split()) == 10000


# ── Slow subscribers ───────────────────────────────────────────────────────────────────────────


def make_run(agent: str = "crab") -> Run:
    return Run("r1", Pair(agent, "user"), agent, Env(), 8, 1024, cwd=Path("/"))


@pytest.mark.req("feed.missed")
async def test_a_slow_subscriber_learns_how_many_events_it_missed_with_the_next_one() -> None:
    feed = Feed(FeedLimits(feed_events=3), Clock())
    slow, quick = feed.subscribe("", ""), feed.subscribe("", "")
    waiting = asyncio.ensure_future(anext(slow))
    seen = [asyncio.ensure_future(anext(quick))]
    await wait_until(lambda: len(feed) == 2)
    for number in range(10):
        feed.publish(make_run(), TextDelta(str(number)))
        await wait_with_timeout(asyncio.wait([seen[-1]]))
        seen.append(asyncio.ensure_future(anext(quick)))
    # One is delivered at once, three wait in the queue, and the other six are lost.
    received = [await wait_with_timeout(waiting)] + [
        await wait_with_timeout(anext(slow)) for _ in range(3)
    ]
    assert [(event.content, event.missed) for event in received] == [
        *(("0", 0), ("1", 0), ("2", 0), ("3", 0)),
    ]
    for number in (10, 11):
        feed.publish(make_run(), TextDelta(str(number)))
    after = [await wait_with_timeout(anext(slow)) for _ in range(2)]
    assert [(event.content, event.missed) for event in after] == [("10", 6), ("11", 0)]
    received_by_quick = [(await wait_with_timeout(task)).content for task in seen]
    assert received_by_quick == [str(number) for number in range(11)]
    assert (await wait_with_timeout(anext(quick))).missed == 0
    for subscription in (slow, quick):
        await subscription.aclose()
    assert len(feed) == 0


@pytest.mark.req("feed.bound")
async def test_a_refused_subscriber_does_not_count() -> None:
    feed = Feed(FeedLimits(feeds=1), Clock())
    first = feed.subscribe("", "")
    waiting = asyncio.ensure_future(anext(first))
    await wait_until(lambda: len(feed) == 1)
    with pytest.raises(UnavailableError):
        await anext(feed.subscribe("", ""))
    feed.publish(make_run(), TextDelta("x"))
    assert (await wait_with_timeout(waiting)).content == "x"
    await first.aclose()
    assert len(feed) == 0


@pytest.mark.parametrize("bound", [0, -1, True, 1.5])
def test_an_invalid_limit_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="feed_events must be a whole number above zero"):
        FeedLimits(feed_events=bound)


# ── Texts ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("feed.labels")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("read", '{"command": "ls"}', "read"),
        ("bash", '{"command": "ls -l"}', "bash(ls -l)"),
        ("bash", '{"command": "cd x\\nls\\n"}', "bash(cd x)"),
        ("bash", '{"command": ""}', "bash"),
        ("bash", '{"command": 3}', "bash"),
        ("bash", '{"cmd": "ls"}', "bash"),
        ("bash", '["ls"]', "bash"),
        ("bash", '{"command": "l', "bash"),
        ("bash", "", "bash"),
        ("bash", "[" * 100_000, "bash"),
        ("bash", '{"command": "echo \\ud800"}', "bash(echo ?)"),
    ],
)
def test_a_call_is_described_by_its_name_and_for_bash_the_first_line_of_its_command(
    name: str, arguments: str, expected: str
) -> None:
    assert describe_call(ToolCall("c1", name, arguments)) == expected


@pytest.mark.req("feed.output_cut")
@pytest.mark.parametrize("unit", ["x", "é", "日", "🦀"])
def test_an_output_is_cut_to_2048_bytes_between_characters(unit: str) -> None:
    size = len(unit.encode())
    fits = unit * (2048 // size)
    assert truncate_output(fits, 2048) == fits
    cut = truncate_output(fits + unit * 3, 2048)
    assert cut.endswith("…[truncated]")
    assert cut.removesuffix("…[truncated]") == unit * ((2048 - 14) // size)
    assert 2048 - size < len(cut.encode()) <= 2048
    assert truncate_output(f"{unit}\ud800", 2048) == f"{unit}?"


@pytest.mark.req("feed.output_cut")
async def test_a_long_output_is_cut_on_the_feed_and_whole_in_the_stream(tmp_path: Path) -> None:
    async def long(call: ToolDispatch) -> str:
        return "日" * 1000

    async with (
        run_daemon(tmp_path, tools={"long": long}) as daemon,
        follow_feed(daemon) as feed,
        follow_feed(daemon, all_kinds=True) as full,
        daemon.client() as client,
    ):
        events = await collect_events(client.stream("crab", "!tool long {}\n!then\n!say done"))
        (whole,) = [e.output for e in events if isinstance(e, wire.ToolResultEvent)]
        assert whole == "日" * 1000
        (cut,) = [e.tool_output for e in await feed.wait_until_done() if e.kind == wire.TOOL_RESULT]
        assert cut == "日" * 678 + "…[truncated]"
        (cut,) = [e.tool_output for e in await full.wait_until_done() if e.kind == wire.TOOL_RESULT]
        assert cut == whole


@pytest.mark.req("feed.done")
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, "m 0 in / 0 out"),
        (Usage(999, 58, 1057), "m 999 in / 58 out"),
        (Usage(1713, 1000, 2713), "m 1.7k in / 1.0k out"),
        (Usage(1_000_000, 1, 1_000_001), "m 1.0M in / 1 out"),
        (Usage(1713, 58, 1771, cache_hit=900), "m 1.7k in (900 cached) / 58 out"),
        (Usage(1713, 58, 1771, cache_hit=0), "m 1.7k in / 58 out"),
    ],
)
def test_the_usage_of_a_turn_is_shown_in_one_line(usage: Usage | None, expected: str) -> None:
    done = Done("crab", StopReason.COMPLETED, model="m", usage=usage, steps=1)
    assert describe_usage(done) == expected
    assert describe_usage(Done("crab", StopReason.ERROR, model="m", usage=usage)) == ""
