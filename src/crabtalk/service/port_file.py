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

from .component_name import DAEMON_NAME, check_component_name

LOOPBACK = "127.0.0.1"
PORT_FILE_SUFFIX = ".port"
# To loopback: who has not answered by then is stuck.
CONNECT_TIMEOUT = 1.0
MAX_FILE_BYTES = 16


class PortFileContent(NamedTuple):
    """What a file says, and which file it is: one that was written anew is another."""

    port: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class PortFile:
    """Where the component called `name` says it listens."""

    name: str
    path: Path

    @classmethod
    def for_component(cls, home: Path, name: str) -> "PortFile":
        check_component_name(name)
        return cls(name, RunFiles.for_home(home).directory / f"{name}{PORT_FILE_SUFFIX}")

    def read_content(self) -> PortFileContent | None:
        """None when there is no such file of ours, or no port in it."""
        with suppress(OSError):
            # Neither a pipe nor a device of that name can hold us up.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                    port = parse_port(os.read(descriptor, MAX_FILE_BYTES + 1))
                    return PortFileContent(port, status.st_mtime_ns) if port is not None else None
            finally:
                os.close(descriptor)
        return None

    def read_port(self) -> int | None:
        """The port in it, if it has one."""
        found = self.read_content()
        return found.port if found is not None else None

    def is_listening(self) -> bool:
        """Whether somebody takes connections there. Blocks for a second at most."""
        port = self.read_port()
        return port is not None and is_port_open(port)

    @contextmanager
    def publish(self, port: int) -> Iterator[None]:
        """Inside, the file names `port`. On the way out it goes, unless it is somebody else's."""
        replace_file(self.path, f"{port}\n".encode())
        try:
            yield
        finally:
            if self.read_port() == port:
                self.path.unlink(missing_ok=True)


def list_port_files(home: Path) -> list[PortFile]:
    """Those of all components of `home`, by name; the daemon's own is not one of them."""
    with suppress(OSError):
        paths = sorted(RunFiles.for_home(home).directory.glob(f"[!.]*{PORT_FILE_SUFFIX}"))
        return [PortFile(path.stem, path) for path in paths if path.stem != DAEMON_NAME]
    return []


def is_port_open(port: int) -> bool:
    """Whether somebody takes connections at a port. Blocks for a second at most."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), CONNECT_TIMEOUT):
        return True
    return False


def parse_port(data: bytes) -> int | None:
    text = data.strip()
    if len(data) > MAX_FILE_BYTES or not text.isdigit():  # of bytes, these are ASCII's digits only
        return None
    return port if 0 < (port := int(text)) < 65536 else None
