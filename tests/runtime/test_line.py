"""The line of a conversation: one at a time, in the order they came, whoever gives up."""

import asyncio
import gc
import weakref

import pytest

from crabtalk.runtime.line import Line
from tests.runtime.provider import PATIENCE


async def reach(line: Line, place: asyncio.Future[None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await line.reach(place)


async def test_the_first_one_need_not_wait() -> None:
    line = Line()
    was_idle = [line.idle]
    place = line.join()
    assert place.done()
    was_idle.append(line.idle)
    await reach(line, place)
    line.leave()
    assert [*was_idle, line.idle] == [True, False, True]


async def test_turns_come_in_the_order_of_joining_not_of_waiting() -> None:
    line = Line()
    places = [line.join() for _ in range(5)]
    order: list[int] = []

    async def take(number: int) -> None:
        await reach(line, places[number])
        order.append(number)
        line.leave()

    async with asyncio.TaskGroup() as tasks:
        for number in reversed(range(5)):
            tasks.create_task(take(number))
    assert order == [0, 1, 2, 3, 4]
    assert line.idle


async def test_only_one_has_their_turn() -> None:
    line = Line()
    first, second, third = line.join(), line.join(), line.join()
    assert [first.done(), second.done(), third.done()] == [True, False, False]
    line.leave()
    assert [second.done(), third.done()] == [True, False]


async def test_whoever_comes_first_on_purpose_is_next() -> None:
    line = Line()
    line.join()
    last, next_one = line.join(), line.join(first=True)
    line.leave()
    assert [next_one.done(), last.done()] == [True, False]


async def test_first_in_an_empty_line_has_their_turn_at_once() -> None:
    line = Line()
    assert line.join(first=True).done()
    assert not line.join().done()


async def waiting(line: Line, place: asyncio.Future[None]) -> asyncio.Task[None]:
    """Somebody who waits for that place, and has begun to."""
    task = asyncio.ensure_future(line.reach(place))
    await asyncio.wait([task], timeout=0)
    return task


async def cancelled(line: Line, place: asyncio.Future[None]) -> None:
    task = await waiting(line, place)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_place_that_was_given_up_holds_up_nobody() -> None:
    line = Line()
    line.join()
    gone, behind = line.join(), line.join()
    await cancelled(line, gone)
    line.leave()
    assert behind.done()


@pytest.mark.parametrize("order", ["cancelled first", "reached first"])
async def test_a_turn_given_up_in_the_moment_it_comes_passes_to_the_next(order: str) -> None:
    line = Line()
    line.join()
    gone, behind = line.join(), line.join()
    task = await waiting(line, gone)
    if order == "cancelled first":
        task.cancel()
        line.leave()
    else:
        line.leave()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert behind.done()
    line.leave()
    assert line.idle


@pytest.mark.one_loop
async def test_a_place_that_was_given_up_is_not_remembered() -> None:
    """Otherwise people who come and go behind a long turn would fill the memory."""
    line = Line()
    line.join()
    place = line.join()
    remembered = weakref.ref(place)
    await cancelled(line, place)
    del place
    gc.collect()
    assert remembered() is None
