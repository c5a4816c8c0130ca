"""The core: what every route and every socket event works with."""

import asyncio
from dataclasses import dataclass

from .addresses import TrustedProxies
from .blobs import Blobs
from .config import RelayConfig
from .database import Database
from .doorman import Doorman
from .hub import Hub
from .limits import Limits
from .mailroom import Mailroom
from .presence import Presence


@dataclass(frozen=True, slots=True)
class Core:
    config: RelayConfig
    database: Database
    blobs: Blobs
    hub: Hub
    presence: Presence
    doorman: Doorman
    mailroom: Mailroom
    proxies: TrustedProxies

    @property
    def limits(self) -> Limits:
        return self.config.limits

    async def remove_blobs(self, names: list[str]) -> None:
        """Those of rows that are gone. What this leaves behind the sweeper finds."""
        if names:
            await asyncio.to_thread(self.blobs.remove, names)
