"""Event parsing: the stream of a turn and the feed, from wire messages."""

from typing import Any

import pytest

from apps.web.tests.adapter.adapter_session import AdapterSession
from crabtalk.protocol import wire
from crabtalk_web.adapter import (
    ConversationResolver,
    ReceivedEvent,
    TurnStreamReader,
    parse_feed_event,
)
from crabtalk_web.adapter.event_parsing import parse_timestamp
from crabtalk_web.adapter.run_events import (
    AgentQuestion,
    AnswerOption,
    ConversationCompacted,
    EndReason,
    ParentCall,
    QuestionsAsked,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)

ASK = wire.AskUserEvent(
    ask_id="a",
    questions=[
        wire.AskQuestion(
            question="Q", header="H", options=[wire.AskOption(label="L")], multi_select=True
        )
    ],
)
ASKED = QuestionsAsked("a", (AgentQuestion("Q", "H", (AnswerOption("L"),), multi_select=True),))
CALLS = [wire.ToolCallInfo(name="bash", arguments="{}", id="k")]
USAGE = wire.TokenUsage(prompt_tokens=9, completion_tokens=2, cache_hit_tokens=4)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (wire.StreamStart(agent="crab", run_id="r"), RunBegan("hi")),
        (wire.StreamChunk(content="x"), TextPiece("x")),
        (wire.StreamThinking(content="x"), TextPiece("x", thinking=True)),
        (wire.TextStartEvent(), None),
        (wire.TextEndEvent(), SegmentEnded()),
        (wire.ThinkingStartEvent(), None),
        (wire.ThinkingEndEvent(), SegmentEnded()),
        (wire.ToolStartEvent(calls=CALLS, early=True), None),
        (wire.ToolStartEvent(calls=CALLS), ToolsCalled((ToolCallRequest("k", "bash", "{}"),))),
        (
            wire.ToolResultEvent(call_id="k", output="o", duration_ms=3, is_error=True),
            ToolReturned("k", "o", is_error=True, duration_ms=3),
        ),
        (wire.ToolsCompleteEvent(), StepEnded()),
        (ASK, ASKED),
        (wire.UserSteeredEvent(content="x"), RunSteered("x")),
        (wire.ContextUsageEvent(usage=USAGE), TokensUsed(9, 2, 4)),
        (
            wire.StreamEnd(error="e", stop_reason=wire.STOP_REASON_ERROR),
            RunEnded(EndReason.ERROR, "e"),
        ),
        (wire.StreamEnd(), RunEnded(EndReason.UNKNOWN)),
    ],
)
@pytest.mark.req("adapter.sources")
def test_every_stream_event_is_parsed(event: Any, what: object) -> None:
    reader = TurnStreamReader("crab", "bo", text="hi", run="r")
    field = next(
        f.name
        for f in wire.StreamEvent.DESCRIPTOR.fields
        if f.message_type is not None and f.message_type.name == type(event).__name__
    )
    for form in (event, wire.StreamEvent(**{field: event})):
        received = reader.parse_event(form, 7)
        assert (received and received.event) == what
        if received is not None:
            assert received == ReceivedEvent(
                run="r", event=received.event, at=7, agent="crab", sender="bo", is_streamed=True
            )


