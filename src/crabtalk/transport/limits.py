"""Transport limits, so that no peer can make the process grow without bound or stop answering."""

from dataclasses import dataclass

# Callers waiting to be accepted. The system lowers it to what it allows (net.core.somaxconn).
BACKLOG = 65535
# Refused connections stay open a moment to read the reason. Above this many they are closed at
# once.
MAX_LINGERING = 64


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Defaults that a person never reaches and an attacker does. Times are in seconds."""

    # Connections at once; the next one gets a 503.
    connections: int = 4096
    # Unauthenticated TCP connections at once. They do not count as `connections`.
    strangers: int = 64
    # Requests a connection may send ahead of their answers before the daemon stops reading it.
    pipelined: int = 64
    # Turns, feeds and other long requests that one connection may have running at once; the next
    # one gets a 429.
    in_flight: int = 32
    # Bytes of unprocessed requests that all connections together may have sent.
    inbound_bytes: int = 256 * 1024 * 1024
    # How long a TCP caller may take to say hello, TLS handshake included.
    hello_timeout: float = 10.0
    # How long a peer may leave its answers unread before it loses its connection.
    stall_timeout: float = 30.0
    # How long requests in flight may take to finish when the daemon stops.
    drain_timeout: float = 5.0

    @property
    def max_sockets(self) -> int:
        """The sockets that may be open at once: accepted, unauthenticated and refused ones."""
        return self.connections + self.strangers + MAX_LINGERING

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a number above zero, not {value!r:.80}")
