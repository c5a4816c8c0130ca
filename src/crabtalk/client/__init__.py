"""The client library: find the daemon, call it, follow its streams. Depends only on protobuf."""

from .client import Client, connect
from .errors import (
    CannotConnectError,
    ConnectionClosedError,
    DaemonNotRunningError,
    ServerError,
    UnexpectedReplyError,
)
from .events import Event
from .sync_client import SyncClient, connect_sync

__all__ = [
    "CannotConnectError",
    "Client",
    "ConnectionClosedError",
    "DaemonNotRunningError",
    "Event",
    "ServerError",
    "SyncClient",
    "UnexpectedReplyError",
    "connect",
    "connect_sync",
]
