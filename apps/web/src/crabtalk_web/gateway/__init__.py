"""The gateway: shows the conversations of one sender on that person's devices, through a relay.

It is a client of the daemon and of a relay, no matter who runs the relay, and a part of neither.
"""

from .config import GatewayConfig, load_config
from .credentials import RelayCredentials, load_credentials
from .errors import RelayRefusedError, RelayUnavailableError, WebGatewayError
from .machine_pairing import MachinePairing
from .relay_http import RelayHttp
from .renewal_request import request_renewal
from .web_folder import WebFolder
from .web_gateway import WebGateway

__all__ = [
    "GatewayConfig",
    "MachinePairing",
    "RelayCredentials",
    "RelayHttp",
    "RelayRefusedError",
    "RelayUnavailableError",
    "WebFolder",
    "WebGateway",
    "WebGatewayError",
    "load_config",
    "load_credentials",
    "request_renewal",
]
