"""Paths: resolving, access, and files that are swapped between check and use."""

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from crabtalk.hooks import paths
from crabtalk.hooks.paths import (
    FileIdentity,
    find_directory_path,
    pin_file,
    read_roots,
    resolve_path,
)
from crabtalk.policy import FileAccess
from crabtalk.runtime import ToolError
from crabtalk.storage import Agent, AgentError

DENIED = r"^permission denied: "


def build_agent(roots: object) -> Agent:
    return Agent("crab", "You are crab.", hooks={"files": {"roots": roots}})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "inner").mkdir(parents=True)
    (tmp_path / "root" / "note.txt").write_text("hello\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    return tmp_path / "root"


# ── Roots ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.roots.setting")
def test_roots_are_absolute_or_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ferris")
    assert read_roots(build_agent(["/srv", "~/notes"])) == (
        Path("/srv"),
        Path("/home/ferris/notes"),
    )


@pytest.mark.req("files.roots.setting")
@pytest.mark.parametrize(
    "roots", ["/srv", [1], {"a": "/srv"}, ["notes"], [""], ["~no-such-user/x"]]
)
def test_other_roots_are_refused_with_what_to_write(roots: object) -> None:
    with pytest.raises(AgentError, match=r"hooks\.files\.roots"):
        read_roots(build_agent(roots))


@pytest.mark.req("files.roots.setting")
def test_without_roots_an_agent_is_not_confined() -> None:
    assert read_roots(Agent("crab", "You are crab.")) == ()
    assert read_roots(build_agent([])) == ()


# ── Resolving ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.cwd")
def test_a_relative_path_starts_at_the_working_directory(root: Path) -> None:
    assert resolve_path("note.txt", root, FileAccess()) == root / "note.txt"
    assert resolve_path("../note.txt", root / "inner", FileAccess()) == root / "note.txt"


@pytest.mark.req("files.roots.confined")
@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "inner/../../secret.txt", "/etc/passwd", "..", "../root-not/x", "../missing"],
)
def test_a_path_outside_the_roots_is_denied_whether_it_exists_or_not(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match=DENIED):
        resolve_path(path, root, FileAccess(((root,),)))


@pytest.mark.req("files.roots.confined")
def test_a_sibling_whose_name_begins_like_the_root_is_outside(root: Path) -> None:
    (root.parent / "root2").mkdir()
    with pytest.raises(ToolError, match=DENIED):
        resolve_path("../root2/x", root, FileAccess(((root,),)))


@pytest.mark.req("files.roots.links")
def test_links_are_followed_before_the_check(root: Path) -> None:
    (root / "file").symlink_to(root.parent / "secret.txt")
    (root / "up").symlink_to(root.parent)
    for path in ("file", "up/secret.txt", "inner/../up/secret.txt"):
        with pytest.raises(ToolError, match=DENIED) as denied:
            resolve_path(path, root, FileAccess(((root,),)))
        assert str(root.parent / "secret.txt") not in str(denied.value)
    (root / "within").symlink_to("note.txt")
    assert resolve_path("within", root, FileAccess(((root,),))) == root / "note.txt"


@pytest.mark.req("files.roots.links")
def test_a_root_may_be_a_link_itself(root: Path) -> None:
    alias = root.parent / "alias"
    alias.symlink_to(root)
    assert resolve_path("note.txt", alias, FileAccess(((alias,),))) == root / "note.txt"
    assert resolve_path(str(root / "note.txt"), alias, FileAccess(((alias,),))) == root / "note.txt"
    with pytest.raises(ToolError, match=DENIED):
        resolve_path("../secret.txt", alias, FileAccess(((alias,),)))


@pytest.mark.req("files.roots.confined")
def test_several_roots_are_all_allowed(root: Path) -> None:
    other = root.parent / "other"
    other.mkdir()
    for path in (root / "note.txt", other / "x"):
        assert resolve_path(str(path), Path("/"), FileAccess(((root, other),))) == path


@pytest.mark.req("files.read.refused")
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_invalid_path_is_an_invalid_argument(root: Path, path: str) -> None:
    with pytest.raises(ToolError, match=r"^invalid arguments: "):
        resolve_path(path, root, FileAccess())


# ── Holding ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.roots.race")
def test_a_directory_swapped_for_a_link_after_the_check_is_noticed(root: Path) -> None:
    (root / "inner" / "secret.txt").write_text("harmless\n")
    path = resolve_path("inner/secret.txt", root, FileAccess(((root,),)))
    (root / "inner").rename(root / "moved")
    (root / "inner").symlink_to(root.parent)
    with pytest.raises(ToolError, match=DENIED), pin_file(path, FileAccess(((root,),))):
        pass


@pytest.mark.req("files.roots.race")
def test_a_file_swapped_for_a_link_after_the_check_is_not_followed(root: Path) -> None:
    path = resolve_path("note.txt", root, FileAccess(((root,),)))
    with pin_file(path, FileAccess(((root,),))) as place:
        path.unlink()
        path.symlink_to(root.parent / "secret.txt")
        with pytest.raises(ToolError, match="is a link"):
            place.open()


