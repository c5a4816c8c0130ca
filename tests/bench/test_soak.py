"""The soak benchmark, run for one minute."""

from pathlib import Path

import pytest

from bench.soak import ProcessCounts, find_log_errors, has_returned, run_daemon, run_soak
from tests.model_server import model_process

BEFORE = ProcessCounts(tasks={"a": 2, "b": 1}, threads=3, objects=10, descriptors=20, size=40.0)


def test_more_tasks_or_descriptors_than_before_are_noticed() -> None:
    assert has_returned(BEFORE, BEFORE)
    more = ProcessCounts(tasks={"a": 2, "b": 2}, threads=3, objects=10, descriptors=20, size=40.0)
    assert not has_returned(more, BEFORE)
    open_still = ProcessCounts(
        tasks={"a": 2, "b": 1}, threads=3, objects=10, descriptors=21, size=40.0
    )
    assert not has_returned(open_still, BEFORE)


def test_errors_in_the_daemons_log_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    log.write_text(
        "crabtalkd is ready: here\n"
        "2026-01-01T00:00:00Z INFO  runtime.runtime: run done\n"
        "2026-01-01T00:00:00Z ERROR storage.scribe: the scribe failed\n"
        "Traceback (most recent call last):\n"
    )
    assert find_log_errors(log) == {"storage.scribe: the scribe failed": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_after_a_minute_of_load_the_daemon_has_released_everything(tmp_path: Path) -> None:
    with (
        model_process("--no-record", "--summary", "They talked.") as (url, _),
        run_daemon(tmp_path / "home", url) as daemon,
    ):
        _, is_well = run_soak(daemon, 1, seed=7)
    assert is_well
