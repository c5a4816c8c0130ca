"""A component's place: made for it, private, and taken by one process at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.service import ComponentError, ComponentPaths


@pytest.mark.req("component.place")
def test_what_belongs_to_a_component_has_its_name(home: Path) -> None:
    place = ComponentPaths(home, "dice")
    assert place.port_file.path == home / "run" / "dice.port"
    assert place.log_path == home / "logs" / "dice.log"
    assert place.config_path == home / "config" / "dice.toml"


@pytest.mark.req("component.place")
def test_a_home_that_is_not_there_is_made_for_its_owner_alone(home: Path) -> None:
    with ComponentPaths(home, "dice").hold_lock():
        pass
    for path in (home, home / "run", home / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (home / "run" / "dice.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.req("component.alone")
def test_it_is_taken_once_at_a_time(home: Path) -> None:
    place = ComponentPaths(home, "dice")
    with place.hold_lock():
        refused = pytest.raises(ComponentError, match=f"pid {os.getpid()}.*stop it first")
        with refused, place.hold_lock():
            pass
        with ComponentPaths(home, "bones").hold_lock():
            pass
    with place.hold_lock():
        pass


@pytest.mark.req("component.alone")
def test_a_process_that_was_killed_holds_nothing(home: Path) -> None:
    code = (
        "import sys, os, signal, pathlib; from crabtalk.service import ComponentPaths\n"
        "with ComponentPaths(pathlib.Path(sys.argv[1]), 'dice').hold_lock():\n"
        "    os.kill(os.getpid(), 9)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(home)], check=False)
    assert result.returncode == -9
    with ComponentPaths(home, "dice").hold_lock():
        pass


@pytest.mark.req("component.place")
def test_a_home_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    refused = pytest.raises(ComponentError, match=r"cannot use .*; set CRABTALK_HOME to another")
    with refused, ComponentPaths(tmp_path / "home", "dice").hold_lock():
        pass
