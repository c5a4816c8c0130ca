"""Tests of the monitors of the attacked daemon: a check that cannot fail proves nothing."""

import os
from pathlib import Path

import pytest

from tests.hostile.attacked_daemon import measure_growth
from tests.hostile.watched_daemon import make_audit_hook


@pytest.mark.parametrize(
    ("event", "arguments", "is_logged"),
    [
        ("open", ("/home/h/agents/x", "w", os.O_WRONLY), False),
        ("open", ("/home/h/../other/x", "w", os.O_WRONLY), True),
        ("open", ("/home/hh/x", "w", os.O_WRONLY | os.O_CREAT), True),
        ("open", ("/etc/hosts", "r", os.O_RDONLY), False),
        ("open", (b"/secret/key", "r", os.O_RDONLY), True),
        ("open", (Path("/secret/a/../key"), "r", os.O_RDONLY), True),
        ("open", ("/dev/null", "w", os.O_WRONLY), False),
        ("open", (7, "w", os.O_WRONLY), False),
        ("os.rename", ("/home/h/x", "/tmp/x", -1, -1), True),  # noqa: S108
        ("os.remove", ("/home/h/x", -1), False),
        ("os.symlink", ("/home/h/x", "/x", -1), True),
        ("os.listdir", ("/secret",), True),
        ("os.listdir", ("/etc",), False),
        ("import", ("/secret",), False),
    ],
)
def test_each_access_outside_the_home_is_logged(
    event: str, arguments: tuple[object, ...], is_logged: bool
) -> None:
    accesses: list[str] = []
    make_audit_hook("/home/h", "/secret", accesses.append)(event, arguments)
    assert bool(accesses) == is_logged


def test_only_memory_that_stays_in_use_counts_as_growth() -> None:
    momentary = [100, 100, 900, 100, 100, 100, 100, 900, 900, 100]
    assert measure_growth(momentary) == 0
    growing = list(range(100, 1100, 100))
    assert measure_growth(growing) == 500
    assert measure_growth(growing[::-1]) == -500
