"""The home of a daemon, and the files in it by which a daemon and its clients find each other."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .atomic_files import replace_file

if TYPE_CHECKING:
    from .endpoint import Endpoint

# A hello must have room for it.
MAX_TOKEN_BYTES = 1024


def default_home() -> Path:
    """`$CRABTALK_HOME`, else `~/.crabtalk`. Always absolute, so a later chdir does not move it."""
    chosen = os.environ.get("CRABTALK_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".crabtalk"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files under `run/` by which a daemon and its clients find each other."""

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
        """Held by the one daemon of this home, with its pid inside."""
        return self.directory / "crabtalk.lock"

    def publish_port(self, port: int) -> None:
        replace_file(self.port_path, str(port).encode())

    def ensure_token(self) -> str:
        """The token of this home, created on first use. It stays, so that clients can keep it.

        Raises OSError, or ValueError for one that no client could show.
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
        """The ways in that this home publishes, best first. Empty when no daemon ran here."""
        # Late: they bring the wire along, which whoever asks for a path has no use for.
        from .endpoint import Endpoint
        from .tcp import TcpAddress

        found = []
        if self.socket_path.exists():
            found.append(Endpoint(path=self.socket_path))
        try:
            port = int(self.port_path.read_text())
            token = self.token_path.read_text().strip()
        except (OSError, ValueError):
            return found
        # A daemon that was killed leaves its port file behind, and the port is anyone's by now:
        # nobody but a daemon that lives is shown the token.
        if self.read_daemon_pid() is not None:
            found.append(Endpoint(tcp=TcpAddress(port=port), token=token))
        return found

    def read_daemon_pid(self) -> int | None:
        """The process that holds this home, if it lives."""
        try:
            pid = int(self.lock_path.read_text())
            if pid <= 0:
                return None  # kill() would take these for groups of processes
            os.kill(pid, 0)
        except (OSError, ValueError, OverflowError):
            return None  # gone; or another user's, who has no business in this home
        return pid
