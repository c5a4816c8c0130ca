"""Resolves paths given by agents, checks access to them, and opens and replaces the files.

A path is resolved and checked, and its directory is then held open, so replacing it by a link
between check and use has no effect. All functions block; call them in a thread.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from crabtalk.policy import FileAccess
from crabtalk.runtime import ToolError
from crabtalk.storage import Agent, AgentError

# The directories an agent is confined to. Empty: it may use all that the daemon's user may use.
Roots = tuple[Path, ...]

# O_PATH, where the system has it, also opens directories we may not list.
OPEN_DIRECTORY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
CREATE_TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_roots(agent: Agent) -> Roots:
    """Read `hooks.files.roots` of the agent's file. Raises AgentError."""
    entries = agent.hooks.get("files", {}).get("roots", [])
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise AgentError('hooks.files.roots must be a list of directories, such as ["~/notes"]')
    return tuple(read_root(entry) for entry in entries)


def read_root(text: str) -> Path:
    try:
        root = Path(text).expanduser()
    except RuntimeError:
        raise AgentError(f"hooks.files.roots: {text!r} names a user who is not there") from None
    if not root.is_absolute():
        raise AgentError(f"hooks.files.roots: {text!r} is relative; start it with / or ~/")
    return root


class FileIdentity(msgspec.Struct, frozen=True):
    """Equal for two looks at a file if it was neither changed nor replaced in between."""

    device: int
    inode: int
    size: int
    modified_ns: int  # nanoseconds

    @classmethod
    def from_stat(cls, status: os.stat_result) -> "FileIdentity":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class PinnedFile(msgspec.Struct, frozen=True):
    """A file's directory, held open, and the file's name in it."""

    path: Path
    directory: int
    # Whether to refuse hard links: another name of the file may be outside the roots.
    is_single_name: bool = False

    @property
    def name(self) -> str:
        return self.path.name or "."

    def status(self) -> os.stat_result:
        return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)

    def open(self) -> int:
        """Open the file for non-blocking reads. Raises ToolError if it is not a regular file."""
        # Checked before the open, as opening a device can have effects, and again after it, as the
        # file may have been replaced in between.
        check_regular(self.path, self.status().st_mode)
        descriptor = os.open(self.name, OPEN_FILE_FLAGS, dir_fd=self.directory)
        try:
            status = os.fstat(descriptor)
            check_regular(self.path, status.st_mode)
            if self.is_single_name:
                check_single_name(self.path, status.st_nlink)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, data: bytes, before: os.stat_result) -> FileIdentity:
        """Replace the content atomically. Raises ToolError if the file is no longer as `before`."""
        # The file's own name is not part of it: that may have the maximum length already.
        temporary = f".{os.urandom(8).hex()}.crabtalk"
        descriptor = os.open(temporary, CREATE_TEMPORARY_FLAGS, 0o600, dir_fd=self.directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                copy_ownership(descriptor, before)
                os.fsync(descriptor)
                identity = FileIdentity.from_stat(os.fstat(descriptor))
            self._check_unchanged(FileIdentity.from_stat(before))
            os.replace(temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.directory)
            raise
        self._flush_directory()
        return identity

    def _check_unchanged(self, before: FileIdentity) -> None:
        if FileIdentity.from_stat(self.status()) != before:
            raise ToolError(f"{self.path} changed just now; read it again, then edit it")

    def _flush_directory(self) -> None:
        # The change is made already. Without the fsync it may be lost in a power failure.
        with suppress(OSError):
            descriptor = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.directory)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def resolve_path(path: str, cwd: Path, access: FileAccess, *, to_change: bool = False) -> Path:
    """Resolve a path and its links. Raises ToolError if the run may not use it."""
    if not path or "\0" in path:
        raise ToolError("invalid arguments: path is empty or holds a NUL; give the path of a file")
    try:
        real = Path(os.path.realpath(cwd / path))
    except (OSError, ValueError) as error:
        raise ToolError(f"cannot use {path}: {error}; check the path") from None
    check_access(real, access, path, to_change)
    return real


@contextmanager
def pin_file(path: Path, access: FileAccess, *, to_change: bool = False) -> Iterator[PinnedFile]:
    """Hold the directory of a resolved path open. OSErrors inside become ToolErrors."""
    try:
        directory = os.open(path.parent, OPEN_DIRECTORY_FLAGS)
        try:
            folder = find_directory_path(directory, path.parent)
            check_access(folder / path.name, access, str(path), to_change)
            yield PinnedFile(path, directory, access.is_confined)
        finally:
            os.close(directory)
    except OSError as error:
        raise to_tool_error(path, error) from None


def find_directory_path(directory: int, path: Path) -> Path:
    """Return the current path of an open directory."""
    try:
        return Path(f"/proc/self/fd/{directory}").readlink()
    except OSError:
        # Not on Linux: resolve the path again and check that it is the directory we hold open.
        real = Path(os.path.realpath(path))
        if not os.path.samestat(os.fstat(directory), real.stat()):
            raise ToolError(f"{path} changed just now; try again") from None
        return real


def check_access(real: Path, access: FileAccess, shown: str, to_change: bool) -> None:
    if (sentence := access.find_refusal(real, shown, to_change=to_change)) is not None:
        raise ToolError(sentence)


def check_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise ToolError(f"{path} is a directory; name a file in it (bash can list them)")
    if stat.S_ISLNK(mode):
        raise ToolError(f"{path} is a link that leads to no file; name the file itself")
    raise ToolError(f"{path} is not a regular file but a device, pipe or socket; use bash for it")


def check_single_name(path: Path, names: int) -> None:
    if names > 1:
        raise ToolError(
            f"permission denied: {path} is a hard link, which may be a file outside of the folders "
            "you may use; copy it instead"
        )


def copy_ownership(descriptor: int, before: os.stat_result) -> None:
    """Copy the mode of the replaced file, and its owner as far as we have the right to."""
    # Without that right the file belongs to the daemon's user from now on.
    with suppress(OSError):
        os.fchown(descriptor, before.st_uid if os.geteuid() == 0 else -1, before.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))  # after fchown, which clears bits


def to_tool_error(path: Path, error: OSError) -> ToolError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return ToolError(f"there is no file {path}; check the path (bash creates new files)")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return ToolError(f"permission denied: {path}: {error.strerror}; use another file")
        case errno.ELOOP:
            return ToolError(f"{path} is a link that leads to no file; name the file itself")
    return ToolError(f"cannot use {path}: {error.strerror or error}; mend that or use another file")