@pytest.mark.req("adapter.sources")
def test_every_stream_event_has_a_test() -> None:
    names = {f.message_type.name for f in wire.StreamEvent.DESCRIPTOR.fields if f.message_type}
    marks = test_every_stream_event_is_parsed.pytestmark
    (rows,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    assert {type(event).__name__ for event, _ in rows} == names
    assert TurnStreamReader("crab", "bo").parse_event(wire.StreamEvent(), 1) is None


@pytest.mark.req("adapter.guests")
def test_a_stream_started_by_another_agent_has_a_guest() -> None:
    reader = TurnStreamReader("crab", "bo")
    received = reader.parse_event(wire.StreamStart(agent="twin", run_id="r"), 1)
    assert received is not None
    assert received.guest == "twin"
    received = reader.parse_event(wire.StreamChunk(content="x"), 2)
    assert received is not None
    assert (received.guest, received.run) == ("twin", "r")


def test_a_stream_without_a_run_id_gets_one() -> None:
    received = TurnStreamReader("crab", "bo").parse_event(wire.StreamStart(agent="crab"), 17)
    assert received is not None
    assert received.run == "stream:17"


FED = [
    (wire.AgentEventMsg(kind=wire.TURN_START, content="hi"), RunBegan("hi")),
    (wire.AgentEventMsg(kind=wire.TEXT_START), None),
    (wire.AgentEventMsg(kind=wire.TEXT_DELTA, content="x"), TextPiece("x")),
    (wire.AgentEventMsg(kind=wire.TEXT_END), SegmentEnded()),
    (wire.AgentEventMsg(kind=wire.THINKING_START), None),
    (wire.AgentEventMsg(kind=wire.THINKING_DELTA, content="x"), TextPiece("x", thinking=True)),
    (wire.AgentEventMsg(kind=wire.THINKING_END), SegmentEnded()),
    (
        wire.AgentEventMsg(kind=wire.TOOL_START, tool_calls=CALLS),
        ToolsCalled((ToolCallRequest("k", "bash", "{}"),)),
    ),
    (
        wire.AgentEventMsg(
            kind=wire.TOOL_RESULT, call_id="k", content="9ms", tool_output="o", tool_is_error=True
        ),
        ToolReturned("k", "o", is_error=True),
    ),
    (wire.AgentEventMsg(kind=wire.TOOLS_COMPLETE), StepEnded()),
    (wire.AgentEventMsg(kind=wire.ASK_USER, ask=ASK), ASKED),
    (wire.AgentEventMsg(kind=wire.REFUSED, content="no", call_id="k"), None),
    (wire.AgentEventMsg(kind=wire.TOOL_PROGRESS, content="3/10", call_id="k"), None),
    (wire.AgentEventMsg(kind=wire.USER_STEERED, content="x"), RunSteered("x")),
    (wire.AgentEventMsg(kind=wire.CONTEXT_USAGE, usage=USAGE), TokensUsed(9, 2, 4)),
    (wire.AgentEventMsg(kind=wire.COMPACTED, content="t"), ConversationCompacted("t")),
    (
        wire.AgentEventMsg(
            kind=wire.DONE, content="qwen3 1 in", stop_reason=wire.STOP_REASON_CANCELLED
        ),
        RunEnded(EndReason.CANCELLED),
    ),
    (
        wire.AgentEventMsg(kind=wire.DONE, error="e", stop_reason=wire.STOP_REASON_ERROR),
        RunEnded(EndReason.ERROR, "e"),
    ),
]


@pytest.mark.req("adapter.sources")
@pytest.mark.parametrize(("message", "what"), FED)
def test_every_feed_event_is_parsed(message: wire.AgentEventMsg, what: object) -> None:
    message.MergeFrom(
        wire.AgentEventMsg(
            agent="crab",
            sender="bo",
            timestamp="2026-02-01T00:00:00.250Z",
            run_id="r",
            guest="twin",
            missed=2,
            parent=wire.ParentRun(run_id="p", call_id="K", task=1),
        )
    )
    received = parse_feed_event(message)
    assert (received and received.event) == what
    if received is not None:
        assert received == ReceivedEvent(
            run="r",
            event=received.event,
            at=1769904000250,
            parent=ParentCall("p", "K", 1),
            guest="twin",
            agent="crab",
            sender="bo",
            missed=2,
        )


@pytest.mark.req("adapter.sources")
def test_every_feed_event_has_a_test() -> None:
    # The gateway reads mode changes itself; they are not part of a turn.
    others = {wire.MODE_CHANGED}
    assert {message.kind for message, _ in FED} == set(wire.AgentEventKind.values()) - others
    newer = wire.AgentEventMsg(kind=199, run_id="r")  # type: ignore[arg-type]
    assert parse_feed_event(newer) is None


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00.5+01:00", 500),
        ("1970-01-01T00:00:00", 0),
        ("1960-01-01T00:00:00Z", 0),
        ("", 0),
        ("yesterday", 0),
    ],
)
def test_a_timestamp_becomes_milliseconds_and_an_invalid_one_zero(timestamp: str, at: int) -> None:
    assert parse_timestamp(timestamp) == at


@pytest.mark.req("stream.times.increase")
def test_times_increase_whatever_the_clocks_do() -> None:
    session = AdapterSession()
    for at in (5000, 4000, 0, 5000):
        session.handle_event(TextPiece("a\n"), at=at)
        session.check_envelopes(session.adapter.write_notice("x", at))
    session.handle_event(RunEnded(EndReason.COMPLETED), at=1)
    times = [e.time for e in session.envelopes]
    assert times == list(range(5000, 5000 + len(times)))


# ── Whose it is ─────────────────────────────────────────────────────────────────────────────────


def make_feed_event(run: str, kind: Any = wire.TEXT_DELTA, **parent: str) -> wire.AgentEventMsg:
    message = wire.AgentEventMsg(agent="worker", sender="delegate:1", run_id=run, kind=kind)
    if parent:
        message.parent.CopyFrom(wire.ParentRun(**parent))  # type: ignore[arg-type]
    return message


@pytest.mark.req("adapter.switchboard")
def test_a_delegated_run_belongs_to_the_conversation_that_started_it() -> None:
    resolver = ConversationResolver()
    own = wire.AgentEventMsg(agent="crab", sender="bo", run_id="r")
    assert resolver.find_conversation(own) == ("crab", "bo")
    child = {"agent": "crab", "sender": "bo", "run_id": "r"}
    assert resolver.find_conversation(make_feed_event("c", **child)) == ("crab", "bo")
    grandchild = {"agent": "worker", "sender": "delegate:1", "run_id": "c"}
    assert resolver.find_conversation(make_feed_event("g", **grandchild)) == ("crab", "bo")
    assert resolver.find_conversation(make_feed_event("c", wire.DONE, **child)) == ("crab", "bo")
    # In the background it outlives the run that started it.
    assert resolver.find_conversation(make_feed_event("g", **grandchild)) == ("crab", "bo")
    assert resolver.find_conversation(make_feed_event("g", wire.DONE, **grandchild)) == (
        "crab",
        "bo",
    )
    assert resolver.find_conversation(make_feed_event("other", **grandchild)) is None


@pytest.mark.req("adapter.switchboard")
def test_runs_that_never_end_are_eventually_forgotten() -> None:
    resolver = ConversationResolver()
    child = {"agent": "crab", "sender": "bo", "run_id": "r"}
    for number in range(5000):
        resolver.find_conversation(make_feed_event(f"c{number}", **child))
    grandchild = {"agent": "worker", "sender": "delegate:1"}
    assert resolver.find_conversation(make_feed_event("g", run_id="c0", **grandchild)) is None
    assert resolver.find_conversation(make_feed_event("g", run_id="c4999", **grandchild)) == (
        "crab",
        "bo",
    )
