"""Sources: the stream of a turn and the feed of all of them, as the wire has them."""

from typing import Any

import pytest

from apps.web.tests.adapter.session import Session
from crabtalk.protocol import wire
from crabtalk_web.adapter import Heard, StreamReader, Switchboard, from_feed
from crabtalk_web.adapter.happenings import (
    Asked,
    Began,
    Call,
    Called,
    Compacted,
    Ended,
    Option,
    Parent,
    Piece,
    Question,
    Reason,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)
from crabtalk_web.adapter.sources import milliseconds

ASK = wire.AskUserEvent(
    ask_id="a",
    questions=[
        wire.AskQuestion(
            question="Q", header="H", options=[wire.AskOption(label="L")], multi_select=True
        )
    ],
)
ASKED = Asked("a", (Question("Q", "H", (Option("L"),), multi_select=True),))
CALLS = [wire.ToolCallInfo(name="bash", arguments="{}", id="k")]
USAGE = wire.TokenUsage(prompt_tokens=9, completion_tokens=2, cache_hit_tokens=4)


@pytest.mark.parametrize(
    ("event", "what"),
    [
        (wire.StreamStart(agent="crab", run_id="r"), Began("hi")),
        (wire.StreamChunk(content="x"), Piece("x")),
        (wire.StreamThinking(content="x"), Piece("x", thinking=True)),
        (wire.TextStartEvent(), None),
        (wire.TextEndEvent(), SegmentOver()),
        (wire.ThinkingStartEvent(), None),
        (wire.ThinkingEndEvent(), SegmentOver()),
        (wire.ToolStartEvent(calls=CALLS, early=True), None),
        (wire.ToolStartEvent(calls=CALLS), Called((Call("k", "bash", "{}"),))),
        (
            wire.ToolResultEvent(call_id="k", output="o", duration_ms=3, is_error=True),
            Returned("k", "o", is_error=True, duration_ms=3),
        ),
        (wire.ToolsCompleteEvent(), StepOver()),
        (ASK, ASKED),
        (wire.UserSteeredEvent(content="x"), Steered("x")),
        (wire.ContextUsageEvent(usage=USAGE), Used(9, 2, 4)),
        (
            wire.StreamEnd(error="e", stop_reason=wire.STOP_REASON_ERROR),
            Ended(Reason.ERROR, "e"),
        ),
        (wire.StreamEnd(), Ended(Reason.UNKNOWN)),
    ],
)
@pytest.mark.req("adapter.sources")
def test_every_event_of_a_stream_is_understood(event: Any, what: object) -> None:
    reader = StreamReader("crab", "bo", said="hi", run="r")
    field = next(
        f.name
        for f in wire.StreamEvent.DESCRIPTOR.fields
        if f.message_type is not None and f.message_type.name == type(event).__name__
    )
    for form in (event, wire.StreamEvent(**{field: event})):
        heard = reader.read(form, 7)
        assert (heard and heard.what) == what
        if heard is not None:
            assert heard == Heard(
                run="r", what=heard.what, at=7, agent="crab", sender="bo", is_streamed=True
            )


@pytest.mark.req("adapter.sources")
def test_no_event_of_a_stream_is_left_out() -> None:
    names = {f.message_type.name for f in wire.StreamEvent.DESCRIPTOR.fields if f.message_type}
    marks = test_every_event_of_a_stream_is_understood.pytestmark
    (rows,) = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    assert {type(event).__name__ for event, _ in rows} == names
    assert StreamReader("crab", "bo").read(wire.StreamEvent(), 1) is None


@pytest.mark.req("adapter.guests")
def test_a_stream_that_another_agent_starts_is_a_guests() -> None:
    reader = StreamReader("crab", "bo")
    heard = reader.read(wire.StreamStart(agent="twin", run_id="r"), 1)
    assert heard is not None
    assert heard.guest == "twin"
    heard = reader.read(wire.StreamChunk(content="x"), 2)
    assert heard is not None
    assert (heard.guest, heard.run) == ("twin", "r")


def test_a_stream_of_a_daemon_that_gives_no_run_has_one_of_its_own() -> None:
    heard = StreamReader("crab", "bo").read(wire.StreamStart(agent="crab"), 17)
    assert heard is not None
    assert heard.run == "stream:17"


