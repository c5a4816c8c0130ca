"""Daemons killed, put to sleep past their leases, and a database restarted: nothing that was
acknowledged is lost, nothing is interleaved, and nobody writes who has lost the turn."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fleet.stress_run import FAULTS, FleetStressReport, run_stress
from tests.postgres import PostgresServer

pytestmark = [
    pytest.mark.one_loop,
    pytest.mark.req("fleet.siege"),
    pytest.mark.req("fleet.fencing"),
    pytest.mark.req("fleet.dead"),
]


async def run_seeded_stress(path: Path, server: PostgresServer, rounds: int) -> FleetStressReport:
    """Seeds differ from run to run; CRABTALK_SIEGE_SEED brings one back."""
    seed = os.environ.get("CRABTALK_SIEGE_SEED") or secrets.token_hex(4)
    try:
        report = await run_stress(path, server, rounds=rounds, seed=seed)
    except BaseException as error:
        error.add_note(f"to see it again: CRABTALK_SIEGE_SEED={seed}")
        raise
    print(report)  # noqa: T201 - shown with -s, and when something fails
    return report


@pytest.mark.timeout(240)
async def test_seven_rounds_lose_nothing_and_mix_nothing_up(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    report = await run_seeded_stress(tmp_path, private_postgres, 7)
    assert set(report.faults) == set(FAULTS)
    assert report.acknowledged > 10
    assert report.ends["interrupted"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_five_hundred_rounds_lose_nothing_and_mix_nothing_up(
    tmp_path: Path,
    private_postgres: PostgresServer,
    record_property: Callable[[str, object], None],
) -> None:
    report = await run_seeded_stress(tmp_path, private_postgres, 500)
    record_property("report", str(report))
    assert report.rounds == 500
    assert min(report.faults[fault] for fault in FAULTS) > 50
