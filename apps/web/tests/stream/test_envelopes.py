"""Ids, times, unusual values and the order of envelopes."""

import json
import re
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk_web.stream import (
    MAX_ENVELOPE_BYTES,
    Envelope,
    EnvelopeError,
    EnvelopeOrder,
    EnvelopeUsage,
    FileEvent,
    ImagePreview,
    IncreasingClock,
    OrderError,
    ServiceEvent,
    SubagentStart,
    SubagentStop,
    TextEvent,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    check_envelope,
    decode_body,
    decode_envelope,
    derive_id,
    encode_envelope,
    is_cuid,
    is_own_id,
    new_id,
)
from crabtalk_web.stream.json_values import parse_json

ID, TURN, SUB = derive_id("id"), derive_id("turn"), derive_id("subagent")


def make_agent_envelope(event: Any, **parts: Any) -> Envelope:
    return Envelope(**{"id": ID, "time": 5, "role": "agent", "turn": TURN, **parts}, ev=event)


def make_tool_start(**parts: Any) -> ToolCallStart:
    fields = {"call": "k", "name": "grep", "title": "t", "description": "d", "args": {}}
    return ToolCallStart(**{**fields, **parts})


def make_unchecked(event: Any, **parts: Any) -> Any:
    """Make a value that no type checker would accept."""
    return event(**parts)


# ── Ids and times ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("stream.ids.shape")
def test_new_ids_have_the_one_shape_and_are_never_the_same() -> None:
    ids = {new_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(re.fullmatch("[a-z][0-9a-z]{23}", one) for one in ids)
    assert {one[0] for one in ids} == set("abcdefghijklmnopqrstuvwxyz")


@pytest.mark.req("stream.ids.derived")
def test_a_derived_id_is_the_same_in_every_process() -> None:
    code = "from crabtalk_web.stream import derive_id; print(derive_id('a', 1, '\\ud800é'))"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == derive_id("a", 1, "\ud800é")
    assert is_own_id(other)


@pytest.mark.req("stream.ids.derived")
@given(*[st.lists(st.text(max_size=4) | st.integers(0, 9), min_size=1, max_size=4)] * 2)
def test_ids_of_different_things_differ(one: list[str | int], other: list[str | int]) -> None:
    assert (derive_id(*one) == derive_id(*other)) == (one == other)


@pytest.mark.req("stream.ids.shape")
@given(st.text(alphabet="az09AZ_-\n é", max_size=34))
def test_foreign_ids_are_checked_by_letters_and_length(text: str) -> None:
    assert is_cuid(text) == bool(re.fullmatch("[0-9a-z]{2,32}", text))


@pytest.mark.req("stream.times.increase")
@given(st.lists(st.integers(0, 50)))
def test_times_strictly_increase_and_are_never_early(clock: list[int]) -> None:
    times = IncreasingClock()
    given_out = [times.next(at) for at in clock]
    assert given_out == sorted(set(given_out))
    assert all(out >= at for out, at in zip(given_out, clock, strict=True))


# ── Odd values ──────────────────────────────────────────────────────────────────────────────────

BROKEN = "a\ud800b\udc00\ud83e\udd80"
MENDED = "a\ufffdb\ufffd🦀"


@pytest.mark.req("stream.strict.text")
def test_lone_surrogates_are_replaced_when_written() -> None:
    envelope = decode_envelope(
        encode_envelope(make_agent_envelope(make_tool_start(call=BROKEN, args={BROKEN: [BROKEN]})))
    )
    assert envelope.ev == make_tool_start(call=MENDED, args={MENDED: [MENDED]})


@pytest.mark.req("stream.reading.odd")
def test_lone_surrogates_are_replaced_when_read() -> None:
    data = json.dumps(msgspec.to_builtins(make_agent_envelope(TextEvent(text=BROKEN))))
    assert "\\ud800" in data
    assert decode_envelope(data).ev == TextEvent(text=MENDED)


@pytest.mark.req("stream.reading.odd")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_that_are_not_json_are_refused_everywhere(number: str) -> None:
    with pytest.raises(EnvelopeError):
        parse_json(f"[{number}]")
    data = '{"id":"a","time":1,"role":"user","ev":{"t":"file","ref":"","name":"","size":1}}'
    assert decode_envelope(data).time == 1
    for place in ("time", "size"):
        with pytest.raises(EnvelopeError):
            decode_envelope(data.replace(f'"{place}":1', f'"{place}":{number}'))
    with pytest.raises(EnvelopeError):
        decode_envelope(
            encode_envelope(make_agent_envelope(make_tool_start()))
            .decode()
            .replace('"args":{}', f'"args":{{"n":{number}}}')
        )
    assert decode_body(f'{{"role":"agent","content":{{"type":"x","n":{number}}}}}') is None


@pytest.mark.req("stream.strict.numbers")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_json_are_not_written(number: float) -> None:
    for event in (make_tool_start(args={"a": [number]}), FileEvent(ref="r", name="n", size=number)):
        with pytest.raises(EnvelopeError):
            encode_envelope(make_agent_envelope(event))
    with pytest.raises(EnvelopeError):
        encode_envelope(make_agent_envelope(TextEvent(text="x"), time=number))


def nest_lists(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.req("stream.reading.odd")
@pytest.mark.parametrize("depth", [66, 5000, 200_000])
def test_values_that_are_too_deep_are_refused_both_ways(depth: int) -> None:
    data = encode_envelope(make_agent_envelope(make_tool_start())).decode()
    deep = "[" * depth + "]" * depth
    with pytest.raises(EnvelopeError):
        decode_envelope(data.replace('"args":{}', f'"args":{{"a":{deep}}}'))
    if depth < 200_000:  # Python itself cannot destroy such a value
        with pytest.raises(EnvelopeError):
            encode_envelope(make_agent_envelope(make_tool_start(args={"a": nest_lists(depth)})))


@pytest.mark.req("stream.reading.odd")
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_are_read_or_skipped(data: bytes | str) -> None:
    assert decode_body(data) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["role", "content", "t", "ev", "type", "data", "meta", "id", "time"]),
            inner | st.sampled_from(["user", "agent", "session", "text", "file"]),
            max_size=6,
        )
    ),
    max_leaves=20,
)


