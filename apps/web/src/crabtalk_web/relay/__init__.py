"""The relay: stores and forwards what gateways and devices send each other, and cannot read it.

It serves accounts, pairing, sessions, messages, files and calls over HTTP and Socket.IO, from one
SQLite file and a folder of blobs. It has its own protocol and knows neither agents nor the daemon.
"""

from .config import RelayConfig
from .errors import RelayConfigError, RelayError
from .limits import RelayLimits
from .server import RelayServer

__all__ = ["RelayConfig", "RelayConfigError", "RelayError", "RelayLimits", "RelayServer"]
