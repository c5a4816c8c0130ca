"""The relay: keeps what gateways and devices say to each other, in an order, and cannot read it.

Accounts, pairing, sessions, messages, files and calls over HTTP and Socket.IO, in one SQLite file
and a folder of blobs. It speaks a protocol of its own and knows neither agents nor the daemon.
"""

from .config import RelayConfig
from .errors import RelayConfigError, RelayError
from .limits import RelayLimits
from .server import RelayServer

__all__ = ["RelayConfig", "RelayConfigError", "RelayError", "RelayLimits", "RelayServer"]
