"""Not faster than Telegram takes messages."""

import asyncio

import pytest

from crabtalk.component.gateway import TryLater
from crabtalk_telegram.pace import AT_ONCE, MOST_GROUPS, Pace

pytestmark = [pytest.mark.one_loop, pytest.mark.req("telegram.pace")]


async def test_a_few_go_at_once_and_the_rest_one_after_another() -> None:
    loop = asyncio.get_running_loop()
    pace = Pace(a_second=100.0)
    began = loop.time()
    await asyncio.gather(*(pace.send() for _ in range(AT_ONCE + 10)))
    assert loop.time() - began >= 0.09


async def test_a_change_that_would_have_to_wait_is_put_off() -> None:
    pace = Pace(a_second=1.0)
    waiting = [asyncio.ensure_future(pace.send()) for _ in range(AT_ONCE + 5)]
    await asyncio.sleep(0)
    with pytest.raises(TryLater) as caught:
        await pace.change("7", is_group=False)
    assert caught.value.seconds > 1
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_group_is_changed_less_often() -> None:
    pace = Pace(a_second=1e6, group_every=60.0)
    await pace.change("7", is_group=False)
    await pace.change("7", is_group=False)
    await pace.change("-5", is_group=True)
    with pytest.raises(TryLater):
        await pace.change("-5", is_group=True)
    for number in range(MOST_GROUPS):
        await pace.change(f"-1{number}", is_group=True)
    await pace.change("-5", is_group=True)
