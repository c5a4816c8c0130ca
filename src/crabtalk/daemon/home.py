"""Home: the one directory a daemon owns, and the lock that makes it the only one there."""

import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType

from crabtalk.transport import RunFiles


class HomeError(Exception):
    """The home directory cannot be used, with what to do about it."""


class Home:
    """A daemon's directory. As a context it is created if need be, and locked for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run = RunFiles.of(self.path)
        self._lock: int | None = None

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    def __enter__(self) -> "Home":
        make_private(self.path, parents=True)
        make_private(self.run.directory)
        self._lock = self._acquire()
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

    def _acquire(self) -> int:
        path = self.run.lock
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise HomeError(f"cannot open {path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            who = f"another daemon (pid {holder})" if holder else "another daemon"
            raise HomeError(
                f"{who} already runs in {self.path}; stop it, or choose another home with --home"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        return lock


def make_private(path: Path, *, parents: bool = False) -> None:
    """A directory of ours with mode 0700. One that exists loses what group and others may do."""
    try:
        path.mkdir(mode=0o700, parents=parents, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise HomeError(
                f"{path} belongs to user {status.st_uid}, not to you; "
                "choose another home with --home"
            )
        if stat.S_IMODE(status.st_mode) & 0o077:
            path.chmod(stat.S_IMODE(status.st_mode) & 0o700)
    except FileExistsError:
        raise HomeError(f"{path} is not a directory; choose another home with --home") from None
    except OSError as error:
        raise HomeError(
            f"cannot use {path}: {error.strerror}; choose another home with --home"
        ) from None
