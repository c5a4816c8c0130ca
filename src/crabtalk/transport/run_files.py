"""The home of a daemon, and the files in `run/` that tell clients how to reach the daemon."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .atomic_files import replace_file

if TYPE_CHECKING:
    from .endpoint import Endpoint

# So that it fits in a hello, whose size is limited.
MAX_TOKEN_BYTES = 1024


def default_home() -> Path:
    """`$CRABTALK_HOME`, else `~/.crabtalk`. Absolute, so a later chdir does not change it."""
    home = os.environ.get("CRABTALK_HOME")
    return Path(home).expanduser().absolute() if home else Path.home() / ".crabtalk"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files under `run/` through which a daemon and its clients find each other."""

    directory: Path

    @classmethod
    def for_home(cls, home: Path) -> "RunFiles":
        return cls(home / "run")

    @property
    def socket_path(self) -> Path:
        return self.directory / "crabtalk.sock"

    @property
    def port_path(self) -> Path:
        """The TCP port in decimal, without a line end."""
        return self.directory / "crabtalk.port"

    @property
    def token_path(self) -> Path:
        return self.directory / "token"

    @property
    def lock_path(self) -> Path:
        """The lock that the one daemon of this home holds, with its pid inside."""
        return self.directory / "crabtalk.lock"

    def publish_port(self, port: int) -> None:
        replace_file(self.port_path, str(port).encode())

    def ensure_token(self) -> str:
        """Return the token of this home, created on first use. It stays, so that clients can keep
        it.

        Raises OSError, or ValueError for a token that is too long for a hello.
        """
        try:
            token = self.token_path.read_text("utf-8").strip()
        except FileNotFoundError:
            token = ""
        if len(token.encode()) > MAX_TOKEN_BYTES:
            raise ValueError(f"it is longer than {MAX_TOKEN_BYTES} bytes")
        if token:
            self.token_path.chmod(0o600)
            return token
        token = os.urandom(32).hex()
        replace_file(self.token_path, token.encode())
        return token

    def find_endpoints(self) -> "list[Endpoint]":
        """The addresses that this home publishes, best first. Empty when no daemon ran here."""
        # Imported late: they load the protocol code, which callers that only need a path never use.
        from .endpoint import Endpoint
        from .tcp import TcpAddress

        endpoints = []
        if self.socket_path.exists():
            endpoints.append(Endpoint(path=self.socket_path))
        try:
            port = int(self.port_path.read_text())
            token = self.token_path.read_text().strip()
        except (OSError, ValueError):
            return endpoints
        # A daemon that was killed leaves its port file behind, and another program may have the
        # port by now: the token goes only to a daemon that is alive.
        if self.read_daemon_pid() is not None:
            endpoints.append(Endpoint(tcp=TcpAddress(port=port), token=token))
        return endpoints

    def read_daemon_pid(self) -> int | None:
        """The pid of the process that holds this home, if it is alive."""
        try:
            pid = int(self.lock_path.read_text())
            if pid <= 0:
                return None  # kill() would take these for process groups
            os.kill(pid, 0)
        except (OSError, ValueError, OverflowError):
            return None  # gone, or another user's process, which cannot be the daemon of this home
        return pid
