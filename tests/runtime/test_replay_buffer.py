"""The replay buffer: every reader gets every event once, wherever it begins and however slow it is.
Random events are compared with a simple model: the list of all events that were added."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import ToolCall
from crabtalk.runtime.events import (
    Done,
    Event,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ToolResult,
    ToolStart,
    UserSteered,
)
from crabtalk.runtime.replay_buffer import NumberedEvent, ReplayBuffer

LARGE = 1 << 30
DONE = Done("crab", StopReason.COMPLETED)

texts = st.text(max_size=40)
events: st.SearchStrategy[Event] = st.one_of(
    texts.map(TextDelta),
    texts.map(ThinkingDelta),
    st.just(TextStart("crab")),
    st.just(TextEnd("crab")),
    texts.map(UserSteered),
    texts.map(lambda output: ToolResult("c", output, 0, False, ())),
    texts.map(lambda text: ToolStart((ToolCall("c", "look", text),))),
)


def merge_deltas(events: Sequence[Event]) -> list[Event]:
    """Joins consecutive deltas, since their boundaries have no meaning."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            merged[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ThinkingDelta) and isinstance(last, ThinkingDelta):
            merged[-1] = ThinkingDelta(last.text + event.text)
        else:
            merged.append(event)
    return merged


def read_all(buffer: ReplayBuffer, after: int = 0) -> list[NumberedEvent]:
    numbered_events: list[NumberedEvent] = []
    while (numbered := buffer.read_next(after)) is not None:
        assert numbered.number > after
        numbered_events.append(numbered)
        after = numbered.number
    return numbered_events


@pytest.mark.req("delivery.attach.after")
@given(st.lists(events, max_size=60), st.data())
def test_events_before_and_after_any_number_make_the_whole_run(
    added: list[Event], data: st.DataObject
) -> None:
    buffer = ReplayBuffer(LARGE)
    for event in added:
        buffer.add(event)
    after = data.draw(st.integers(0, len(added)))
    rest = read_all(buffer, after)
    assert merge_deltas([*added[:after], *(item.event for item in rest)]) == merge_deltas(added)
    assert buffer.count == len(added)
    assert not rest or rest[-1].number == len(added)


@pytest.mark.req("delivery.attach.readers")
@given(
    st.lists(st.one_of(events, st.integers(0, 3), st.just("step")), max_size=80),
    st.sampled_from([1, 300, 2000, LARGE]),
)
def test_readers_of_any_pace_have_every_event_once_or_know_what_they_missed(
    script: list[Event | int | str], bound: int
) -> None:
    """A number means that one of four readers takes one event, `step` the end of a step. A reader
    whose next event was dropped gets all events up to `last_dropped` from the log."""
    buffer = ReplayBuffer(bound)
    added: list[Event] = []
    positions = [0, 0, 0, 0]
    read: list[list[Event]] = [[], [], [], []]

    def take(reader: int) -> bool:
        if positions[reader] < buffer.last_dropped:
            read[reader] = added[: buffer.last_dropped]
            positions[reader] = buffer.last_dropped
        numbered = buffer.read_next(positions[reader])
        if numbered is None:
            return False
        read[reader].append(numbered.event)
        positions[reader] = numbered.number
        return True

    for action in script:
        if isinstance(action, int):
            take(action)
        elif action == "step":
            buffer.end_step(len(added))
            assert buffer.dropped_messages <= len(added)
            assert buffer.size <= bound or buffer.last_dropped == len(added)
        else:
            buffer.add(action)  # type: ignore[arg-type]
            added.append(action)  # type: ignore[arg-type]
    for reader in range(4):
        while take(reader):
            pass
        assert positions[reader] == len(added)
        assert merge_deltas(read[reader]) == merge_deltas(added)


@pytest.mark.req("delivery.attach.bounded")
@given(st.lists(st.text(min_size=1, max_size=2000), min_size=1, max_size=60))
def test_a_replay_buffer_is_no_larger_than_its_bound_at_the_end_of_a_step(
    outputs: list[str],
) -> None:
    buffer = ReplayBuffer(4000)
    for number, output in enumerate(outputs, 1):
        buffer.add(ToolStart((ToolCall("c", "look", output),)))
        buffer.add(ToolResult("c", output, 0, False, ()))
        buffer.end_step(2 * number)
        assert buffer.size <= 4000
    held = sum(
        len(item.event.output)
        for item in read_all(buffer, buffer.last_dropped)
        if isinstance(item.event, ToolResult)
    )
    assert held <= 4000
    assert buffer.last_dropped <= buffer.count
    assert buffer.dropped_messages <= 2 * len(outputs)


async def test_a_reader_that_waits_is_woken_by_the_next_event_and_may_leave() -> None:
    buffer = ReplayBuffer(LARGE)
    waiting = [asyncio.ensure_future(buffer.wait_for_events(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    buffer.add(DONE)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    assert buffer.read_next(0) == NumberedEvent(1, DONE)
    assert buffer.read_next(1) is None


def test_a_text_in_ten_thousand_pieces_is_read_as_a_few_events() -> None:
    buffer = ReplayBuffer(LARGE)
    for number in range(10_000):
        buffer.add(TextDelta(f"{number} "))
    items = read_all(buffer)
    assert len(items) < 20
    assert "".join(e.event.text for e in items if isinstance(e.event, TextDelta)) == "".join(
        f"{number} " for number in range(10_000)
    )
