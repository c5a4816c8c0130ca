"""kill -9 of gateway, relay and daemon at random moments."""

import logging
from pathlib import Path

import pytest

from apps.web.tests.gateway.delivery_crashes import DeliveryCrashRun
from apps.web.tests.gateway.gateway_crashes import GatewayCrashRun

log = logging.getLogger(__name__)


@pytest.mark.one_loop
@pytest.mark.timeout(120)
@pytest.mark.req("gateway.crash")
async def test_ten_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await GatewayCrashRun(tmp_path, "ten").run(10)
    assert report.kills["gateway"] > 2
    assert report.kills["relay"] > 0


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(600)
@pytest.mark.req("gateway.crash")
async def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await GatewayCrashRun(tmp_path, "hundred").run(100)
    assert report.rounds == 100
    assert report.turns > 200
    assert report.files > 20


@pytest.mark.one_loop
@pytest.mark.timeout(180)
@pytest.mark.req("gateway.delivery.crash")
async def test_kills_of_gateway_and_daemon_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await DeliveryCrashRun(tmp_path, "few").run(10)
    assert report.kills["gateway"] > 0
    assert report.kills["daemon"] > 0
    assert report.messages > 0


@pytest.mark.slow
@pytest.mark.one_loop
@pytest.mark.timeout(3000)
@pytest.mark.req("gateway.delivery.crash")
async def test_three_hundred_kills_of_each_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    report = await DeliveryCrashRun(tmp_path, "three hundred").run(700)
    log.info("%s", report)
    assert min(report.kills["gateway"], report.kills["daemon"]) >= 300
    assert report.failed_calls > 20
