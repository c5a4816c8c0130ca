"""Where a daemon can be reached: the files it publishes in its home, and addresses people write."""

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .files import replace_file
from .link import Link
from .tcp import TcpAddress
from .unix import unix_address

L = TypeVar("L", bound=Link)

# A hello must have room for it.
MAX_TOKEN = 1024


def default_home() -> Path:
    """`$CRABTALK_HOME`, else `~/.crabtalk`. Always absolute, so a later chdir does not move it."""
    chosen = os.environ.get("CRABTALK_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".crabtalk"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to reach a daemon: a Unix socket, or TCP with the token it asks for."""

    path: Path | None = None
    tcp: TcpAddress | None = None
    token: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, text: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> "Endpoint":
        """Reads `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`, as a URL too (`tcp://…`)."""
        scheme, separator, rest = text.partition(":")
        rest = rest.removeprefix("//")
        if separator and rest and scheme == "unix":
            return cls(path=Path(rest).expanduser().absolute())
        if separator and scheme == "tcp":
            return cls(tcp=TcpAddress.parse(rest), token=token, tls=tls)
        if separator and scheme == "tls":
            return cls(
                tcp=TcpAddress.parse(rest), token=token, tls=tls or ssl.create_default_context()
            )
        raise ValueError(
            f"{text!r} is not an address: write unix:PATH, tcp:HOST:PORT or tls:HOST:PORT"
        )

    def __str__(self) -> str:
        if self.tcp is not None:
            return f"{'tls' if self.tls else 'tcp'}:{self.tcp}"
        return f"unix:{self.path}"

    async def connect(self, link: L) -> L:
        """Connects `link` and returns it. Raises OSError; cancelled, nothing stays open."""
        loop = asyncio.get_running_loop()
        if self.tcp is not None:
            await loop.create_connection(lambda: link, self.tcp.host, self.tcp.port, ssl=self.tls)
            if (sock := link.transport.get_extra_info("socket")) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif self.path is not None:
            with unix_address(self.path) as address:
                await loop.create_unix_connection(lambda: link, address)
        return link


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files under `run/` by which a daemon and its clients find each other."""

    directory: Path

    @classmethod
    def of(cls, home: Path) -> "RunFiles":
        return cls(home / "run")

    @property
    def socket(self) -> Path:
        return self.directory / "crabtalk.sock"

    @property
    def port(self) -> Path:
        """The TCP port in decimal, without a line end."""
        return self.directory / "crabtalk.port"

    @property
    def token(self) -> Path:
        return self.directory / "token"

    @property
    def lock(self) -> Path:
        """Held by the one daemon of this home, with its pid inside."""
        return self.directory / "crabtalk.lock"

    def publish_port(self, port: int) -> None:
        replace_file(self.port, str(port).encode())

    def make_token(self) -> str:
        """The token of this home, created on first use. It stays, so that clients can keep it.

        Raises OSError, or ValueError for one that no client could show.
        """
        try:
            token = self.token.read_text("utf-8").strip()
        except FileNotFoundError:
            token = ""
        if len(token.encode()) > MAX_TOKEN:
            raise ValueError(f"it is longer than {MAX_TOKEN} bytes")
        if token:
            self.token.chmod(0o600)
            return token
        token = os.urandom(32).hex()
        replace_file(self.token, token.encode())
        return token

    def endpoints(self) -> list[Endpoint]:
        """The ways in that this home publishes, best first. Empty when no daemon ran here."""
        found = []
        if self.socket.exists():
            found.append(Endpoint(path=self.socket))
        try:
            port = int(self.port.read_text())
            token = self.token.read_text().strip()
        except (OSError, ValueError):
            return found
        # A daemon that was killed leaves its port file behind, and the port is anyone's by now:
        # nobody but a daemon that lives is shown the token.
        if self.holder() is not None:
            found.append(Endpoint(tcp=TcpAddress(port=port), token=token))
        return found

    def holder(self) -> int | None:
        """The process that holds this home, if it lives."""
        try:
            pid = int(self.lock.read_text())
            if pid <= 0:
                return None  # kill() would take these for groups of processes
            os.kill(pid, 0)
        except (OSError, ValueError, OverflowError):
            return None  # gone; or another user's, who has no business in this home
        return pid
