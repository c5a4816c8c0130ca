"""A component's paths: named after it, private, and locked by one process at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.service import ComponentError, ComponentPaths


@pytest.mark.req("component.place")
def test_the_paths_of_a_component_have_its_name(home: Path) -> None:
    paths = ComponentPaths(home, "dice")
    assert paths.port_file.path == home / "run" / "dice.port"
    assert paths.log_path == home / "logs" / "dice.log"
    assert paths.config_path == home / "config" / "dice.toml"


@pytest.mark.req("component.place")
def test_a_missing_home_is_made_private(home: Path) -> None:
    with ComponentPaths(home, "dice").hold_lock():
        pass
    for path in (home, home / "run", home / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (home / "run" / "dice.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.req("component.alone")
def test_the_lock_is_held_by_one_process_at_a_time(home: Path) -> None:
    paths = ComponentPaths(home, "dice")
    with paths.hold_lock():
        refused = pytest.raises(ComponentError, match=f"pid {os.getpid()}.*stop it first")
        with refused, paths.hold_lock():
            pass
        with ComponentPaths(home, "bones").hold_lock():
            pass
    with paths.hold_lock():
        pass


@pytest.mark.req("component.alone")
def test_a_killed_process_holds_no_lock(home: Path) -> None:
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
def test_an_unusable_home_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    refused = pytest.raises(ComponentError, match=r"cannot use .*; set CRABTALK_HOME to another")
    with refused, ComponentPaths(tmp_path / "home", "dice").hold_lock():
        pass
