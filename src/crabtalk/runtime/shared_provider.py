"""SharedProvider: a provider and the number of runs that use it.

A provider that was replaced is closed after the last of its runs.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from crabtalk.model import Provider

log = logging.getLogger(__name__)


@runtime_checkable
class HasDefaultModel(Protocol):
    """A provider that knows a model for requests that name none."""

    async def default_model(self) -> str: ...


class SharedProvider:
    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self._user_count = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @contextmanager
    def hold_provider(self) -> Iterator[Provider]:
        self._user_count += 1
        self._unused.clear()
        try:
            yield self.provider
        finally:
            self._user_count -= 1
            if not self._user_count:
                self._unused.set()

    async def choose_model(self, wanted: str) -> str:
        """The wanted model, or else the provider's default. Raises ApiError when there is none."""
        if wanted or not isinstance(self.provider, HasDefaultModel):
            return wanted
        return await self.provider.default_model()

    async def close(self) -> None:
        """Waits until no run uses the provider, then closes it."""
        await self._unused.wait()
        try:
            await self.provider.close()
        except Exception:
            log.exception("the provider %s could not be closed", self.provider.name)
