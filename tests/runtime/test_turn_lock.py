"""The line of a conversation: one at a time, in the order they came, whoever gives up."""

import asyncio
import gc
import weakref

import pytest

from crabtalk.runtime.turn_lock import TurnLock
from tests.runtime.scripted_provider import TEST_TIMEOUT


async def acquire_turn(line: TurnLock, place: asyncio.Future[None]) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await line.acquire(place)


async def test_the_first_one_need_not_wait() -> None:
    line = TurnLock()
    was_idle = [line.is_idle]
    place = line.enqueue()
    assert place.done()
    was_idle.append(line.is_idle)
    await acquire_turn(line, place)
    line.release()
    assert [*was_idle, line.is_idle] == [True, False, True]


async def test_turns_come_in_the_order_of_joining_not_of_waiting() -> None:
    line = TurnLock()
    places = [line.enqueue() for _ in range(5)]
    order: list[int] = []

    async def take(number: int) -> None:
        await acquire_turn(line, places[number])
        order.append(number)
        line.release()

    async with asyncio.TaskGroup() as tasks:
        for number in reversed(range(5)):
            tasks.create_task(take(number))
    assert order == [0, 1, 2, 3, 4]
    assert line.is_idle


async def test_only_one_has_their_turn() -> None:
    line = TurnLock()
    first, second, third = line.enqueue(), line.enqueue(), line.enqueue()
    assert [first.done(), second.done(), third.done()] == [True, False, False]
    line.release()
    assert [second.done(), third.done()] == [True, False]


async def test_whoever_comes_first_on_purpose_is_next() -> None:
    line = TurnLock()
    line.enqueue()
    last, next_one = line.enqueue(), line.enqueue(first=True)
    line.release()
    assert [next_one.done(), last.done()] == [True, False]


async def test_first_in_an_empty_line_has_their_turn_at_once() -> None:
    line = TurnLock()
    assert line.enqueue(first=True).done()
    assert not line.enqueue().done()


async def start_waiter(line: TurnLock, place: asyncio.Future[None]) -> asyncio.Task[None]:
    """Somebody who waits for that place, and has begun to."""
    task = asyncio.ensure_future(line.acquire(place))
    await asyncio.wait([task], timeout=0)
    return task


async def cancel_waiter(line: TurnLock, place: asyncio.Future[None]) -> None:
    task = await start_waiter(line, place)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_place_that_was_given_up_holds_up_nobody() -> None:
    line = TurnLock()
    line.enqueue()
    gone, behind = line.enqueue(), line.enqueue()
    await cancel_waiter(line, gone)
    line.release()
    assert behind.done()


@pytest.mark.parametrize("order", ["cancelled first", "reached first"])
async def test_a_turn_given_up_in_the_moment_it_comes_passes_to_the_next(order: str) -> None:
    line = TurnLock()
    line.enqueue()
    gone, behind = line.enqueue(), line.enqueue()
    task = await start_waiter(line, gone)
    if order == "cancelled first":
        task.cancel()
        line.release()
    else:
        line.release()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert behind.done()
    line.release()
    assert line.is_idle


@pytest.mark.one_loop
async def test_a_place_that_was_given_up_is_not_remembered() -> None:
    """Otherwise people who come and go behind a long turn would fill the memory."""
    line = TurnLock()
    line.enqueue()
    place = line.enqueue()
    remembered = weakref.ref(place)
    await cancel_waiter(line, place)
    del place
    gc.collect()
    assert remembered() is None
