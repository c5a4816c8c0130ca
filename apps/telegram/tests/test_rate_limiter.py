"""The rate limiter is never faster than Telegram allows."""

import asyncio

import pytest

from crabtalk.gateway import RetryLaterError
from crabtalk_telegram.rate_limiter import BURST_SIZE, MAX_GROUPS, RateLimiter

pytestmark = [pytest.mark.one_loop, pytest.mark.req("telegram.pace")]


async def test_a_burst_is_sent_at_once_and_the_rest_at_the_limited_rate() -> None:
    loop = asyncio.get_running_loop()
    pace = RateLimiter(a_second=100.0)
    started_at = loop.time()
    await asyncio.gather(*(pace.wait_to_send() for _ in range(BURST_SIZE + 10)))
    assert loop.time() - started_at >= 0.09


async def test_an_edit_that_would_have_to_wait_is_refused() -> None:
    pace = RateLimiter(a_second=1.0)
    waiting = [asyncio.ensure_future(pace.wait_to_send()) for _ in range(BURST_SIZE + 5)]
    await asyncio.sleep(0)
    with pytest.raises(RetryLaterError) as caught:
        await pace.wait_to_edit("7", is_group=False)
    assert caught.value.seconds > 1
    for item in waiting:
        item.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_edits_in_a_group_are_less_frequent() -> None:
    pace = RateLimiter(a_second=1e6, group_every=60.0)
    await pace.wait_to_edit("7", is_group=False)
    await pace.wait_to_edit("7", is_group=False)
    await pace.wait_to_edit("-5", is_group=True)
    with pytest.raises(RetryLaterError):
        await pace.wait_to_edit("-5", is_group=True)
    for number in range(MAX_GROUPS):
        await pace.wait_to_edit(f"-1{number}", is_group=True)
    await pace.wait_to_edit("-5", is_group=True)
