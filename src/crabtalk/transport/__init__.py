"""Unix sockets and TCP: listening with bounds and credentials, finding a daemon, connecting."""

from .endpoint import Endpoint, RunFiles, default_home
from .files import remove_leftovers, replace_file
from .limits import Limits
from .link import Link
from .listener import Door, Listener, Statistics
from .tcp import DEFAULT_PORT, TcpAddress, listen_tcp, server_tls
from .unix import listen_unix, peer_uid

__all__ = [
    "DEFAULT_PORT",
    "Door",
    "Endpoint",
    "Limits",
    "Link",
    "Listener",
    "RunFiles",
    "Statistics",
    "TcpAddress",
    "default_home",
    "listen_tcp",
    "listen_unix",
    "peer_uid",
    "remove_leftovers",
    "replace_file",
    "server_tls",
]
