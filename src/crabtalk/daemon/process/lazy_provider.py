"""LazyProvider: opens the registry of models on first use.

Discovering models can take seconds, and the HTTP client a third of the memory. A daemon that is
idle needs neither.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    ModelInfo,
    ProviderSettingsError,
    Registry,
    Request,
    Response,
)

log = logging.getLogger(__name__)


class LazyProvider:
    """A Provider. If the registry cannot be opened, every request fails with the reason."""

    name = "registry"

    def __init__(self, opener: Callable[[], Coroutine[Any, Any, Registry]], default: str) -> None:
        self._opener = opener
        self._default = default  # empty if it is not known without asking a provider
        self._open_task: asyncio.Task[None] | None = None
        self._preload_task: asyncio.Task[None] | None = None
        self._registry: Registry | None = None
        self._is_closed = False
        self.problem = ""

    @property
    def active(self) -> str:
        """The default model; empty if it is not known yet."""
        if self._registry is not None and self._registry.active:
            return self._registry.active
        return self._default

    def preload_if_used(self, other: "LazyProvider") -> None:
        """Discover models now, in the background, if `other` has been used."""
        was_used = other._open_task is not None or other._preload_task is not None
        if was_used and not self.active:
            self._preload_task = asyncio.ensure_future(self._preload())

    async def _preload(self) -> None:
        with suppress(ApiError):  # raised again for the first request
            await self.default_model()

    async def open_registry(self) -> Registry:
        """Open the registry, once. Raises ApiError. Cancelled, the opening goes on."""
        if self._registry is None:
            if self._open_task is None and not self._is_closed:
                self._open_task = asyncio.ensure_future(self._open())
            if self._open_task is not None:
                await asyncio.wait([self._open_task])
        if self._registry is None:
            raise ApiError(ErrorKind.CONFIG, self.problem or "the daemon is stopping")
        return self._registry

    async def _open(self) -> None:
        try:
            self._registry = await self._opener()
        except ProviderSettingsError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"the models could not be opened ({type(error).__name__})"
            log.exception("the models could not be opened")

    async def complete(self, request: Request) -> Response:
        return await (await self.open_registry()).complete(request)

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if self._registry is not None:
            return self._registry.stream(request)  # without another generator in between
        return self._stream(request)

    async def _stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        registry = await self.open_registry()
        async with aclosing(registry.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def models(self) -> list[ModelInfo]:
        return await (await self.open_registry()).models()

    async def default_model(self) -> str:
        self._default = await (await self.open_registry()).default_model()
        return self._default

    def context_limit(self, model: str) -> int | None:
        return self._registry.context_limit(model) if self._registry is not None else None

    async def close(self) -> None:
        self._is_closed = True
        for task in (self._preload_task, self._open_task):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._registry is not None:
            await self._registry.close()
