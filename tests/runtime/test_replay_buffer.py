"""Transcripts: whoever reads along has every event once, wherever they begin and however slow they
are. Random events are read against a simple model: the list of all events that were added."""

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


def merge_deltas(found: Sequence[Event]) -> list[Event]:
    """With neighbouring pieces of a text put together: how a text is cut means nothing."""
    whole: list[Event] = []
    for event in found:
        last = whole[-1] if whole else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            whole[-1] = TextDelta(last.text + event.text)
        elif isinstance(event, ThinkingDelta) and isinstance(last, ThinkingDelta):
            whole[-1] = ThinkingDelta(last.text + event.text)
        else:
            whole.append(event)
    return whole


def read_all(transcript: ReplayBuffer, after: int = 0) -> list[NumberedEvent]:
    found: list[NumberedEvent] = []
    while (numbered := transcript.read_next(after)) is not None:
        assert numbered.number > after
        found.append(numbered)
        after = numbered.number
    return found


@pytest.mark.req("delivery.attach.after")
@given(st.lists(events, max_size=60), st.data())
def test_what_a_reader_has_and_what_follows_is_the_whole(
    added: list[Event], data: st.DataObject
) -> None:
    transcript = ReplayBuffer(LARGE)
    for event in added:
        transcript.add(event)
    after = data.draw(st.integers(0, len(added)))
    found = read_all(transcript, after)
    assert merge_deltas([*added[:after], *(each.event for each in found)]) == merge_deltas(added)
    assert transcript.count == len(added)
    assert not found or found[-1].number == len(added)


@pytest.mark.req("delivery.attach.readers")
@given(
    st.lists(st.one_of(events, st.integers(0, 3), st.just("step")), max_size=80),
    st.sampled_from([1, 300, 2000, LARGE]),
)
def test_readers_of_any_pace_have_every_event_once_or_know_what_they_missed(
    script: list[Event | int | str], bound: int
) -> None:
    """Numbers stand for one of four readers that takes one event, `step` for the end of a step. A
    reader whose next event was dropped is sent to the log, for all up to `dropped`."""
    transcript = ReplayBuffer(bound)
    added: list[Event] = []
    place = [0, 0, 0, 0]
    read: list[list[Event]] = [[], [], [], []]

    def take(reader: int) -> bool:
        if place[reader] < transcript.last_dropped:
            read[reader] = added[: transcript.last_dropped]
            place[reader] = transcript.last_dropped
        found = transcript.read_next(place[reader])
        if found is None:
            return False
        read[reader].append(found.event)
        place[reader] = found.number
        return True

    for act in script:
        if isinstance(act, int):
            take(act)
        elif act == "step":
            transcript.end_step(len(added))
            assert transcript.dropped_messages <= len(added)
            assert transcript.size <= bound or transcript.last_dropped == len(added)
        else:
            transcript.add(act)  # type: ignore[arg-type]
            added.append(act)  # type: ignore[arg-type]
    for reader in range(4):
        while take(reader):
            pass
        assert place[reader] == len(added)
        assert merge_deltas(read[reader]) == merge_deltas(added)


@pytest.mark.req("delivery.attach.bounded")
@given(st.lists(st.text(min_size=1, max_size=2000), min_size=1, max_size=60))
def test_a_transcript_is_no_larger_than_its_bound_at_the_end_of_a_step(outputs: list[str]) -> None:
    transcript = ReplayBuffer(4000)
    for number, output in enumerate(outputs, 1):
        transcript.add(ToolStart((ToolCall("c", "look", output),)))
        transcript.add(ToolResult("c", output, 0, False, ()))
        transcript.end_step(2 * number)
        assert transcript.size <= 4000
    held = sum(
        len(each.event.output)
        for each in read_all(transcript, transcript.last_dropped)
        if isinstance(each.event, ToolResult)
    )
    assert held <= 4000
    assert transcript.last_dropped <= transcript.count
    assert transcript.dropped_messages <= 2 * len(outputs)


async def test_a_reader_that_waits_is_woken_by_the_next_event_and_may_leave() -> None:
    transcript = ReplayBuffer(LARGE)
    waiting = [asyncio.ensure_future(transcript.wait_for_events(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    transcript.add(DONE)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting[1:])
    assert transcript.read_next(0) == NumberedEvent(1, DONE)
    assert transcript.read_next(1) is None


def test_a_text_in_ten_thousand_pieces_is_read_as_a_few_events() -> None:
    transcript = ReplayBuffer(LARGE)
    for number in range(10_000):
        transcript.add(TextDelta(f"{number} "))
    found = read_all(transcript)
    assert len(found) < 20
    assert "".join(e.event.text for e in found if isinstance(e.event, TextDelta)) == "".join(
        f"{number} " for number in range(10_000)
    )
