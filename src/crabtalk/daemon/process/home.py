"""Home: the one directory a daemon owns, and the lock that makes it the only one there."""

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from crabtalk.transport import RunFiles, remove_stale_temporary_files


class HomeError(Exception):
    """The home directory cannot be used, with what to do about it."""


class Home:
    """A daemon's directory. As a context it is created if need be, and locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run_files = RunFiles.for_home(self.path)
        self._lock: int | None = None

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    def __enter__(self) -> "Home":
        make_home(self.path)
        make_private_directory(self.run_files.directory)
        self._lock = self._acquire_lock()
        for directory in (self.path, self.path / "agents", self.run_files.directory):
            remove_stale_temporary_files(directory)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            # The file stays: unlinking it would let two daemons hold two locks of one name.
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def _acquire_lock(self) -> int:
        path = self.run_files.lock_path
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HomeError(f"cannot open {path}: {error.strerror}; move it away") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            who = f"another daemon (pid {holder})" if holder else "another daemon"
            raise HomeError(
                f"{who} already runs in {self.path}; stop it, or choose another home with --home"
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.write(lock, str(os.getpid()).encode())
        except OSError as error:  # a full disk: nobody could tell whom to stop
            os.close(lock)
            raise HomeError(
                f"cannot write {path}: {error.strerror}; make room, "
                "or choose another home with --home"
            ) from None
        return lock


def format_command(command: str, home: Path) -> str:
    """What a person types. Any home but the usual one is named: their shell may know of none."""
    is_usual = home == Path.home() / ".crabtalk"
    return command if is_usual else f"{command} --home {shlex.quote(str(home))}"


def make_home(path: Path) -> None:
    """Creates the home with mode 0700. One that exists must be ours, and closed to others' writing.

    It keeps its mode: a directory somebody made is not ours to lock, and may be more than a home.
    """
    with translate_home_errors(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise HomeError(
                f"{path} belongs to user {status.st_uid}, not to you; "
                "choose another home with --home"
            )
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise HomeError(
                f"others can write to {path}; close it to them (chmod 700), "
                "or choose another home with --home"
            )


def make_private_directory(path: Path) -> None:
    """A directory of the daemon's own, always with mode 0700."""
    with translate_home_errors(path):
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)


@contextmanager
def translate_home_errors(path: Path) -> Iterator[None]:
    """What the system refuses, in a sentence."""
    try:
        yield
    except FileExistsError:
        raise HomeError(f"{path} is not a directory; choose another home with --home") from None
    except OSError as error:
        raise HomeError(
            f"cannot use {path}: {error.strerror}; choose another home with --home"
        ) from None
