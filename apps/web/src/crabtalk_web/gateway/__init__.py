"""The gateway: shows the conversations of one sender on that person's devices, through a relay.

It is a client of the daemon and a client of a relay, whoever's that is, and has no part in either.
"""

from .config import GatewayConfig, load_config
from .credentials import Credentials, load_credentials
from .errors import GatewayError, RelayAwayError, RelayRefusedError
from .gateway import Gateway
from .pairing import Pairing
from .relay_http import RelayHttp
from .renewing import renewed
from .store import Store

__all__ = [
    "Credentials",
    "Gateway",
    "GatewayConfig",
    "GatewayError",
    "Pairing",
    "RelayAwayError",
    "RelayHttp",
    "RelayRefusedError",
    "Store",
    "load_config",
    "load_credentials",
    "renewed",
]
