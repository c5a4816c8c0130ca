"""Endpoint: the address of a daemon, in the form people write it, and connecting to it."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .framed_connection import FramedConnection
from .tcp import TcpAddress
from .unix import connect_unix

ConnectionT = TypeVar("ConnectionT", bound=FramedConnection)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to reach a daemon: a Unix socket, or TCP with the token that TCP requires."""

    path: Path | None = None
    tcp: TcpAddress | None = None
    token: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, text: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> "Endpoint":
        """Parse `unix:PATH`, `tcp:HOST:PORT` or `tls:HOST:PORT`, also as a URL (`tcp://…`)."""
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

    async def connect(self, connection: ConnectionT) -> ConnectionT:
        """Connect `connection` and return it. Cancelled, it leaves nothing open.

        Raises OSError; BlockingIOError when the daemon's backlog is full.
        """
        loop = asyncio.get_running_loop()
        if self.tcp is not None:
            await loop.create_connection(
                lambda: connection, self.tcp.host, self.tcp.port, ssl=self.tls
            )
            if (sock := connection.transport.get_extra_info("socket")) is not None:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif self.path is not None:
            sock = connect_unix(self.path)
            try:
                await loop.create_unix_connection(lambda: connection, sock=sock)
            except BaseException:
                sock.close()
                raise
        return connection
