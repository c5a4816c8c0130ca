"""However much of a turn was told as it happened, the rest of it is told once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.web.tests.gateway.phone import in_order, story
from crabtalk.protocol import wire
from crabtalk_web.adapter import Adapter, Heard
from crabtalk_web.adapter.happenings import Ended, Reason, Returned
from crabtalk_web.gateway.catching_up import at, rest_of, turns, untold
from crabtalk_web.stream import Envelope, Text, ToolCallEnd, ToolCallStart

SESSION = "session"
words = st.sampled_from(["a", "b c", "a\n\nb", "x" * 5000, "  y  ", "ä ö"])


@st.composite
def turn(draw: st.DrawFn) -> list[wire.ConversationMessage]:
    """What a conversation keeps of a turn: steps with calls, some steered, and the last word."""
    found = [wire.ConversationMessage(role="user", content=draw(words))]
    for step in range(draw(st.integers(0, 3))):
        count = draw(st.integers(1, 3))
        calls = [
            wire.ToolCallInfo(id=f"c{step}-{n}", name="recall", arguments='{"query":"q"}')
            for n in range(count)
        ]
        found.append(
            wire.ConversationMessage(
                role="assistant",
                content=draw(st.just("") | words),
                reasoning=draw(st.none() | words),
                tool_calls=calls,
            )
        )
        found += [
            wire.ConversationMessage(role="tool", content=f"r{call.id}", call_id=call.id)
            for call in calls
        ]
        if draw(st.booleans()):
            found.append(wire.ConversationMessage(role="user", content=f"steer {step}"))
    found.append(wire.ConversationMessage(role="assistant", content=draw(words)))
    for number, message in enumerate(found):
        message.id = number
        message.timestamp = f"2026-01-01T00:00:{number:02}.000Z"
    return found


def told_by(
    adapter: Adapter, messages: list[wire.ConversationMessage], told: list[Envelope]
) -> list[Envelope]:
    out: list[Envelope] = []
    for heard in rest_of(messages, "run", told, "crab", "user"):
        out += adapter.hear(heard)
    end = Heard(run="run", what=Ended(Reason.COMPLETED), at=at(messages[-1]))
    return out + adapter.hear(end)


def content(envelopes: list[Envelope]) -> list[str]:
    """What people read, in order, however it was cut into pieces."""
    found: list[str] = []
    for envelope in envelopes:
        match envelope.ev:
            case Text(text=text, thinking=thinking):
                found += [f"{envelope.role} {thinking} {word}" for word in "".join(text.split())]
            case ToolCallStart(call=call):
                found.append(f"start {call}")
            case ToolCallEnd(call=call, result=result):
                found.append(f"end {call} {result}")
            case _:
                pass
    return found


@pytest.mark.req("gateway.catch_up")
@given(turn(), st.data())
def test_the_rest_of_a_turn_is_told_once(
    messages: list[wire.ConversationMessage], data: st.DataObject
) -> None:
    shows_output = data.draw(st.booleans())
    whole = told_by(Adapter(SESSION, shows_output=shows_output), messages, [])
    in_order(whole)
    cut = data.draw(st.integers(0, len(whole) - 1))
    if isinstance(whole[cut].ev, ToolCallEnd) and shows_output:
        cut += 1  # what a tool gave back is journalled together with the end of its call
    told = whole[:cut]
    has_begun = any(envelope.turn for envelope in told)
    again = Adapter(SESSION, shows_output=shows_output, history=told)
    if not has_begun and told:
        return  # the words of a person alone are journalled together with the turn's beginning
    rest = told_by(again, messages, told)
    assert content([*told, *rest]) == content(whole), story([*told, *rest])
    in_order([*told, *rest])


@pytest.mark.req("gateway.catch_up")
@given(st.lists(turn(), min_size=1, max_size=4))
def test_turns_are_told_apart_where_people_began_them(
    given_turns: list[list[wire.ConversationMessage]],
) -> None:
    messages = [message for one in given_turns for message in one]
    for number, message in enumerate(messages):
        message.id = number
    found = turns(messages)
    assert [one[0].content for one in found] == [one[0].content for one in given_turns]
    assert [m.id for one in found for m in one] == [m.id for m in messages]


@pytest.mark.req("gateway.catch_up")
@pytest.mark.parametrize(
    ("content", "is_error"),
    [("fine", False), ("permission denied: no", True), ("interrupted: the run was cut off", True)],
)
def test_a_result_says_itself_that_it_is_a_failure(content: str, is_error: bool) -> None:
    message = wire.ConversationMessage(role="tool", content=content, call_id="c")
    (returned,) = [h.what for h in rest_of([message], "run", (), "", "") if has_output(h)]
    assert isinstance(returned, Returned)
    assert returned.is_error is is_error


def has_output(heard: Heard) -> bool:
    return isinstance(heard.what, Returned)


@pytest.mark.req("gateway.catch_up")
def test_what_is_told_is_told_by_number_and_by_time() -> None:
    messages = [
        wire.ConversationMessage(
            role=role, content="x", id=number, timestamp=f"2026-01-01T00:00:0{second}Z"
        )
        for number, (role, second) in enumerate(
            [("user", 1), ("assistant", 2), ("user", 2), ("assistant", 3)]
        )
    ]
    assert [m.id for m in untold(messages, 0, 0)] == [0, 1, 2, 3]
    assert [m.id for m in untold(messages, 1, 0)] == [1, 2, 3]
    # In the very millisecond in which a turn ended, the next one may have begun.
    assert [m.id for m in untold(messages, 0, at(messages[1]))] == [2, 3]
    assert untold(messages, 0, at(messages[3])) == []
    assert all(one < two for one, two in pairwise(m.id for m in messages))
