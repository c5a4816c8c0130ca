"""The context: the parts that every route and every socket event use."""

import asyncio
from dataclasses import dataclass

from .addresses import TrustedProxies
from .authentication import Authenticator
from .blobs import BlobStore
from .config import RelayConfig
from .database import RelayDatabase
from .limits import RelayLimits
from .presence import PresenceTracker
from .request_bodies import BodyReader
from .socket_hub import SocketHub


@dataclass(frozen=True, slots=True)
class RelayContext:
    config: RelayConfig
    database: RelayDatabase
    blobs: BlobStore
    hub: SocketHub
    presence: PresenceTracker
    authenticator: Authenticator
    body_reader: BodyReader
    proxies: TrustedProxies

    @property
    def limits(self) -> RelayLimits:
        return self.config.limits

    async def remove_blobs(self, names: list[str]) -> None:
        """Delete the blobs of deleted rows. The periodic sweep finds those that this misses."""
        if names:
            await asyncio.to_thread(self.blobs.remove, names)
