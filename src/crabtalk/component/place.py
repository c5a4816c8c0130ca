"""Place: a component's corner of the home, taken by at most one process of its name."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import RunFiles

from .errors import ComponentError
from .name import check_name
from .port_file import PortFile


@dataclass(frozen=True, slots=True)
class Place:
    """What belongs to the component `name` in `home`."""

    home: Path
    name: str

    def __post_init__(self) -> None:
        check_name(self.name)

    @property
    def port(self) -> PortFile:
        return PortFile.of(self.home, self.name)

    @property
    def log(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def config(self) -> Path:
        """The component's own settings, if it has any."""
        return self.home / "config" / f"{self.name}.toml"

    @property
    def lock(self) -> Path:
        return RunFiles.of(self.home).directory / f"{self.name}.lock"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Inside, this process is the one. Raises ComponentError while another is.

        The kernel ends the claim of a process that was killed, so nothing stale stands in the way.
        """
        try:
            self._make_directories()
            lock = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ComponentError(
                f"cannot use {self.home}: {error.strerror}; set CRABTALK_HOME to another directory"
            ) from None
        try:
            self._claim(lock)
            yield
        finally:
            # The file stays: unlinking it would let two processes hold two locks of one name.
            os.close(lock)

    def _make_directories(self) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (self.lock.parent, self.log.parent):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)

    def _claim(self, lock: int) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            raise ComponentError(
                f"{self.name} already runs in {self.home}{f' (pid {holder})' if holder else ''}; "
                "stop it first"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
