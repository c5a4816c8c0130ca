"""Killed at any moment, a gateway loses nothing and answers nothing twice."""

from pathlib import Path

import pytest

from tests.component.gateway.siege import siege

pytestmark = [pytest.mark.one_loop, pytest.mark.req("gateways.once.kill")]


@pytest.mark.timeout(180)
async def test_ten_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await siege(tmp_path, rounds=10, seed=12)
    assert report.is_clean, report
    assert report.kills == 10
    assert report.said > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_two_hundred_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await siege(tmp_path, rounds=200, seed=34)
    assert report.is_clean, report
    assert report.kills == 200
