"""replace_file: readers see all of the new content or all of the old, never half."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from crabtalk.transport import remove_stale_temporary_files, replace_file


@pytest.mark.req("durability.replace")
def test_the_new_content_and_mode_replace_the_old(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o644)
    replace_file(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.req("durability.replace")
def test_file_and_directory_are_synced_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of system calls is what is promised, so this test records them."""
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recording_fsync(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        calls.append("fsync directory" if is_directory else "fsync file")
        fsync(descriptor)

    def recording_replace(self: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(Path, "replace", recording_replace)
    replace_file(tmp_path / "f", b"x")
    assert calls == ["fsync file", "rename", "fsync directory"]


def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(OSError, match="directory"):
        replace_file(target, b"new")
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    (tmp_path / f".f.{os.getpid()}.new").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        replace_file(tmp_path / "f", b"new")
    assert precious.read_text() == "keep"


def test_temporary_files_of_a_crash_are_removed_and_nothing_else(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale = tmp_path / f".crab.toml.{ended.pid}.new"
    others = [tmp_path / f".crab.toml.{os.getpid()}.new", tmp_path / ".new", tmp_path / "a.1.new"]
    for path in (stale, *others):
        path.write_text("secret")
    remove_stale_temporary_files(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
    remove_stale_temporary_files(tmp_path / "nowhere")
