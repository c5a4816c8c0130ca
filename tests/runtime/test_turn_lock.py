"""The turn lock of a conversation: one holder at a time, in order of arrival, despite cancels."""

import asyncio
import gc
import weakref

import pytest

from crabtalk.runtime.conversation import TurnLock
from tests.runtime.scripted_provider import TEST_TIMEOUT


async def acquire_turn(lock: TurnLock, place: asyncio.Future[None]) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        await lock.acquire(place)


async def test_the_first_place_need_not_wait() -> None:
    lock = TurnLock()
    was_idle = [lock.is_idle]
    place = lock.enqueue()
    assert place.done()
    was_idle.append(lock.is_idle)
    await acquire_turn(lock, place)
    lock.release()
    assert [*was_idle, lock.is_idle] == [True, False, True]


async def test_the_order_is_that_of_enqueue_not_of_acquire() -> None:
    lock = TurnLock()
    places = [lock.enqueue() for _ in range(5)]
    order: list[int] = []

    async def take(number: int) -> None:
        await acquire_turn(lock, places[number])
        order.append(number)
        lock.release()

    async with asyncio.TaskGroup() as tasks:
        for number in reversed(range(5)):
            tasks.create_task(take(number))
    assert order == [0, 1, 2, 3, 4]
    assert lock.is_idle


async def test_only_one_holds_the_lock() -> None:
    lock = TurnLock()
    first, second, third = lock.enqueue(), lock.enqueue(), lock.enqueue()
    assert [first.done(), second.done(), third.done()] == [True, False, False]
    lock.release()
    assert [second.done(), third.done()] == [True, False]


async def test_a_place_taken_with_first_is_next() -> None:
    lock = TurnLock()
    lock.enqueue()
    last, next_one = lock.enqueue(), lock.enqueue(first=True)
    lock.release()
    assert [next_one.done(), last.done()] == [True, False]


async def test_first_on_a_free_lock_gets_it_at_once() -> None:
    lock = TurnLock()
    assert lock.enqueue(first=True).done()
    assert not lock.enqueue().done()


async def start_waiter(lock: TurnLock, place: asyncio.Future[None]) -> asyncio.Task[None]:
    """A task that is waiting for that place."""
    task = asyncio.ensure_future(lock.acquire(place))
    await asyncio.wait([task], timeout=0)
    return task


async def cancel_waiter(lock: TurnLock, place: asyncio.Future[None]) -> None:
    task = await start_waiter(lock, place)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_cancelled_place_does_not_block_the_queue() -> None:
    lock = TurnLock()
    lock.enqueue()
    gone, behind = lock.enqueue(), lock.enqueue()
    await cancel_waiter(lock, gone)
    lock.release()
    assert behind.done()


@pytest.mark.parametrize("order", ["cancelled first", "reached first"])
async def test_a_turn_cancelled_at_the_moment_it_comes_passes_to_the_next(order: str) -> None:
    lock = TurnLock()
    lock.enqueue()
    gone, behind = lock.enqueue(), lock.enqueue()
    task = await start_waiter(lock, gone)
    if order == "cancelled first":
        task.cancel()
        lock.release()
    else:
        lock.release()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert behind.done()
    lock.release()
    assert lock.is_idle


@pytest.mark.one_loop
async def test_a_cancelled_place_is_freed() -> None:
    """Otherwise clients that come and go behind a long turn would fill the memory."""
    lock = TurnLock()
    lock.enqueue()
    place = lock.enqueue()
    reference = weakref.ref(place)
    await cancel_waiter(lock, place)
    del place
    gc.collect()
    assert reference() is None
