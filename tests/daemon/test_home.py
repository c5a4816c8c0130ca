"""Home: private, and for one daemon only."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.daemon.process.home import Home, HomeError


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.req("home.private")
def test_a_new_home_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with Home(tmp_path / "a" / "home") as home:
            assert get_mode(home.path) == 0o700
            assert get_mode(home.run_files.directory) == 0o700
            assert get_mode(home.run_files.lock_path) == 0o600
    finally:
        os.umask(before)


@pytest.mark.req("home.private")
def test_the_run_directory_is_closed_to_others(home: Path) -> None:
    (home / "run").mkdir(parents=True)
    home.chmod(0o755)
    (home / "run").chmod(0o777)
    with Home(home):
        assert get_mode(home / "run") == 0o700
        assert get_mode(home) == 0o755  # an existing directory keeps its mode


@pytest.mark.req("home.private")
@pytest.mark.parametrize("open_mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_directory_writable_for_others_is_refused(home: Path, open_mode: int) -> None:
    home.mkdir()
    home.chmod(open_mode)
    with pytest.raises(HomeError, match=r"others can write to .*chmod 700"), Home(home):
        pass
    assert get_mode(home) == open_mode
    assert list(home.iterdir()) == []


@pytest.mark.req("home.one_daemon")
def test_a_second_daemon_is_refused_with_the_pid_of_the_first(home: Path) -> None:
    with (
        Home(home),
        pytest.raises(HomeError, match=rf"another daemon \(pid {os.getpid()}\) already runs"),
        Home(home),
    ):
        pass


@pytest.mark.req("home.one_daemon")
def test_the_home_is_free_again_when_the_daemon_is_done(home: Path) -> None:
    with Home(home):
        pass
    with Home(home):
        pass


def test_a_home_whose_daemon_was_killed_is_free(home: Path) -> None:
    hold = f"""
import os, signal
from pathlib import Path
from crabtalk.daemon.process.home import Home
with Home(Path({str(home)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", hold], check=False).returncode == -9
    with Home(home):
        assert home.joinpath("run", "crabtalk.lock").read_text() == str(os.getpid())


def test_children_of_the_daemon_do_not_keep_its_lock(home: Path) -> None:
    with Home(home):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with Home(home):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_file_in_place_of_the_home_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HomeError, match="file is not a directory"), Home(tmp_path / "file"):
        pass
    with pytest.raises(HomeError, match="choose another home"), Home(tmp_path / "file" / "under"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(home: Path) -> None:
    home.mkdir()
    os.chown(home, 65534, 65534)
    with pytest.raises(HomeError, match="belongs to user 65534"), Home(home):
        pass
    assert list(home.iterdir()) == []


def test_a_link_in_place_of_the_lock_is_not_followed(home: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (home / "run").mkdir(parents=True)
    (home / "run" / "crabtalk.lock").symlink_to(precious)
    with pytest.raises(HomeError, match="cannot open"), Home(home):
        pass
    assert precious.read_text() == "keep"