@pytest.mark.req("files.roots.race")
def test_a_file_swapped_between_stat_and_open_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = resolve_path("note.txt", root, FileAccess(((root,),)))
    before = path.stat()
    monkeypatch.setattr(paths.PinnedFile, "status", lambda place: before)
    path.unlink()
    path.symlink_to(root.parent / "secret.txt")
    with (
        pytest.raises(ToolError, match="is a link"),
        pin_file(path, FileAccess(((root,),))) as place,
    ):
        place.open()


@pytest.mark.req("files.roots.race")
def test_a_replacement_stays_in_the_directory_that_was_checked(root: Path) -> None:
    (root / "inner" / "secret.txt").write_text("harmless\n")
    path = resolve_path("inner/secret.txt", root, FileAccess(((root,),)))
    with pin_file(path, FileAccess(((root,),))) as place:
        before = place.status()
        (root / "inner").rename(root / "moved")
        (root / "inner").symlink_to(root.parent)
        place.replace(b"new\n", before)
    assert (root / "moved" / "secret.txt").read_text() == "new\n"
    assert (root.parent / "secret.txt").read_text() == "secret\n"


@pytest.mark.req("files.roots.race")
def test_without_proc_a_directory_is_resolved_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def readlink(path: Path) -> Path:
        raise OSError(errno.ENOENT, "no /proc here")

    descriptor = os.open(root / "inner", os.O_RDONLY)
    monkeypatch.setattr(Path, "readlink", readlink)
    try:
        assert find_directory_path(descriptor, root / "inner") == root / "inner"
        with pytest.raises(ToolError, match="changed just now"):
            find_directory_path(descriptor, root)
    finally:
        os.close(descriptor)


@pytest.mark.req("files.read.special")
def test_only_regular_files_are_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "s"))
        special = [root / "pipe", root / "s", Path("/dev/zero"), Path("/dev/tty"), root, Path("/")]
        for path in [*special, root / "loop"]:
            with pytest.raises(ToolError, match=r"regular file|directory|link"):  # noqa: SIM117
                with pin_file(path, FileAccess()) as place:
                    place.open()


@pytest.mark.req("files.read.special")
def test_a_pipe_that_replaces_the_file_at_the_last_moment_does_not_block(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (root / "note.txt").stat()
    monkeypatch.setattr(paths.PinnedFile, "status", lambda place: before)
    (root / "note.txt").unlink()
    os.mkfifo(root / "note.txt")
    with (
        pytest.raises(ToolError, match="not a regular file"),
        pin_file(root / "note.txt", FileAccess()) as place,
    ):
        place.open()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EACCES, "^permission denied: "),
        (errno.EROFS, "^permission denied: "),
        (errno.ENOENT, "^there is no file "),
        (errno.ENOSPC, "^cannot use .*No space left"),
        (errno.EIO, "^cannot use "),
    ],
)
@pytest.mark.req("files.read.refused")
def test_file_system_errors_become_clear_messages(root: Path, number: int, sentence: str) -> None:
    with pytest.raises(ToolError, match=sentence), pin_file(root / "note.txt", FileAccess()):
        raise OSError(number, os.strerror(number))


# ── Replacing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("files.edit.atomic")
def test_a_replacement_keeps_mode_and_owner_and_is_another_file(root: Path) -> None:
    path = root / "note.txt"
    path.chmod(0o4751)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
        path.chmod(0o4751)
    with pin_file(path, FileAccess()) as place:
        before = place.status()
        identity = place.replace(b"new\n", before)
    after = path.stat()
    assert path.read_bytes() == b"new\n"
    assert stat.S_IMODE(after.st_mode) == 0o4751
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert FileIdentity.from_stat(after) == identity != FileIdentity.from_stat(before)


@pytest.mark.req("files.edit.atomic")
@pytest.mark.parametrize("step", ["fsync", "replace", "fchmod"])
def test_a_failed_replacement_leaves_the_file_and_no_temporary_file(
    root: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, fail)
    with (
        pytest.raises(ToolError, match="No space left"),
        pin_file(root / "note.txt", FileAccess()) as place,
    ):
        place.replace(b"new\n", place.status())
    assert (root / "note.txt").read_text() == "hello\n"
    assert sorted(path.name for path in root.iterdir()) == ["inner", "note.txt"]


@pytest.mark.req("files.edit.stale")
def test_a_file_written_by_another_process_meanwhile_is_not_replaced(root: Path) -> None:
    path = root / "note.txt"
    with pin_file(path, FileAccess()) as place:
        before = place.status()
        path.write_text("of another process\n")
        with pytest.raises(ToolError, match="changed just now; read it again"):
            place.replace(b"new\n", before)
    assert path.read_text() == "of another process\n"
    assert sorted(path.name for path in root.iterdir()) == ["inner", "note.txt"]


@pytest.mark.req("files.edit.atomic")
def test_a_file_with_a_name_of_maximum_length_can_be_replaced(root: Path) -> None:
    path = root / ("n" * 255)
    path.write_text("old\n")
    with pin_file(path, FileAccess()) as place:
        place.replace(b"new\n", place.status())
    assert path.read_text() == "new\n"
