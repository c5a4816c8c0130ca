"""Port files: `run/<name>.port`, by which the daemon finds components that are not configured.

A file holds a port on 127.0.0.1 in decimal and a line end. The port may be stale: a component that
was killed leaves its file behind, so a reader tries to connect.
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
# Seconds. On loopback, a server that has not answered by then hangs.
CONNECT_TIMEOUT = 1.0
MAX_FILE_BYTES = 16


class PortFileContent(NamedTuple):
    """The port in a file, and the file's modification time, which shows that it was replaced."""

    port: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class PortFile:
    """The port file of the component `name`."""

    name: str
    path: Path

    @classmethod
    def for_component(cls, home: Path, name: str) -> "PortFile":
        check_component_name(name)
        return cls(name, RunFiles.for_home(home).directory / f"{name}{PORT_FILE_SUFFIX}")

    def read_content(self) -> PortFileContent | None:
        """None if there is no such file of ours, or no port in it."""
        with suppress(OSError):
            # Opening a pipe or device of that name must not block.
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
        """The port in the file; None if it has none."""
        content = self.read_content()
        return content.port if content is not None else None

    def is_listening(self) -> bool:
        """Whether a process accepts connections there. Blocks for a second at most."""
        port = self.read_port()
        return port is not None and is_port_open(port)

    @contextmanager
    def publish(self, port: int) -> Iterator[None]:
        """Publish `port` in the file. On exit the file is removed, unless it names another port."""
        replace_file(self.path, f"{port}\n".encode())
        try:
            yield
        finally:
            if self.read_port() == port:
                self.path.unlink(missing_ok=True)


def list_port_files(home: Path) -> list[PortFile]:
    """The port files of all components of `home`, by name, without the daemon's own."""
    with suppress(OSError):
        paths = sorted(RunFiles.for_home(home).directory.glob(f"[!.]*{PORT_FILE_SUFFIX}"))
        return [PortFile(path.stem, path) for path in paths if path.stem != DAEMON_NAME]
    return []


def is_port_open(port: int) -> bool:
    """Whether a process accepts connections at a port. Blocks for a second at most."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), CONNECT_TIMEOUT):
        return True
    return False


def parse_port(data: bytes) -> int | None:
    text = data.strip()
    if len(data) > MAX_FILE_BYTES or not text.isdigit():  # bytes.isdigit() knows ASCII digits only
        return None
    return port if 0 < (port := int(text)) < 65536 else None
