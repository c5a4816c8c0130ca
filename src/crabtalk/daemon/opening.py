"""OpeningProvider: a registry of models that is still being opened.

Looking for models can take seconds. The daemon does not wait for it: whoever needs a model does.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any

from crabtalk.model import (
    ApiError,
    Chunk,
    ErrorKind,
    ModelInfo,
    Registry,
    Request,
    Response,
    SettingsError,
)

log = logging.getLogger(__name__)


class OpeningProvider:
    """A Provider. Settings that cannot be used are the error of every request."""

    name = "registry"

    def __init__(self, opening: Coroutine[Any, Any, Registry]) -> None:
        self._task = asyncio.ensure_future(self._open(opening))
        self._registry: Registry | None = None
        self._default = ""  # what `default_model` said last
        self.problem = ""

    async def _open(self, opening: Coroutine[Any, Any, Registry]) -> None:
        try:
            self._registry = await opening
        except SettingsError as error:
            self.problem = str(error)
            log.error("%s", error)  # noqa: TRY400 - a sentence for a person
        except Exception as error:
            self.problem = f"the models could not be opened ({type(error).__name__})"
            log.exception("the models could not be opened")

    @property
    def active(self) -> str:
        """The default model as far as it is known by now."""
        if self._registry is None:
            return ""
        return self._registry.active or self._default

    async def registry(self) -> Registry:
        """Raises ApiError."""
        await asyncio.wait([self._task])
        if self._registry is None:
            raise ApiError(ErrorKind.CONFIG, self.problem or "the daemon is stopping")
        return self._registry

    async def complete(self, request: Request) -> Response:
        return await (await self.registry()).complete(request)

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if self._registry is not None:
            return self._registry.stream(request)  # without a hop in between
        return self._stream(request)

    async def _stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        registry = await self.registry()
        async with aclosing(registry.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def models(self) -> list[ModelInfo]:
        return await (await self.registry()).models()

    async def default_model(self) -> str:
        self._default = await (await self.registry()).default_model()
        return self._default

    def context_limit(self, model: str) -> int | None:
        return self._registry.context_limit(model) if self._registry is not None else None

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._registry is not None:
            await self._registry.close()
