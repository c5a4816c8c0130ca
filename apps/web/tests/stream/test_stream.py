"""Ids, times, odd values and the order of envelopes."""

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
    LARGEST,
    Envelope,
    EnvelopeError,
    File,
    Image,
    Order,
    OrderError,
    Service,
    Start,
    Stop,
    Text,
    Times,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    Usage,
    check,
    decode,
    decode_body,
    derived_id,
    encode,
    is_cuid,
    is_own,
    new_id,
)
from crabtalk_web.stream.plain import parsed

ID, TURN, SUB = derived_id("id"), derived_id("turn"), derived_id("subagent")


def agent(event: Any, **parts: Any) -> Envelope:
    return Envelope(**{"id": ID, "time": 5, "role": "agent", "turn": TURN, **parts}, ev=event)


def tool(**parts: Any) -> ToolCallStart:
    given = {"call": "k", "name": "grep", "title": "t", "description": "d", "args": {}}
    return ToolCallStart(**{**given, **parts})


def odd(event: Any, **parts: Any) -> Any:
    """What no type checker would let pass."""
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
    code = "from crabtalk_web.stream import derived_id; print(derived_id('a', 1, '\\ud800é'))"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == derived_id("a", 1, "\ud800é")
    assert is_own(other)


@pytest.mark.req("stream.ids.derived")
@given(*[st.lists(st.text(max_size=4) | st.integers(0, 9), min_size=1, max_size=4)] * 2)
def test_ids_of_different_things_differ(one: list[str | int], other: list[str | int]) -> None:
    assert (derived_id(*one) == derived_id(*other)) == (one == other)


@pytest.mark.req("stream.ids.shape")
@given(st.text(alphabet="az09AZ_-\n é", max_size=34))
def test_ids_of_others_are_told_by_their_letters_and_their_length(text: str) -> None:
    assert is_cuid(text) == bool(re.fullmatch("[0-9a-z]{2,32}", text))


@pytest.mark.req("stream.times.increase")
@given(st.lists(st.integers(0, 50)))
def test_times_only_ever_grow_and_are_never_early(clock: list[int]) -> None:
    times = Times()
    given_out = [times.next(at) for at in clock]
    assert given_out == sorted(set(given_out))
    assert all(out >= at for out, at in zip(given_out, clock, strict=True))


# ── Odd values ──────────────────────────────────────────────────────────────────────────────────

BROKEN = "a\ud800b\udc00\ud83e\udd80"
MENDED = "a\ufffdb\ufffd🦀"


@pytest.mark.req("stream.strict.text")
def test_half_a_surrogate_pair_is_replaced_before_it_leaves() -> None:
    said = decode(encode(agent(tool(call=BROKEN, args={BROKEN: [BROKEN]}))))
    assert said.ev == tool(call=MENDED, args={MENDED: [MENDED]})


@pytest.mark.req("stream.reading.odd")
def test_half_a_surrogate_pair_is_replaced_as_it_is_read() -> None:
    data = json.dumps(msgspec.to_builtins(agent(Text(text=BROKEN))))
    assert "\\ud800" in data
    assert decode(data).ev == Text(text=MENDED)


@pytest.mark.req("stream.reading.odd")
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_what_is_no_number_of_json_is_refused_wherever_it_is(number: str) -> None:
    with pytest.raises(EnvelopeError):
        parsed(f"[{number}]")
    data = '{"id":"a","time":1,"role":"user","ev":{"t":"file","ref":"","name":"","size":1}}'
    assert decode(data).time == 1
    for place in ("time", "size"):
        with pytest.raises(EnvelopeError):
            decode(data.replace(f'"{place}":1', f'"{place}":{number}'))
    with pytest.raises(EnvelopeError):
        decode(encode(agent(tool())).decode().replace('"args":{}', f'"args":{{"n":{number}}}'))
    assert decode_body(f'{{"role":"agent","content":{{"type":"x","n":{number}}}}}') is None


@pytest.mark.req("stream.strict.numbers")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_nothing_that_is_no_number_leaves(number: float) -> None:
    for event in (tool(args={"a": [number]}), File(ref="r", name="n", size=number)):
        with pytest.raises(EnvelopeError):
            encode(agent(event))
    with pytest.raises(EnvelopeError):
        encode(agent(Text(text="x"), time=number))


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.req("stream.reading.odd")
@pytest.mark.parametrize("depth", [66, 5000, 200_000])
def test_what_is_too_deep_is_refused_both_ways(depth: int) -> None:
    data = encode(agent(tool())).decode()
    deep = "[" * depth + "]" * depth
    with pytest.raises(EnvelopeError):
        decode(data.replace('"args":{}', f'"args":{{"a":{deep}}}'))
    if depth < 200_000:  # Python itself cannot take such a value apart again
        with pytest.raises(EnvelopeError):
            encode(agent(tool(args={"a": nested(depth)})))


@pytest.mark.req("stream.reading.odd")
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_are_too_strange_to_be_passed_over(data: bytes | str) -> None:
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
def test_no_value_is_too_strange_to_be_read_or_passed_over(value: Any) -> None:
    body = decode_body(json.dumps(value))
    assert body is None or body.content is not None


@pytest.mark.req("stream.strict.size")
def test_an_envelope_that_no_relay_would_carry_does_not_leave() -> None:
    assert encode(agent(Text(text="x" * (LARGEST - 200))))
    with pytest.raises(EnvelopeError, match="in pieces"):
        encode(agent(Text(text="x" * LARGEST)))


@pytest.mark.req("stream.strict.profile")
def test_a_name_of_another_kind_leaves_only_for_those_who_know_it() -> None:
    with pytest.raises(EnvelopeError, match="hyphens"):
        encode(agent(tool(name="Bash")))
    assert decode(encode(agent(tool(name="Bash")), is_compat=True)).ev == tool(name="Bash")


