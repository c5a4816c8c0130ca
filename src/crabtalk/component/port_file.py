"""Port files: `run/<name>.port`, by which the daemon finds components nobody configured.

One holds a port on 127.0.0.1 in decimal and a line end. It says nothing about who listens there
now: a component that was killed leaves its file behind, so a reader tries the port.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crabtalk.transport import RunFiles, replace_file

from .name import TAKEN, check_name

LOOPBACK = "127.0.0.1"
SUFFIX = ".port"
# To loopback: who has not answered by then is stuck.
PATIENCE = 1.0
LONGEST_FILE = 16


class Found(NamedTuple):
    """What a file says, and which file it is: one that was written anew is another."""

    port: int
    written: int


@dataclass(frozen=True, slots=True)
class PortFile:
    """Where the component called `name` says it listens."""

    name: str
    path: Path

    @classmethod
    def of(cls, home: Path, name: str) -> "PortFile":
        check_name(name)
        return cls(name, RunFiles.of(home).directory / f"{name}{SUFFIX}")

    def look(self) -> Found | None:
        """None when there is no such file of ours, or no port in it."""
        with suppress(OSError):
            # Neither a pipe nor a device of that name can hold us up.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    port = port_in(os.read(descriptor, LONGEST_FILE + 1))
                    return Found(port, status.st_mtime_ns) if port is not None else None
            finally:
                os.close(descriptor)
        return None

    def read(self) -> int | None:
        """The port in it, if it has one."""
        found = self.look()
        return found.port if found is not None else None

    def is_listening(self) -> bool:
        """Whether somebody takes connections there. Blocks for a second at most."""
        port = self.read()
        return port is not None and is_taken(port)

    @contextmanager
    def published(self, port: int) -> Iterator[None]:
        """Inside, the file names `port`. On the way out it goes, unless it is somebody else's."""
        replace_file(self.path, f"{port}\n".encode())
        try:
            yield
        finally:
            if self.read() == port:
                self.path.unlink(missing_ok=True)


def port_files(home: Path) -> list[PortFile]:
    """Those of all components of `home`, by name; the daemon's own is not one of them."""
    with suppress(OSError):
        paths = sorted(RunFiles.of(home).directory.glob(f"[!.]*{SUFFIX}"))
        return [PortFile(path.stem, path) for path in paths if path.stem != TAKEN]
    return []


def is_taken(port: int) -> bool:
    """Whether somebody takes connections at a port. Blocks for a second at most."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), PATIENCE):
        return True
    return False


def port_in(data: bytes) -> int | None:
    text = data.strip()
    if len(data) > LONGEST_FILE or not text.isdigit():  # of bytes, these are ASCII's digits only
        return None
    return port if 0 < (port := int(text)) < 65536 else None
