"""Events on their way to a reader: in order, bounded, and free once nobody reads."""

import asyncio

from crabtalk.model import ToolCall
from crabtalk.runtime import (
    Done,
    Event,
    Limits,
    Run,
    StopReason,
    TextDelta,
    ToolDispatch,
    ToolProgress,
    ToolResult,
)
from crabtalk.runtime.outlet import Outlet
from crabtalk.storage import Storage
from tests.runtime.provider import PATIENCE, ScriptedProvider, calls, says
from tests.runtime.world import Tools, World, assistant, ended, kept, told, user

NUMBERS = [str(n) for n in range(1000)]


def delta(number: int) -> TextDelta:
    return TextDelta(str(number))


async def next_of(outlet: Outlet) -> Event:
    async with asyncio.timeout(PATIENCE):
        return await outlet.next()


async def test_events_come_out_in_order() -> None:
    outlet = Outlet(8)
    for n in range(5):
        outlet.push(delta(n))
    assert [await next_of(outlet) for _ in range(5)] == [delta(n) for n in range(5)]


async def test_a_reader_waits_for_an_event() -> None:
    outlet = Outlet(8)
    reader = asyncio.ensure_future(next_of(outlet))
    asyncio.get_running_loop().call_soon(outlet.push, delta(1))
    assert await reader == delta(1)


async def test_a_writer_waits_for_room_and_has_it_when_the_reader_catches_up() -> None:
    outlet = Outlet(2)
    is_full = []
    for n in range(2):
        outlet.push(delta(n))
        is_full.append(outlet.full)
    assert is_full == [False, True]
    writer = asyncio.ensure_future(outlet.room())
    _, pending = await asyncio.wait([writer], timeout=0)
    assert pending
    await next_of(outlet)
    async with asyncio.timeout(PATIENCE):
        await writer


async def test_a_writer_does_not_wait_for_a_reader_that_left() -> None:
    outlet = Outlet(1)
    outlet.push(delta(0))
    writer = asyncio.ensure_future(outlet.room())
    await asyncio.wait([writer], timeout=0)
    outlet.close()
    async with asyncio.timeout(PATIENCE):
        await writer
    outlet.push(delta(1))
    assert not outlet.full
    async with asyncio.timeout(PATIENCE):
        await outlet.room()


async def test_a_reader_that_gave_up_waiting_can_come_back() -> None:
    outlet = Outlet(1)
    reader = asyncio.ensure_future(outlet.next())
    await asyncio.wait([reader], timeout=0)
    reader.cancel()
    await asyncio.wait([reader])
    outlet.push(delta(0))
    assert await next_of(outlet) == delta(0)


async def read(run: Run, number: int) -> list[Event]:
    """The first events of a run, whose reader then pauses."""
    async with asyncio.timeout(PATIENCE):
        return [await run.outlet.next() for _ in range(number)]


async def test_a_slow_reader_slows_its_own_run_and_no_other(world: World) -> None:
    model = ScriptedProvider(says(*NUMBERS), "Hello.")
    runtime = world.runtime(model, limits=Limits(stream_events=10))
    slow = runtime.start("crab", "Count!")
    first = await read(slow, 2)
    other = await told(runtime.stream("crab", "Hi", sender="other"))
    assert isinstance(other[-1], Done)
    assert model.sent[0] == 10  # with the brackets before them, two more than were read
    rest = await told(slow.events())
    said = [event.text for event in [*first, *rest] if isinstance(event, TextDelta)]
    assert said == NUMBERS
    assert isinstance(rest[-1], Done)


async def test_a_reader_that_keeps_up_never_slows_its_run(world: World) -> None:
    runtime = world.runtime(ScriptedProvider(says(*NUMBERS)), limits=Limits(stream_events=1))
    events = await told(runtime.stream("crab", "Count!"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == NUMBERS


async def test_a_reader_that_left_does_not_hold_up_a_detached_run(
    storage: Storage, world: World
) -> None:
    runtime = world.runtime(
        ScriptedProvider(says(*NUMBERS)), storage, limits=Limits(stream_events=10)
    )
    run = runtime.start("crab", "Count!", detached=True)
    events = run.events()
    async with asyncio.timeout(PATIENCE):
        await anext(events)
        await events.aclose()
    assert (await ended(run)).reason is StopReason.COMPLETED
    assert await kept(storage) == [user("Count!"), assistant("".join(NUMBERS))]


async def test_whoever_only_waits_for_the_end_slows_nothing(world: World) -> None:
    runtime = world.runtime(ScriptedProvider(says(*NUMBERS)), limits=Limits(stream_events=1))
    assert (await ended(runtime.start("crab", "Count!"))).text == "".join(NUMBERS)


async def test_progress_reaches_a_reader_that_follows_and_fills_no_queue_of_one_that_does_not(
    world: World,
) -> None:
    async def dig(call: ToolDispatch) -> str:
        for depth in range(1000):
            call.run.emit(ToolProgress(call.call_id, f"{depth} deep", depth, 1000))
        return "dug"

    tools = Tools(dig=dig)
    model = ScriptedProvider(calls(ToolCall("c1", "dig", "{}")), "Done.")
    events = await told(
        world.runtime(model, hook=tools, limits=Limits(stream_events=16)).stream("crab", "!")
    )
    seen = [event.progress for event in events if isinstance(event, ToolProgress)]
    assert 0 < len(seen) <= 16
    assert seen == list(range(len(seen))), "the first of it, in order"
    assert sum(isinstance(event, ToolProgress) for event in tools.heard) == 1000
    assert [event.output for event in events if isinstance(event, ToolResult)] == ["dug"]
    assert isinstance(events[-1], Done)
