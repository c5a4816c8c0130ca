"""Killed at any moment, and cut off by the network, it loses nothing and answers nothing twice."""

from pathlib import Path

import pytest

from apps.wechat.tests.siege import siege

pytestmark = [pytest.mark.one_loop, pytest.mark.req("wechat.kill")]


@pytest.mark.timeout(240)
async def test_five_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await siege(tmp_path, rounds=5, seed=12)
    assert report.is_clean, report
    assert report.kills == 5
    assert report.said >= 8


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_two_hundred_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    report = await siege(tmp_path, rounds=200, seed=34)
    assert report.is_clean, report
    assert report.kills == 200