FED = [
    (wire.AgentEventMsg(kind=wire.TURN_START, content="hi"), Began("hi")),
    (wire.AgentEventMsg(kind=wire.TEXT_START), None),
    (wire.AgentEventMsg(kind=wire.TEXT_DELTA, content="x"), Piece("x")),
    (wire.AgentEventMsg(kind=wire.TEXT_END), SegmentOver()),
    (wire.AgentEventMsg(kind=wire.THINKING_START), None),
    (wire.AgentEventMsg(kind=wire.THINKING_DELTA, content="x"), Piece("x", thinking=True)),
    (wire.AgentEventMsg(kind=wire.THINKING_END), SegmentOver()),
    (
        wire.AgentEventMsg(kind=wire.TOOL_START, tool_calls=CALLS),
        Called((Call("k", "bash", "{}"),)),
    ),
    (
        wire.AgentEventMsg(
            kind=wire.TOOL_RESULT, call_id="k", content="9ms", tool_output="o", tool_is_error=True
        ),
        Returned("k", "o", is_error=True),
    ),
    (wire.AgentEventMsg(kind=wire.TOOLS_COMPLETE), StepOver()),
    (wire.AgentEventMsg(kind=wire.ASK_USER, ask=ASK), ASKED),
    (wire.AgentEventMsg(kind=wire.REFUSED, content="no", call_id="k"), None),
    (wire.AgentEventMsg(kind=wire.TOOL_PROGRESS, content="3/10", call_id="k"), None),
    (wire.AgentEventMsg(kind=wire.USER_STEERED, content="x"), Steered("x")),
    (wire.AgentEventMsg(kind=wire.CONTEXT_USAGE, usage=USAGE), Used(9, 2, 4)),
    (wire.AgentEventMsg(kind=wire.COMPACTED, content="t"), Compacted("t")),
    (
        wire.AgentEventMsg(
            kind=wire.DONE, content="qwen3 1 in", stop_reason=wire.STOP_REASON_CANCELLED
        ),
        Ended(Reason.CANCELLED),
    ),
    (
        wire.AgentEventMsg(kind=wire.DONE, error="e", stop_reason=wire.STOP_REASON_ERROR),
        Ended(Reason.ERROR, "e"),
    ),
]


@pytest.mark.req("adapter.sources")
@pytest.mark.parametrize(("message", "what"), FED)
def test_every_kind_of_the_feed_is_understood(message: wire.AgentEventMsg, what: object) -> None:
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
    heard = from_feed(message)
    assert (heard and heard.what) == what
    if heard is not None:
        assert heard == Heard(
            run="r",
            what=heard.what,
            at=1769904000250,
            parent=Parent("p", "K", 1),
            guest="twin",
            agent="crab",
            sender="bo",
            missed=2,
        )


@pytest.mark.req("adapter.sources")
def test_no_kind_of_the_feed_is_left_out() -> None:
    # The gateway reads changes of the mode itself: they are no part of a turn.
    others = {wire.MODE_CHANGED}
    assert {message.kind for message, _ in FED} == set(wire.AgentEventKind.values()) - others
    newer = wire.AgentEventMsg(kind=199, run_id="r")  # type: ignore[arg-type]
    assert from_feed(newer) is None


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
def test_a_timestamp_is_milliseconds_and_an_odd_one_is_long_ago(timestamp: str, at: int) -> None:
    assert milliseconds(timestamp) == at


@pytest.mark.req("stream.times.increase")
def test_times_grow_however_the_clocks_went() -> None:
    session = Session()
    for at in (5000, 4000, 0, 5000):
        session.hear(Piece("a\n"), at=at)
        session.take(session.adapter.note("x", at))
    session.hear(Ended(Reason.COMPLETED), at=1)
    times = [e.time for e in session.envelopes]
    assert times == list(range(5000, 5000 + len(times)))


# ── Whose it is ─────────────────────────────────────────────────────────────────────────────────


def fed(run: str, kind: Any = wire.TEXT_DELTA, **parent: str) -> wire.AgentEventMsg:
    message = wire.AgentEventMsg(agent="worker", sender="delegate:1", run_id=run, kind=kind)
    if parent:
        message.parent.CopyFrom(wire.ParentRun(**parent))  # type: ignore[arg-type]
    return message


@pytest.mark.req("adapter.switchboard")
def test_a_delegated_run_belongs_to_the_conversation_that_set_it_off() -> None:
    board = Switchboard()
    own = wire.AgentEventMsg(agent="crab", sender="bo", run_id="r")
    assert board.pair_of(own) == ("crab", "bo")
    child = {"agent": "crab", "sender": "bo", "run_id": "r"}
    assert board.pair_of(fed("c", **child)) == ("crab", "bo")
    grandchild = {"agent": "worker", "sender": "delegate:1", "run_id": "c"}
    assert board.pair_of(fed("g", **grandchild)) == ("crab", "bo")
    assert board.pair_of(fed("c", wire.DONE, **child)) == ("crab", "bo")
    # In the background, it outlives whoever set it off.
    assert board.pair_of(fed("g", **grandchild)) == ("crab", "bo")
    assert board.pair_of(fed("g", wire.DONE, **grandchild)) == ("crab", "bo")
    assert board.pair_of(fed("other", **grandchild)) is None


@pytest.mark.req("adapter.switchboard")
def test_runs_that_never_end_are_forgotten_at_some_point() -> None:
    board = Switchboard()
    child = {"agent": "crab", "sender": "bo", "run_id": "r"}
    for number in range(5000):
        board.pair_of(fed(f"c{number}", **child))
    grandchild = {"agent": "worker", "sender": "delegate:1"}
    assert board.pair_of(fed("g", run_id="c0", **grandchild)) is None
    assert board.pair_of(fed("g", run_id="c4999", **grandchild)) == ("crab", "bo")
