"""kill -9 of gateway and relay at random points."""

from pathlib import Path

import pytest

from apps.web.tests.gateway.siege import Siege


@pytest.mark.one_loop
@pytest.mark.timeout(120)
@pytest.mark.req("gateway.crash")
async def test_ten_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await Siege(tmp_path, "ten").carry_out(10)
    assert report.kills["gateway"] > 2
    assert report.kills["relay"] > 1


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(600)
@pytest.mark.req("gateway.crash")
async def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await Siege(tmp_path, "hundred").carry_out(100)
    assert report.rounds == 100
    assert report.turns > 200
    assert report.files > 20
