"""An agent daemon: one process owns the conversations, everything else connects to it.

    async with crabtalk.connect() as c:
        async for event in c.stream("crab", "hi"):
            ...

The names below load the client when first used, so that a program which wants another room (say
`crabtalk.memory`) does not pay for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, ServerError, SyncClient, connect, connect_sync

__version__ = "0.1.0"

__all__ = ["Client", "ServerError", "SyncClient", "__version__", "connect", "connect_sync"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import client

    return getattr(client, name)