@pytest.mark.req("stream.reading.odd")
@given(JSON)
def test_any_value_is_read_or_skipped(value: Any) -> None:
    body = decode_body(json.dumps(value))
    assert body is None or body.content is not None


@pytest.mark.req("stream.strict.size")
def test_an_envelope_too_large_for_relays_is_not_written() -> None:
    assert encode_envelope(make_agent_envelope(TextEvent(text="x" * (MAX_ENVELOPE_BYTES - 200))))
    with pytest.raises(EnvelopeError, match="in pieces"):
        encode_envelope(make_agent_envelope(TextEvent(text="x" * MAX_ENVELOPE_BYTES)))


@pytest.mark.req("stream.strict.profile")
def test_compat_tool_names_are_written_only_for_compat_readers() -> None:
    with pytest.raises(EnvelopeError, match="hyphens"):
        encode_envelope(make_agent_envelope(make_tool_start(name="Bash")))
    assert decode_envelope(
        encode_envelope(make_agent_envelope(make_tool_start(name="Bash")), is_compat=True)
    ).ev == make_tool_start(name="Bash")


@pytest.mark.req("stream.strict.absent")
@pytest.mark.parametrize(
    "envelope",
    [
        make_agent_envelope(SubagentStart(), subagent=SUB),
        make_agent_envelope(ToolCallEnd(call="k")),
        make_agent_envelope(FileEvent(ref="r", name="n", size=1)),
        make_agent_envelope(
            TextEvent(text="x"), usage=EnvelopeUsage(input_tokens=1, output_tokens=1)
        ),
        Envelope(id=ID, time=1, role="user", ev=TextEvent(text="x")),
    ],
)
def test_absent_fields_are_left_out_and_never_null(envelope: Envelope) -> None:
    data = encode_envelope(envelope)
    assert b"null" not in data
    assert b'""' not in data
    assert (b'"turn"' in data) == (envelope.role == "agent")


