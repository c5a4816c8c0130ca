"""What watches the daemon sees what it should: a test that cannot fail proves nothing."""

import os
from pathlib import Path

import pytest

from tests.hostile.attacked_daemon import measure_growth
from tests.hostile.watched_daemon import make_audit_hook


@pytest.mark.parametrize(
    ("event", "given", "is_noted"),
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
def test_each_way_out_of_a_home_is_noted(
    event: str, given: tuple[object, ...], is_noted: bool
) -> None:
    noted: list[str] = []
    make_audit_hook("/home/h", "/secret", noted.append)(event, given)
    assert bool(noted) == is_noted


def test_what_is_kept_is_growth_and_what_is_given_back_is_none() -> None:
    momentary = [100, 100, 900, 100, 100, 100, 100, 900, 900, 100]
    assert measure_growth(momentary) == 0
    kept = list(range(100, 1100, 100))
    assert measure_growth(kept) == 500
    assert measure_growth(kept[::-1]) == -500
