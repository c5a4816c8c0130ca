"""Daemons are killed or suspended beyond their leases, and the database is restarted: no
acknowledged message is lost, runs do not interleave, and no daemon writes after losing the turn."""

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
    """The seed is random; set CRABTALK_SIEGE_SEED to repeat a run."""
    seed = os.environ.get("CRABTALK_SIEGE_SEED") or secrets.token_hex(4)
    try:
        report = await run_stress(path, server, rounds=rounds, seed=seed)
    except BaseException as error:
        error.add_note(f"to see it again: CRABTALK_SIEGE_SEED={seed}")
        raise
    print(report)  # noqa: T201 - shown with -s and for failures
    return report


@pytest.mark.timeout(240)
async def test_seven_stress_rounds_lose_and_mix_up_nothing(
    tmp_path: Path, private_postgres: PostgresServer
) -> None:
    report = await run_seeded_stress(tmp_path, private_postgres, 7)
    assert set(report.faults) == set(FAULTS)
    assert report.acknowledged > 10
    assert report.ends["interrupted"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_five_hundred_stress_rounds_lose_and_mix_up_nothing(
    tmp_path: Path,
    private_postgres: PostgresServer,
    record_property: Callable[[str, object], None],
) -> None:
    report = await run_seeded_stress(tmp_path, private_postgres, 500)
    record_property("report", str(report))
    assert report.rounds == 500
    assert min(report.faults[fault] for fault in FAULTS) > 50
