"""Unix sockets and TCP: listening with bounds and credentials, finding a daemon, connecting."""

from typing import TYPE_CHECKING

from crabtalk.late import late

if TYPE_CHECKING:
    from .endpoint import Endpoint
    from .files import remove_leftovers, replace_file
    from .limits import Limits
    from .link import Link
    from .listener import Door, Listener, Statistics
    from .run_files import RunFiles, default_home
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

# Imported on first use: whoever replaces a file needs no wire, and a client no listener.
__getattr__ = late(
    __name__,
    {
        "endpoint": ("Endpoint",),
        "files": ("remove_leftovers", "replace_file"),
        "limits": ("Limits",),
        "link": ("Link",),
        "listener": ("Door", "Listener", "Statistics"),
        "run_files": ("RunFiles", "default_home"),
        "tcp": ("DEFAULT_PORT", "TcpAddress", "listen_tcp", "server_tls"),
        "unix": ("listen_unix", "peer_uid"),
    },
)
