"""The event queue of a run: ordered, bounded, and without cost after its reader has left."""

import asyncio

from crabtalk.model import ToolCall
from crabtalk.runtime import (
    Done,
    Event,
    Run,
    RuntimeLimits,
    StopReason,
    TextDelta,
    ToolDispatch,
    ToolProgress,
    ToolResult,
)
from crabtalk.runtime.run import EventQueue
from crabtalk.storage import Storage
from tests.runtime.runtime_world import (
    RuntimeWorld,
    ScriptedTools,
    assistant_message,
    collect_events,
    read_history,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    TEST_TIMEOUT,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
)

NUMBERS = [str(n) for n in range(1000)]


def make_delta(number: int) -> TextDelta:
    return TextDelta(str(number))


async def read_event(queue: EventQueue) -> Event:
    async with asyncio.timeout(TEST_TIMEOUT):
        return await queue.next_event()


async def test_events_come_out_in_order() -> None:
    queue = EventQueue(8)
    for n in range(5):
        queue.push(make_delta(n))
    assert [await read_event(queue) for _ in range(5)] == [make_delta(n) for n in range(5)]


async def test_a_reader_waits_for_an_event() -> None:
    queue = EventQueue(8)
    reader = asyncio.ensure_future(read_event(queue))
    asyncio.get_running_loop().call_soon(queue.push, make_delta(1))
    assert await reader == make_delta(1)


async def test_a_writer_waits_for_room_and_has_it_when_the_reader_catches_up() -> None:
    queue = EventQueue(2)
    is_full = []
    for n in range(2):
        queue.push(make_delta(n))
        is_full.append(queue.is_full)
    assert is_full == [False, True]
    writer = asyncio.ensure_future(queue.wait_for_room())
    _, pending = await asyncio.wait([writer], timeout=0)
    assert pending
    await read_event(queue)
    async with asyncio.timeout(TEST_TIMEOUT):
        await writer


async def test_a_writer_does_not_wait_for_a_reader_that_left() -> None:
    queue = EventQueue(1)
    queue.push(make_delta(0))
    writer = asyncio.ensure_future(queue.wait_for_room())
    await asyncio.wait([writer], timeout=0)
    queue.close()
    async with asyncio.timeout(TEST_TIMEOUT):
        await writer
    queue.push(make_delta(1))
    assert not queue.is_full
    async with asyncio.timeout(TEST_TIMEOUT):
        await queue.wait_for_room()


async def test_a_reader_that_gave_up_waiting_can_come_back() -> None:
    queue = EventQueue(1)
    reader = asyncio.ensure_future(queue.next_event())
    await asyncio.wait([reader], timeout=0)
    reader.cancel()
    await asyncio.wait([reader])
    queue.push(make_delta(0))
    assert await read_event(queue) == make_delta(0)


async def read_events(run: Run, number: int) -> list[Event]:
    """Reads the first events of a run; then the reader pauses."""
    async with asyncio.timeout(TEST_TIMEOUT):
        return [await run.event_queue.next_event() for _ in range(number)]


async def test_a_slow_reader_slows_its_own_run_and_no_other(world: RuntimeWorld) -> None:
    model = ScriptedProvider(answer_with_text(*NUMBERS), "Hello.")
    runtime = world.make_runtime(model, limits=RuntimeLimits(stream_events=10))
    slow = runtime.start("crab", "Count!")
    first = await read_events(slow, 2)
    other = await collect_events(runtime.stream("crab", "Hi", sender="other"))
    assert isinstance(other[-1], Done)
    assert model.sent_chunks[0] == 10  # with Started and TextStart, two more than were read
    rest = await collect_events(slow.events())
    texts = [event.text for event in [*first, *rest] if isinstance(event, TextDelta)]
    assert texts == NUMBERS
    assert isinstance(rest[-1], Done)


async def test_a_reader_that_keeps_up_never_slows_its_run(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_text(*NUMBERS)), limits=RuntimeLimits(stream_events=1)
    )
    events = await collect_events(runtime.stream("crab", "Count!"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == NUMBERS


async def test_a_reader_that_left_does_not_hold_up_a_detached_run(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_text(*NUMBERS)),
        storage,
        limits=RuntimeLimits(stream_events=10),
    )
    run = runtime.start("crab", "Count!", detached=True)
    events = run.events()
    async with asyncio.timeout(TEST_TIMEOUT):
        await anext(events)
        await events.aclose()
    assert (await wait_for_done(run)).reason is StopReason.COMPLETED
    assert await read_history(storage) == [
        user_message("Count!"),
        assistant_message("".join(NUMBERS)),
    ]


async def test_a_caller_that_only_waits_for_the_end_does_not_slow_the_run(
    world: RuntimeWorld,
) -> None:
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_text(*NUMBERS)), limits=RuntimeLimits(stream_events=1)
    )
    assert (await wait_for_done(runtime.start("crab", "Count!"))).text == "".join(NUMBERS)


async def test_progress_reaches_a_reader_that_follows_and_fills_no_queue_of_one_that_does_not(
    world: RuntimeWorld,
) -> None:
    async def dig(call: ToolDispatch) -> str:
        for depth in range(1000):
            call.run.emit(ToolProgress(call.call_id, f"{depth} deep", depth, 1000))
        return "dug"

    tools = ScriptedTools(dig=dig)
    model = ScriptedProvider(answer_with_calls(ToolCall("c1", "dig", "{}")), "Done.")
    events = await collect_events(
        world.make_runtime(model, hook=tools, limits=RuntimeLimits(stream_events=16)).stream(
            "crab", "!"
        )
    )
    seen = [event.progress for event in events if isinstance(event, ToolProgress)]
    assert 0 < len(seen) <= 16
    assert seen == list(range(len(seen))), "the first of it, in order"
    assert sum(isinstance(event, ToolProgress) for event in tools.events) == 1000
    assert [event.output for event in events if isinstance(event, ToolResult)] == ["dug"]
    assert isinstance(events[-1], Done)
