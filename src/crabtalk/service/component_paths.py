"""The paths of a component in the home, and the lock that only one process of a name can hold."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import RunFiles

from .component_name import check_component_name
from .errors import ComponentError
from .port_file import PortFile


@dataclass(frozen=True, slots=True)
class ComponentPaths:
    """The paths of the component `name` in `home`."""

    home: Path
    name: str

    def __post_init__(self) -> None:
        check_component_name(self.name)

    @property
    def port_file(self) -> PortFile:
        return PortFile.for_component(self.home, self.name)

    @property
    def log_path(self) -> Path:
        return self.home / "logs" / f"{self.name}.log"

    @property
    def config_path(self) -> Path:
        """The component's own settings file, which may be missing."""
        return self.home / "config" / f"{self.name}.toml"

    @property
    def lock_path(self) -> Path:
        return RunFiles.for_home(self.home).directory / f"{self.name}.lock"

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the component's lock. Raises ComponentError while another process holds it.

        The kernel releases the lock of a process that was killed, so no stale lock can remain.
        """
        try:
            self._make_directories()
            lock = os.open(
                self.lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ComponentError(
                f"cannot use {self.home}: {error.strerror}; set CRABTALK_HOME to another directory"
            ) from None
        try:
            self._acquire_lock(lock)
            yield
        finally:
            # The file stays: after an unlink, two processes could hold two locks of one name.
            os.close(lock)

    def _make_directories(self) -> None:
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (self.lock_path.parent, self.log_path.parent):
            directory.mkdir(mode=0o700, exist_ok=True)
            directory.chmod(0o700)

    def _acquire_lock(self, lock: int) -> None:
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
