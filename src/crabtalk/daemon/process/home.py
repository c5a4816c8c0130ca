"""Home: a daemon's directory, and the lock that lets only one daemon run in it."""

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
    """The home directory cannot be used; says what to do about it."""


class Home:
    """A daemon's directory. The context manager creates it if needed and locks it."""

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
            # Keep the file: after an unlink, two daemons could lock two files of that name.
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
        except OSError as error:  # a full disk: without the pid, the daemon could not be stopped
            os.close(lock)
            raise HomeError(
                f"cannot write {path}: {error.strerror}; make room, "
                "or choose another home with --home"
            ) from None
        return lock


def format_command(command: str, home: Path) -> str:
    """A command to show to a person, with --home unless the home is the default one."""
    is_usual = home == Path.home() / ".crabtalk"
    return command if is_usual else f"{command} --home {shlex.quote(str(home))}"


def make_home(path: Path) -> None:
    """Create the home with mode 0700. An existing one must be ours, and not writable for others.

    An existing directory keeps its mode: it may be used for other things too.
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
    """Create a directory, and set its mode to 0700 in any case."""
    with translate_home_errors(path):
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)


@contextmanager
def translate_home_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors as HomeErrors."""
    try:
        yield
    except FileExistsError:
        raise HomeError(f"{path} is not a directory; choose another home with --home") from None
    except OSError as error:
        raise HomeError(
            f"cannot use {path}: {error.strerror}; choose another home with --home"
        ) from None
