"""Backend: a provider in use. One that was replaced is closed when its last run is over."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from crabtalk.model import Provider

log = logging.getLogger(__name__)


@runtime_checkable
class HasDefault(Protocol):
    """A provider that knows a model for requests that name none."""

    async def default_model(self) -> str: ...


class Backend:
    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @contextmanager
    def used(self) -> Iterator[Provider]:
        self._users += 1
        self._unused.clear()
        try:
            yield self.provider
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def model(self, wanted: str) -> str:
        """The model that will be asked. Raises ApiError when there is none to choose."""
        if wanted or not isinstance(self.provider, HasDefault):
            return wanted
        return await self.provider.default_model()

    async def close(self) -> None:
        """Waits for those who use it, then gives back what it holds."""
        await self._unused.wait()
        try:
            await self.provider.close()
        except Exception:
            log.exception("the provider %s could not be closed", self.provider.name)
