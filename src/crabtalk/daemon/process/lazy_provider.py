"""OpeningProvider: a registry of models, opened when somebody first needs one.

Looking for models can take seconds, and speaking HTTP a third of the memory. A daemon that only
waits needs neither.
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
    """A Provider. What keeps the registry from being opened is the error of every request."""

    name = "registry"

    def __init__(self, opening: Callable[[], Coroutine[Any, Any, Registry]], default: str) -> None:
        self._open_callback = opening
        self._default = default  # as far as it is known without asking anybody
        self._open_task: asyncio.Task[None] | None = None
        self._preload_task: asyncio.Task[None] | None = None
        self._registry: Registry | None = None
        self._is_closed = False
        self.problem = ""

    @property
    def active(self) -> str:
        """The default model as far as it is known by now."""
        if self._registry is not None and self._registry.active:
            return self._registry.active
        return self._default

    def preload_if_used(self, other: "LazyProvider") -> None:
        """Looks for models at once, in the background, if the other has been needed."""
        was_needed = other._open_task is not None or other._preload_task is not None
        if was_needed and not self.active:
            self._preload_task = asyncio.ensure_future(self._preload())

    async def _preload(self) -> None:
        with suppress(ApiError):  # whoever needs one is told
            await self.default_model()

    async def open_registry(self) -> Registry:
        """Opens it, once. Raises ApiError. Cancelled, the opening goes on."""
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
            self._registry = await self._open_callback()
        except ProviderSettingsError as error:
            self.problem = str(error)
        except Exception as error:
            self.problem = f"the models could not be opened ({type(error).__name__})"
            log.exception("the models could not be opened")

    async def complete(self, request: Request) -> Response:
        return await (await self.open_registry()).complete(request)

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if self._registry is not None:
            return self._registry.stream(request)  # without a hop in between
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
