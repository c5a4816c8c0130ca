"""A turn over the wire: its events in order, how it ends, and who can end it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits, ToolDispatch, ToolError
from tests.daemon.in_process_daemon import (
    PATIENCE,
    InProcessDaemon,
    collect_events,
    collect_text,
    expect_error_code,
    get_stream_end,
    list_request_messages,
    read_conversation,
    run_daemon,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.scripted_server import RawPeer, make_ping

LS = '!tool bash {"command":"ls"}'


async def run_bash(call: ToolDispatch) -> str:
    return f"ran {call.arguments}"


async def start_turn(daemon: InProcessDaemon, content: str, **options: Any) -> RawPeer:
    """Start a turn on a new connection, without reading an answer."""
    peer = await daemon.connect_raw()
    request = wire.StreamMsg(agent="crab", content=content, **options)
    peer.send(wire.ClientMessage(stream=request))
    return peer


async def collect_turn_events(
    daemon: InProcessDaemon, content: str, **options: Any
) -> list[wire.StreamEvent]:
    """A turn's events as on the wire, without fields that differ from run to run.

    Checks that nothing follows the last event, and that the connection takes another request.
    """
    peer = await start_turn(daemon, content, **options)
    events: list[wire.StreamEvent] = []
    async with asyncio.timeout(PATIENCE):
        while not events or not events[-1].HasField("end"):
            message = await peer.expect()
            assert message.WhichOneof("msg") == "stream", message
            events.append(message.stream)
        peer.send(make_ping())
        assert (await peer.expect()).WhichOneof("msg") == "pong"
    await peer.close()
    for event in events:
        if event.HasField("start"):
            event.start.ClearField("run_id")
        if event.HasField("tool_result"):
            event.tool_result.ClearField("duration_ms")
    return events


def list_event_names(events: list[wire.StreamEvent]) -> list[str | None]:
    return [event.WhichOneof("event") for event in events]


# ── Events in order ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("stream.order")
async def test_the_events_of_a_call_and_an_answer_have_the_documented_order(
    tmp_path: Path,
) -> None:
    content = f"{LS}\n!usage 9 3\n!then\n!say one file\n!usage 20 2"
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon:
        events = await collect_turn_events(daemon, content)
    call = {"name": "bash", "id": "call_1"}
    whole = {**call, "arguments": '{"command":"ls"}'}
    usages = [
        {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22},
        {"prompt_tokens": 29, "completion_tokens": 5, "total_tokens": 34},
    ]
    end = {"agent": "crab", "model": "scripted", "usage": usages[2]}
    expected: list[dict[str, Any]] = [
        {"start": {"agent": "crab"}},
        {"tool_start": {"calls": [call], "early": True}},
        {"tool_start": {"calls": [whole]}},
        {"tool_result": {"call_id": "call_1", "output": 'ran {"command":"ls"}'}},
        {"tools_complete": {}},
        {"context_usage": {"usage": usages[0]}},
        {"text_start": {"agent": "crab"}},
        {"chunk": {"content": "one "}},
        {"chunk": {"content": "file"}},
        {"text_end": {"agent": "crab"}},
        {"context_usage": {"usage": usages[1]}},
        {"end": {**end, "stop_reason": wire.STOP_REASON_COMPLETED}},
    ]
    assert events == [wire.StreamEvent(**event) for event in expected]


@pytest.mark.req("stream.segments")
async def test_segments_do_not_nest_and_may_contain_an_early_notice(tmp_path: Path) -> None:
    content = f"!think well now\n!say let me see\n{LS}\n!then\n!think so\n!say done"
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon:
        events = await collect_turn_events(daemon, content)
    assert list_event_names(events) == [
        "start",
        *("thinking_start", "thinking", "thinking", "thinking_end"),
        *("text_start", "chunk", "chunk", "chunk", "tool_start", "text_end"),
        *("tool_start", "tool_result", "tools_complete", "context_usage"),
        *("thinking_start", "thinking", "thinking_end"),
        *("text_start", "chunk", "text_end", "context_usage"),
        "end",
    ]


@pytest.mark.req("stream.results")
async def test_results_arrive_as_calls_finish_and_are_stored_in_call_order(
    tmp_path: Path,
) -> None:
    first_may_finish = asyncio.Event()

    async def slow(call: ToolDispatch) -> str:
        await first_may_finish.wait()
        return "slow"

    async def fails(call: ToolDispatch) -> str:
        raise ToolError("bash failed: no such command")

    tools = {"slow": slow, "fails": fails}
    async with run_daemon(tmp_path, tools=tools) as daemon, daemon.client() as client:
        running = client.stream("crab", "!tool slow {}\n!tool fails {}\n!then\n!say done")
        early, complete = [await wait_for_event(running, wire.ToolStartEvent) for _ in range(2)]
        assert [call.name for call in early.calls] == ["slow"]
        assert [call.id for call in complete.calls] == ["call_1", "call_2"]
        second = await wait_for_event(running, wire.ToolResultEvent)
        assert (second.call_id, second.output) == ("call_2", "bash failed: no such command")
        assert second.is_error
        first_may_finish.set()
        first = await wait_for_event(running, wire.ToolResultEvent)
        assert (first.call_id, first.output, first.is_error) == ("call_1", "slow", False)
        await collect_events(running)
        page = await client.list_messages("crab")
        assert [m.call_id for m in page.messages if m.role == "tool"] == ["call_1", "call_2"]


@pytest.mark.req("stream.usage")
async def test_there_is_no_usage_event_without_a_usage_report(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        events = await collect_turn_events(daemon, "!say hello\n!usage 0 0")
    assert list_event_names(events) == ["start", "text_start", "chunk", "text_end", "end"]
    assert not events[-1].end.HasField("usage")


@pytest.mark.req("stream.usage")
async def test_a_count_too_large_for_the_wire_becomes_the_maximum(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        end = (await collect_turn_events(daemon, "!say hello\n!usage 99999999999 1"))[-1].end
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (2**32 - 1, 1)


@pytest.mark.req("stream.guest")
async def test_the_stream_of_a_guest_carries_the_guests_name(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        events = await collect_turn_events(daemon, "!say hello", guest="twin")
    assert list_event_names(events) == [
        "start",
        "text_start",
        "chunk",
        "text_end",
        "context_usage",
        "end",
    ]
    speakers = {
        getattr(event, name).agent
        for event, name in zip(events, list_event_names(events), strict=True)
        if name in ("start", "text_start", "text_end", "end")
    }
    assert speakers == {"twin"}


@pytest.mark.req("durability.turn_before_end")
async def test_all_of_a_turn_is_stored_when_its_end_is_sent(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon, daemon.client() as client:
        running = client.stream("crab", f"{LS}\n!then\n!say done")
        await wait_for_event(running, wire.StreamEnd)
        log = daemon.read_log()
        await collect_events(running)
        roles = [line["message"]["role"] for line in log if line["kind"] == "message"]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert log[-1]["message_count"] == 4


@pytest.mark.req("durability.before_model")
async def test_the_users_message_is_stored_before_the_model_is_asked(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        running = client.stream("crab", "!hang")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_asked()
        assert daemon.read_messages() == [{"role": "user", "text": "!hang"}]
        await client.kill("crab")
        await collect_events(running)


# ── Ends ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("stream.stop_reasons")
@pytest.mark.parametrize(
    ("content", "reason", "error"),
    [
        ("!say done", wire.STOP_REASON_COMPLETED, ""),
        ("!nothing", wire.STOP_REASON_NO_ACTION, ""),
        (f"{LS}\n!then\n{LS}\n!then\n!say late", wire.STOP_REASON_MAX_ITERATIONS, ""),
        ("!status 400 no such luck", wire.STOP_REASON_ERROR, "no such luck"),
        ("!say so far\n!status 500 boom", wire.STOP_REASON_ERROR, "boom"),
        ("!say so far\n!cut", wire.STOP_REASON_ERROR, "llm: "),
    ],
)
async def test_the_end_has_a_stop_reason_and_only_a_failure_has_an_error(
    tmp_path: Path, content: str, reason: wire.StopReason.ValueType, error: str
) -> None:
    agents = {"crab": 'prompt = "c"\nmax_iterations = 2\n'}
    async with run_daemon(tmp_path, tools={"bash": run_bash}, agents=agents) as daemon:
        end = (await collect_turn_events(daemon, content))[-1].end
        assert end.stop_reason == reason
        assert error in end.error
        assert bool(end.error) == (reason == wire.STOP_REASON_ERROR)
        assert (end.agent, end.model) == ("crab", "scripted")
        assert daemon.read_messages()[0] == {"role": "user", "text": content}


@pytest.mark.req("stream.unknown_agent")
async def test_an_unknown_agent_is_one_error_without_start_and_end(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        peer = await daemon.connect_raw()
        peer.send(wire.ClientMessage(stream=wire.StreamMsg(agent="squid", content="hello")))
        async with asyncio.timeout(PATIENCE):
            assert "'squid'" in await peer.expect_error(404)
            peer.send(make_ping())
            assert (await peer.expect()).WhichOneof("msg") == "pong"
        await peer.close()


@pytest.mark.req("stream.unknown_guest")
async def test_an_unknown_guest_is_reported_after_the_start(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        events = await collect_turn_events(daemon, "hello", guest="squid")
        assert list_event_names(events) == ["start", "end"]
        assert events[-1].end.stop_reason == wire.STOP_REASON_ERROR
        assert "squid" in events[-1].end.error
        assert daemon.model.requests == []


@pytest.mark.req("stream.bad_request")
@pytest.mark.parametrize("content", ["", " ", "\n\t "])
async def test_an_empty_message_is_refused(tmp_path: Path, content: str) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.send("crab", content)) == 400
        assert await expect_error_code(collect_events(client.stream("crab", content))) == 400
        assert daemon.log_paths == []


@pytest.mark.req("conv.cwd.checked")
@pytest.mark.parametrize("cwd", ["here", "./x", "~", "{tmp}/missing", "{tmp}/file", "/\0", "\0"])
async def test_a_directory_must_be_absolute_and_exist(tmp_path: Path, cwd: str) -> None:
    (tmp_path / "file").touch()
    directory = cwd.replace("{tmp}", str(tmp_path))
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.send("crab", "hello", cwd=directory)) == 400
        assert (
            await expect_error_code(collect_events(client.stream("crab", "hello", cwd=directory)))
            == 400
        )
        assert daemon.log_paths == []


@pytest.mark.req("bounds.runs")
async def test_turns_beyond_the_limit_are_refused_until_others_end(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, limits=RuntimeLimits(runs=2)) as daemon,
        daemon.client() as client,
    ):
        running = [client.stream("crab", "!wait", sender=name) for name in ("a", "b")]
        for stream in running:
            await wait_for_event(stream, wire.StreamStart)
        assert await expect_error_code(client.send("crab", "hello")) == 503
        assert await expect_error_code(collect_events(client.stream("crab", "hello"))) == 503
        assert await expect_error_code(client.compact("crab", sender="a")) == 503
        await daemon.model.until_waiting(2)
        daemon.model.release()
        for stream in running:
            await collect_events(stream)
        assert (await client.send("crab", "hello")).content == "heard: hello"


@pytest.mark.req("stream.tool_choice")
async def test_a_turn_can_choose_the_first_tool(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon, daemon.client() as client:
        await client.send("crab", f"{LS}\n!then\n!say done", tool_choice="bash")
        await collect_events(client.stream("crab", "hello", tool_choice="none"))
        choices = [request.get("tool_choice") for request in daemon.model.requests]
        assert choices == [{"type": "function", "function": {"name": "bash"}}, None, "none"]


@pytest.mark.req("stream.tool_choice")
async def test_a_tool_the_agent_does_not_have_cannot_be_chosen(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon, daemon.client() as client:
        assert await expect_error_code(client.send("crab", "hello", tool_choice="dig")) == 400
        assert daemon.log_paths == []


# ── send ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("send.answer")
async def test_send_returns_the_last_text_and_the_total_usage(tmp_path: Path) -> None:
    content = f"!say looking\n{LS}\n!usage 5 1\n!then\n!say done\n!usage 7 1"
    async with run_daemon(tmp_path, tools={"bash": run_bash}) as daemon, daemon.client() as client:
        answer = await client.send("crab", content)
        assert (answer.agent, answer.content, answer.model) == ("crab", "done", "scripted")
        assert answer.usage == wire.TokenUsage(
            prompt_tokens=12, completion_tokens=2, total_tokens=14
        )


@pytest.mark.req("send.fails")
async def test_send_fails_when_the_model_fails_or_a_name_is_unknown(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.send("crab", "!status 500 boom")) == 500
        assert await expect_error_code(client.send("squid", "hello")) == 404
        assert await expect_error_code(client.send("crab", "hello", guest="squid")) == 404
        assert [text for _, text in await read_conversation(client, "crab")] == ["!status 500 boom"]


@pytest.mark.req("send.killed")
async def test_a_send_that_is_killed_is_answered_with_an_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        sending = asyncio.ensure_future(client.send("crab", "!say so far\n!hang"))
        await daemon.model.until_asked()
        assert await client.kill("crab")
        assert await expect_error_code(sending) == 500
        await daemon.model.until_hung_up()


# ── Killing ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("kill.keeps_user_message")
async def test_a_killed_turn_keeps_complete_messages_and_the_next_turn_continues(
    tmp_path: Path,
) -> None:
    """Its tool is stopped and the call gets an interrupted result, so that models accept it."""
    stopped = asyncio.Event()
    began = asyncio.Event()

    async def stuck(call: ToolDispatch) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    tools = {"stuck": stuck, "bash": run_bash}
    async with run_daemon(tmp_path, tools=tools) as daemon, daemon.client() as client:
        running = client.stream("crab", f"{LS}\n!then\n!say wait\n!tool stuck {{}}")
        await wait_for_event(running, wire.ToolStartEvent)
        await wait_with_timeout(began.wait())
        assert await client.kill("crab")
        end = get_stream_end(await collect_events(running))
        assert (end.stop_reason, end.error) == (wire.STOP_REASON_CANCELLED, "")
        assert stopped.is_set()
        await client.send("crab", "go on")
        roles = [role for role, _ in list_request_messages(daemon.model.requests[-1])[1:]]
        assert roles == ["user", "assistant", "tool", "assistant", "tool", "user"]
        results = [
            text
            for role, text in list_request_messages(daemon.model.requests[-1])
            if role == "tool"
        ]
        assert results[0] == 'ran {"command":"ls"}'
        assert results[1].startswith("interrupted")


@pytest.mark.req("kill.waiting_turn")
async def test_a_turn_that_waits_behind_the_killed_one_runs(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        first = client.stream("crab", "!hang")
        await wait_for_event(first, wire.StreamStart)
        second = client.stream("crab", "!say my turn")
        await wait_for_event(second, wire.StreamStart)
        await daemon.model.until_asked()
        await client.kill("crab")
        assert get_stream_end(await collect_events(first)).stop_reason == wire.STOP_REASON_CANCELLED
        assert collect_text(await collect_events(second)) == "my turn"


# ── Disconnects ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("leave.cancels")
@pytest.mark.parametrize("half", [False, True])
async def test_a_turn_ends_when_its_client_disconnects(tmp_path: Path, half: bool) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        peer = await start_turn(daemon, "!say so far\n!hang")
        async with asyncio.timeout(PATIENCE):
            while not (await peer.expect()).stream.HasField("chunk"):
                pass
        if half:
            peer.writer.write_eof()
        else:
            await peer.close()
        await daemon.model.until_hung_up()
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        await peer.close()
        await client.send("crab", "hello again")
        assert [
            text for role, text in await read_conversation(client, "crab") if role == "user"
        ] == [
            "!say so far\n!hang",
            "hello again",
        ]


@pytest.mark.req("leave.detached")
async def test_a_detached_turn_outlives_its_client(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        peer = await start_turn(daemon, "!wait\n!say to the end", detach=True)
        await wait_with_timeout(peer.expect())
        await daemon.model.until_waiting()
        await peer.close()
        await wait_until(lambda: daemon.listener.statistics().connections == 1)
        assert daemon.daemon.runtime.running_count == 1
        daemon.model.release()
        await client.send("crab", "and you?")  # queued behind the other turn
        assert daemon.read_messages()[1]["text"] == "to the end"
        assert daemon.model.hangups == 0


@pytest.mark.req("leave.send")
async def test_a_send_is_carried_out_even_if_its_client_disconnects(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        peer = await daemon.connect_raw()
        request = wire.SendMsg(agent="crab", content="!wait\n!say to the end")
        peer.send(wire.ClientMessage(send=request))
        await daemon.model.until_waiting()
        await peer.close()
        await client.ping()
        await client.ping()
        daemon.model.release()
        await client.send("crab", "and you?")
        assert daemon.read_messages()[1]["text"] == "to the end"
        assert daemon.model.hangups == 0


@pytest.mark.req("leave.waiting")
async def test_a_queued_turn_is_dropped_when_its_client_disconnects(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        running = client.stream("crab", "!wait\n!say first")
        await wait_for_event(running, wire.StreamStart)
        peer = await start_turn(daemon, "never mind")
        await wait_with_timeout(peer.expect())
        await peer.close()
        await wait_until(lambda: daemon.daemon.runtime.running_count == 1)
        await daemon.model.until_waiting()
        daemon.model.release()
        assert collect_text(await collect_events(running)) == "first"
        await client.send("crab", "second")
        assert [text for _, text in await read_conversation(client, "crab")] == [
            "!wait\n!say first",
            "first",
            "second",
            "heard: second",
        ]


# ── Steering ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("steer.next_step")
async def test_steering_is_read_at_the_next_step_in_order_and_reported(tmp_path: Path) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(call: ToolDispatch) -> str:
        began.set()
        await goes_on.wait()
        return "slow"

    async with run_daemon(tmp_path, tools={"slow": slow}) as daemon, daemon.client() as client:
        running = client.stream("crab", "!tool slow {}")
        await wait_for_event(running, wire.StreamStart)
        await wait_with_timeout(began.wait())
        await client.steer_session("crab", "a little left")
        await client.steer_session("crab", "!say turning")
        goes_on.set()
        events = await collect_events(running)
        steered = [e.content for e in events if isinstance(e, wire.UserSteeredEvent)]
        assert steered == ["a little left", "!say turning"]
        assert collect_text(events) == "turning"
        assert [
            text for _, text in list_request_messages(daemon.model.requests[-1])[-2:]
        ] == steered


@pytest.mark.req("steer.last_step")
async def test_steering_at_the_end_of_a_turn_adds_a_step(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        running = client.stream("crab", "!wait\n!say all I had to say")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        await client.steer_session("crab", "!say but then")
        daemon.model.release()
        events = await collect_events(running)
        assert collect_text(events) == "all I had to saybut then"
        kinds = [type(event) for event in events]
        assert kinds.index(wire.UserSteeredEvent) > kinds.index(wire.TextEndEvent)
        assert [text for _, text in await read_conversation(client, "crab")] == [
            "!wait\n!say all I had to say",
            "all I had to say",
            "!say but then",
            "but then",
        ]


@pytest.mark.req("steer.refused")
async def test_steering_needs_a_running_turn_text_and_queue_room(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, limits=RuntimeLimits(steers=2)) as daemon,
        daemon.client() as client,
    ):
        assert await expect_error_code(client.steer_session("crab", "left")) == 404
        await client.send("crab", "hello")
        assert await expect_error_code(client.steer_session("crab", "left")) == 404
        running = client.stream("crab", "!wait\n!say done")
        await wait_for_event(running, wire.StreamStart)
        await daemon.model.until_waiting()
        assert await expect_error_code(client.steer_session("crab", " ")) == 400
        await client.steer_session("crab", "left")
        await client.steer_session("crab", "right")
        assert await expect_error_code(client.steer_session("crab", "back")) == 503
        daemon.model.release()
        assert collect_text(await collect_events(running)) == "doneheard: right"


@pytest.mark.req("stream.end.length")
async def test_an_answer_cut_off_by_a_limit_is_marked_and_stored(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        events = await collect_events(client.stream("crab", "!say half an answ\n!length"))
        end = events[-1]
        assert isinstance(end, wire.StreamEnd)
        assert (end.stop_reason, end.error) == (wire.STOP_REASON_LENGTH, "")
        assert await read_conversation(client, "crab") == [
            ("user", "!say half an answ\n!length"),
            ("assistant", "half an answ"),
        ]
