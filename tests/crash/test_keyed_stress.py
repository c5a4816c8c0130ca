"""The daemon is killed at any moment while clients repeat their messages: each key runs at most
once, and every client gets an outcome that matches the log."""

import asyncio
import os
import secrets
from pathlib import Path

import pytest

from tests.crash.keyed_stress import KeyedReport, run_keyed_stress


def run_seeded_stress(home: Path, kills: int) -> KeyedReport:
    """The seed is random; set CRABTALK_CRASH_SEED to repeat a run."""
    seed = os.environ.get("CRABTALK_CRASH_SEED") or secrets.token_hex(4)
    try:
        report = asyncio.run(run_keyed_stress(home, seed, kills))
    except BaseException as error:
        error.add_note(f"to see it again: CRABTALK_CRASH_SEED={seed}")
        raise
    print(report)  # noqa: T201 - shown with -s, and when something fails
    return report


@pytest.mark.timeout(120)
@pytest.mark.req("delivery.kill9")
@pytest.mark.req("delivery.interrupted.closed")
def test_a_dozen_kills_under_clients_that_retry_lose_nothing_and_double_nothing(home: Path) -> None:
    report = run_seeded_stress(home, 12)
    assert report.outcomes["completed"] > 0
    assert report.repetitions > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.req("delivery.kill9")
def test_three_hundred_kills_under_clients_that_retry_lose_nothing_and_double_nothing(
    home: Path,
) -> None:
    report = run_seeded_stress(home, 300)
    assert report.kills >= 300
    assert report.outcomes["completed"] > 100
    assert report.outcomes["interrupted"] > 30
    assert report.steers > 10
    assert report.attached > 100
    assert report.compactions > 5
