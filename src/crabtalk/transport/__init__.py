"""Unix sockets and TCP: listening with limits and authentication, and connecting to a daemon."""

from typing import TYPE_CHECKING

from crabtalk.lazy_imports import load_lazily

if TYPE_CHECKING:
    from .atomic_files import remove_stale_temporary_files, replace_file
    from .endpoint import Endpoint
    from .framed_connection import FramedConnection
    from .limits import TransportLimits
    from .listener import Listener, ListenerStatistics, ListenOptions
    from .run_files import RunFiles, default_home
    from .tcp import DEFAULT_PORT, TcpAddress, listen_tcp, load_server_tls
    from .unix import listen_unix, read_peer_uid

__all__ = [
    "DEFAULT_PORT",
    "Endpoint",
    "FramedConnection",
    "ListenOptions",
    "Listener",
    "ListenerStatistics",
    "RunFiles",
    "TcpAddress",
    "TransportLimits",
    "default_home",
    "listen_tcp",
    "listen_unix",
    "load_server_tls",
    "read_peer_uid",
    "remove_stale_temporary_files",
    "replace_file",
]

# Imported on first use: replacing a file needs no protocol code, and a client needs no listener.
__getattr__ = load_lazily(
    __name__,
    {
        "endpoint": ("Endpoint",),
        "atomic_files": ("remove_stale_temporary_files", "replace_file"),
        "limits": ("TransportLimits",),
        "framed_connection": ("FramedConnection",),
        "listener": ("ListenOptions", "Listener", "ListenerStatistics"),
        "run_files": ("RunFiles", "default_home"),
        "tcp": ("DEFAULT_PORT", "TcpAddress", "listen_tcp", "load_server_tls"),
        "unix": ("listen_unix", "read_peer_uid"),
    },
)
