"""An agent daemon: one process owns the conversations, and clients connect to it.

    async with crabtalk.connect() as c:
        async for event in c.stream("crab", "hi"):
            ...

The names below load the client when first used, so that a program that needs another package (say
`crabtalk.memory`) does not load it.
"""

from typing import TYPE_CHECKING

from .lazy_imports import load_lazily

if TYPE_CHECKING:
    from .client import Client, ServerError, SyncClient, connect, connect_sync

__version__ = "0.1.0"

__all__ = ["Client", "ServerError", "SyncClient", "__version__", "connect", "connect_sync"]


def __dir__() -> list[str]:
    return __all__


__getattr__ = load_lazily(__name__, {"client": [name for name in __all__ if name != "__version__"]})
