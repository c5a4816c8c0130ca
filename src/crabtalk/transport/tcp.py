"""TCP: parsing addresses, binding free ports, and TLS for connections from other machines."""

import errno
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from .limits import BACKLOG

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 6688
# How many ports from the given one on are tried before the kernel picks one.
PORTS_TO_TRY = 32


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port, as in `127.0.0.1:6688`, `[::1]:6688` or `localhost:6688`."""

    host: str = LOOPBACK
    port: int = DEFAULT_PORT

    @classmethod
    def parse(cls, text: str) -> "TcpAddress":
        """Parse `HOST:PORT`; a port alone means loopback."""
        host, _, port = text.rpartition(":")
        is_bracketed = host.startswith("[") and host.endswith("]")
        if is_bracketed:
            host = host[1:-1]
        elif ":" in host:
            host = ""  # IPv6 without brackets: which colon is the port's?
        if text.isascii() and text.isdigit():
            host = LOOPBACK
        if not host or not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError(
                f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT} "
                f"or [::1]:{DEFAULT_PORT}"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. Of host names, only `localhost` counts."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def listen_tcp(address: TcpAddress, *, or_next: bool = False) -> socket.socket:
    """Bind and listen on `address`. Raises OSError: EADDRINUSE when the port is taken.

    With `or_next` the next free port is used instead, for callers that publish it in the port file.
    """
    family, host = resolve_address(address)
    if not or_next or address.port == 0:
        return bind_socket(family, host, address.port)
    for port in range(address.port, min(address.port + PORTS_TO_TRY, 65536)):
        try:
            return bind_socket(family, host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return bind_socket(family, host, 0)


def resolve_address(address: TcpAddress) -> tuple[socket.AddressFamily, str]:
    """Return the family and the numeric host to bind. IPv4 wins when a name has both."""
    # Given a str, getaddrinfo loads the codec for international names, even for a number.
    host = address.host.encode() if address.host.isascii() else address.host
    addresses = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    family, *_, socket_address = min(addresses, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(socket_address[0])


def bind_socket(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of a daemon that just stopped may linger on the port and must not block it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def load_server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """Build the TLS context of a listener from PEM files. Raises OSError when they do not match."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context