@pytest.mark.parametrize(
    ("envelope", "complaint"),
    [
        (make_agent_envelope(TextEvent(text="x"), turn=""), "turn is missing"),
        (make_agent_envelope(TextEvent(text="x"), id="a" * 32), "id is no id of 24 characters"),
        (make_agent_envelope(TextEvent(text="x"), time=True), "time|no envelope"),
        (make_agent_envelope(TextEvent(text="x"), time=2**53), "time is too far away"),
        (
            make_agent_envelope(ServiceEvent(text="x"), role="user"),
            "role is user, and service is an agent's",
        ),
        (
            make_agent_envelope(TextEvent(text="x"), role="user", subagent=SUB),
            "subagent is of a user",
        ),
        (make_agent_envelope(make_unchecked(TextEvent, text=7)), "no envelope"),
        (make_agent_envelope(make_unchecked(TurnEnd, status="canceled")), "no envelope"),
        (make_agent_envelope(make_tool_start(title=" ")), "ev.title is empty"),
        (make_agent_envelope(make_tool_start(args={1: 2})), "no envelope|no text"),
        (
            make_agent_envelope(make_tool_start(args={"a": object()})),
            "no envelope|nothing that JSON has",
        ),
        (make_agent_envelope(ToolCallEnd(call="k", duration_ms=-1)), "durationMs is negative"),
        (
            make_agent_envelope(FileEvent(ref="r", name="n", size=1, image=ImagePreview(1, 1, ""))),
            "thumbhash is empty; leave the image out",
        ),
    ],
)
@pytest.mark.req("stream.strict.profile")
def test_invalid_envelopes_are_refused_with_a_reason(envelope: Envelope, complaint: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        check_envelope(envelope)
    assert any(part in str(refused.value) for part in complaint.split("|"))


@pytest.mark.req("stream.reading.ignored")
def test_agent_events_outside_of_turns_are_ignored_except_bare_usage() -> None:
    usage = EnvelopeUsage(input_tokens=1, output_tokens=1)
    assert make_agent_envelope(TextEvent(text="x"), turn="").is_ignored
    assert make_agent_envelope(ServiceEvent(text="x"), turn="", usage=usage).is_ignored
    assert not make_agent_envelope(ServiceEvent(text=""), turn="", usage=usage).is_ignored
    assert not make_agent_envelope(TextEvent(text="x")).is_ignored
    assert not make_agent_envelope(TextEvent(text="x"), role="user", turn="").is_ignored


# ── Order ───────────────────────────────────────────────────────────────────────────────────────

INNER = derive_id("inner")
NESTED = make_tool_start(call="i", args={"sessionSubagent": INNER})
OPEN = [TurnStart(), make_tool_start(), (SubagentStart(), SUB)]


def follow_events(*events: Any) -> EnvelopeOrder:
    order = EnvelopeOrder()
    for number, event in enumerate(events):
        ev, subagent = event if isinstance(event, tuple) else (event, "")
        order.check_next(
            make_agent_envelope(ev, id=derive_id(number), time=number, subagent=subagent)
        )
    return order


@pytest.mark.req("stream.order.closed")
def test_a_turn_in_which_everything_ends_is_in_order() -> None:
    inner = [(make_tool_start(call="i"), SUB), (ToolCallEnd(call="i"), SUB), (SubagentStop(), SUB)]
    order = follow_events(*OPEN, *inner, ToolCallEnd(call="k"), TurnEnd(status="completed"))
    assert (order.turn, order.calls, order.agents) == ("", {}, set())


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([TextEvent(text="x")], "not of the open turn"),
        ([TurnStart(), TurnStart()], "open already"),
        ([TurnStart(), TurnEnd(status="failed"), TurnStart()], "turn is over"),
        ([TurnStart(), TurnEnd(status="failed"), TextEvent(text="x")], "not of the open turn"),
        ([*OPEN, TurnEnd(status="failed")], "are open"),
        ([*OPEN, make_tool_start()], "there before"),
        ([*OPEN, ToolCallEnd(call="x")], "not open"),
        ([*OPEN, (ToolCallEnd(call="k"), SUB)], "not open"),
        ([*OPEN, ToolCallEnd(call="k"), ToolCallEnd(call="k")], "not open"),
        ([*OPEN, ToolCallEnd(call="k"), make_tool_start()], "there before"),
        ([*OPEN, (SubagentStart(), SUB)], "at work already"),
        ([*OPEN, (SubagentStop(), SUB), (SubagentStop(), SUB)], "not at work"),
        ([*OPEN, (make_tool_start(call="i"), SUB), (SubagentStop(), SUB)], "has a call open"),
        ([TurnStart(), (TextEvent(text="x"), SUB)], "not at work"),
        (
            [
                *OPEN,
                (NESTED, SUB),
                (SubagentStart(), INNER),
                (ToolCallEnd(call="i"), SUB),
                (SubagentStop(), SUB),
            ],
            "delegated to is at work",
        ),
    ],
)
@pytest.mark.req("stream.order.closed")
def test_misplaced_envelopes_are_noticed(events: list[Any], complaint: str) -> None:
    with pytest.raises(OrderError, match=complaint):
        follow_events(*events)


@pytest.mark.req("stream.times.increase")
def test_repeated_ids_and_times_that_do_not_increase_are_noticed() -> None:
    order = follow_events(TurnStart())
    with pytest.raises(OrderError, match="not later"):
        order.check_next(make_agent_envelope(TextEvent(text="x"), time=0))
    with pytest.raises(OrderError, match="there before"):
        order.check_next(make_agent_envelope(TextEvent(text="x"), id=derive_id(0), time=9))