@pytest.mark.req("stream.strict.absent")
@pytest.mark.parametrize(
    "envelope",
    [
        agent(Start(), subagent=SUB),
        agent(ToolCallEnd(call="k")),
        agent(File(ref="r", name="n", size=1)),
        agent(Text(text="x"), usage=Usage(input_tokens=1, output_tokens=1)),
        Envelope(id=ID, time=1, role="user", ev=Text(text="x")),
    ],
)
def test_what_is_absent_is_left_out_and_never_null(envelope: Envelope) -> None:
    data = encode(envelope)
    assert b"null" not in data
    assert b'""' not in data
    assert (b'"turn"' in data) == (envelope.role == "agent")


@pytest.mark.parametrize(
    ("envelope", "complaint"),
    [
        (agent(Text(text="x"), turn=""), "turn is missing"),
        (agent(Text(text="x"), id="a" * 32), "id is no id of 24 characters"),
        (agent(Text(text="x"), time=True), "time|no envelope"),
        (agent(Text(text="x"), time=2**53), "time is too far away"),
        (agent(Service(text="x"), role="user"), "role is user, and service is an agent's"),
        (agent(Text(text="x"), role="user", subagent=SUB), "subagent is of a user"),
        (agent(odd(Text, text=7)), "no envelope"),
        (agent(odd(TurnEnd, status="canceled")), "no envelope"),
        (agent(tool(title=" ")), "ev.title is empty"),
        (agent(tool(args={1: 2})), "no envelope|no text"),
        (agent(tool(args={"a": object()})), "no envelope|nothing that JSON has"),
        (agent(ToolCallEnd(call="k", duration_ms=-1)), "durationMs is negative"),
        (
            agent(File(ref="r", name="n", size=1, image=Image(1, 1, ""))),
            "thumbhash is empty; leave the image out",
        ),
    ],
)
@pytest.mark.req("stream.strict.profile")
def test_what_may_not_leave_is_refused_with_a_reason(envelope: Envelope, complaint: str) -> None:
    with pytest.raises(EnvelopeError) as refused:
        check(envelope)
    assert any(part in str(refused.value) for part in complaint.split("|"))


@pytest.mark.req("stream.reading.ignored")
def test_an_agents_words_outside_of_any_turn_are_to_be_ignored_but_for_bare_usage() -> None:
    usage = Usage(input_tokens=1, output_tokens=1)
    assert agent(Text(text="x"), turn="").is_ignored
    assert agent(Service(text="x"), turn="", usage=usage).is_ignored
    assert not agent(Service(text=""), turn="", usage=usage).is_ignored
    assert not agent(Text(text="x")).is_ignored
    assert not agent(Text(text="x"), role="user", turn="").is_ignored


# ── Order ───────────────────────────────────────────────────────────────────────────────────────

INNER = derived_id("inner")
NESTED = tool(call="i", args={"sessionSubagent": INNER})
OPEN = [TurnStart(), tool(), (Start(), SUB)]


def followed(*events: Any) -> Order:
    order = Order()
    for number, event in enumerate(events):
        ev, subagent = event if isinstance(event, tuple) else (event, "")
        order.follow(agent(ev, id=derived_id(number), time=number, subagent=subagent))
    return order


@pytest.mark.req("stream.order.closed")
def test_a_turn_in_which_all_that_begins_ends_is_in_order() -> None:
    inner = [(tool(call="i"), SUB), (ToolCallEnd(call="i"), SUB), (Stop(), SUB)]
    order = followed(*OPEN, *inner, ToolCallEnd(call="k"), TurnEnd(status="completed"))
    assert (order.turn, order.calls, order.agents) == ("", {}, set())


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        ([Text(text="x")], "not of the open turn"),
        ([TurnStart(), TurnStart()], "open already"),
        ([TurnStart(), TurnEnd(status="failed"), TurnStart()], "turn is over"),
        ([TurnStart(), TurnEnd(status="failed"), Text(text="x")], "not of the open turn"),
        ([*OPEN, TurnEnd(status="failed")], "are open"),
        ([*OPEN, tool()], "there before"),
        ([*OPEN, ToolCallEnd(call="x")], "not open"),
        ([*OPEN, (ToolCallEnd(call="k"), SUB)], "not open"),
        ([*OPEN, ToolCallEnd(call="k"), ToolCallEnd(call="k")], "not open"),
        ([*OPEN, ToolCallEnd(call="k"), tool()], "there before"),
        ([*OPEN, (Start(), SUB)], "at work already"),
        ([*OPEN, (Stop(), SUB), (Stop(), SUB)], "not at work"),
        ([*OPEN, (tool(call="i"), SUB), (Stop(), SUB)], "has a call open"),
        ([TurnStart(), (Text(text="x"), SUB)], "not at work"),
        (
            [*OPEN, (NESTED, SUB), (Start(), INNER), (ToolCallEnd(call="i"), SUB), (Stop(), SUB)],
            "delegated to is at work",
        ),
    ],
)
@pytest.mark.req("stream.order.closed")
def test_what_comes_where_it_may_not_is_noticed(events: list[Any], complaint: str) -> None:
    with pytest.raises(OrderError, match=complaint):
        followed(*events)


@pytest.mark.req("stream.times.increase")
def test_a_time_that_does_not_grow_and_an_id_that_comes_back_are_noticed() -> None:
    order = followed(TurnStart())
    with pytest.raises(OrderError, match="not later"):
        order.follow(agent(Text(text="x"), time=0))
    with pytest.raises(OrderError, match="there before"):
        order.follow(agent(Text(text="x"), id=derived_id(0), time=9))
