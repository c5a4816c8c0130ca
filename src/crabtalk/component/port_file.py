"""Port files: `run/<name>.port`, by which the daemon finds components nobody configured.

One holds a port on 127.0.0.1 in decimal and a line end. It says nothing about who listens there
now: a component that was killed leaves its file behind, so a reader tries the port.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from crabtalk.transport import RunFiles, replace_file

from .service import TAKEN, check_name

LOOPBACK = "127.0.0.1"
SUFFIX = ".port"
# To loopback: who has not answered by then is stuck.
PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class PortFile:
    """Where the component called `name` says it listens."""

    name: str
    path: Path

    @classmethod
    def of(cls, home: Path, name: str) -> "PortFile":
        check_name(name)
        return cls(name, RunFiles.of(home).directory / f"{name}{SUFFIX}")

    def read(self) -> int | None:
        """The port in it; None when there is no such file, or no port in it."""
        try:
            text = self.path.read_text("ascii").strip()
        except (OSError, ValueError):
            return None
        return int(text) if text.isdigit() and 0 < int(text[:6]) < 65536 else None

    def is_listening(self) -> bool:
        """Whether somebody takes connections there. Blocks for a second at most."""
        port = self.read()
        if port is None:
            return False
        with suppress(OSError), socket.create_connection((LOOPBACK, port), PATIENCE):
            return True
        return False

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
