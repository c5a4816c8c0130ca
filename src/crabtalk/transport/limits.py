"""The bounds a transport keeps, so that no peer can make the process grow or stop answering."""

from dataclasses import dataclass

# Callers who wait to be let in. The system cuts it down to what it allows (net.core.somaxconn).
BACKLOG = 65535
# Refused peers are kept a moment to read why. Past this many at once they are cut off instead.
MAX_LINGERING = 64


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Each has a default that a person never meets and an attacker does. Times are in seconds."""

    # Connections at once; the next one is told 503.
    connections: int = 4096
    # TCP callers at once that have not shown their token. They take no place of the others.
    strangers: int = 64
    # Requests one connection may send ahead of their answers before it is no longer read.
    pipelined: int = 64
    # Turns, feeds and other long requests one connection may have running at once; the next one is
    # told 429.
    in_flight: int = 32
    # Bytes all connections together may have sent of requests that nobody works on yet.
    inbound_bytes: int = 256 * 1024 * 1024
    # How long a TCP caller may take to say hello, TLS handshake included.
    hello_timeout: float = 10.0
    # How long a peer may leave its answers unread before it loses its connection.
    stall_timeout: float = 30.0
    # How long requests in flight may take to finish when the daemon stops.
    drain_timeout: float = 5.0

    @property
    def max_sockets(self) -> int:
        """All who may be at the doors at once: those let in, strangers, and those being refused."""
        return self.connections + self.strangers + MAX_LINGERING

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a number above zero, not {value!r:.80}")
