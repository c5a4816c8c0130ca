"""Registry: all providers as one. Finds the provider for a model, and another when it fails.

Looking up takes no lock and copies nothing: a call in flight keeps the provider it started with,
whatever is added, removed or switched meanwhile.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from .backends import build
from .discovery import LOCAL, SERVERS, LocalServer, discover, preferred
from .errors import TRANSIENT, ApiError, ErrorKind
from .http import HttpClient
from .messages import Chunk, ModelInfo, Request, Response
from .provider import HttpProvider, Provider
from .settings import (
    ProviderSettings,
    SettingsError,
    offered_twice,
    read_settings,
    unusable,
)

if TYPE_CHECKING:
    from pathlib import Path

# Failures after which another provider may do better. A malformed request would fail there too.
FALLS_BACK = TRANSIENT | {ErrorKind.QUOTA}

SETUP = "crabtalkd setup"


class Entry(msgspec.Struct):
    """A provider in the registry, or the reason why it cannot be used."""

    settings: ProviderSettings
    provider: Provider | ApiError
    advertised: list[ModelInfo] = msgspec.field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Its models: those configured, else those it says it has."""
        return list(self.settings.models) or [model.name for model in self.advertised]

    def offered(self) -> list[ModelInfo]:
        """Its models, with what is known of them, by its own word or without asking."""
        told = {model.name: model.context_limit for model in self.advertised}
        if isinstance(self.provider, ApiError):
            return [ModelInfo(name) for name in self.names]
        known = self.provider.context_limit
        return [ModelInfo(name, told.get(name) or known(name)) for name in self.names]

    @property
    def problem(self) -> ApiError | None:
        return self.provider if isinstance(self.provider, ApiError) else None

    def get(self) -> Provider:
        if isinstance(self.provider, ApiError):
            raise self.provider
        return self.provider

    async def close(self) -> None:
        if not isinstance(self.provider, ApiError):
            await self.provider.close()


class Registry:
    """A Provider made of providers."""

    name = "registry"

    def __init__(
        self,
        http: HttpClient | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        models_directory: "Path | None" = None,
        setup: str = SETUP,
    ) -> None:
        self._http = http or HttpClient()
        self._environ = environ
        self._models_directory = models_directory
        self._setup = setup  # what a person types who has no model yet
        self._entries: dict[str, Entry] = {}
        self._routes: dict[str, Entry] = {}
        self._active = ""

    # ── Who is there ────────────────────────────────────────────────────────────────────────

    def add(self, settings: ProviderSettings) -> None:
        """Adds a provider. Settings that cannot be used are kept, and are the error of its models.

        Raises SettingsError, and adds nothing, when its name or one of its models is taken.
        """
        if settings.name in self._entries:
            raise SettingsError(f"a provider called {settings.name!r} is there already")
        for model in settings.models:
            if model in self._routes:
                raise offered_twice(model, self._routes[model].settings, settings)
        entry = Entry(settings, self._build(settings))
        self._entries[settings.name] = entry
        for model in settings.models:
            self._routes[model] = entry

    def _build(self, settings: ProviderSettings) -> Provider | ApiError:
        try:
            return build(
                settings,
                self._http,
                environ=self._environ,
                models_directory=self._models_directory,
            )
        except SettingsError as error:
            return unusable(error, settings)
        except ApiError as error:
            return error

    async def remove(self, name: str) -> None:
        """Forgets a provider. Calls in flight end as they would; then it is closed."""
        entry = self._entries.pop(name, None)
        if entry is None:
            raise SettingsError(f"no provider is called {name!r}")
        self._routes = {model: e for model, e in self._routes.items() if e is not entry}
        if self._active and self._active not in self._routes:
            self._active = ""
        await entry.close()

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    @property
    def secrets(self) -> list[str]:
        """What providers send in confidence, with variables filled in."""
        providers = [entry.provider for entry in self.entries]
        return [
            secret
            for provider in providers
            if isinstance(provider, HttpProvider)
            for secret in provider.secrets
        ]

    @property
    def http(self) -> HttpClient:
        return self._http

    @property
    def no_model(self) -> str:
        """What is said where there is none."""
        return f"no model is set up; `{self._setup}` helps with that"

    @property
    def active(self) -> str:
        """The model for requests that name none; empty while nobody has chosen or been asked."""
        return self._active

    def switch(self, model: str) -> None:
        """Makes `model` the default. Raises ApiError when it is known not to be there."""
        if self._find(model) is None:
            raise self._no_such(model)
        self._active = model

    def prefer(self, model: str) -> None:
        """Makes `model` the default without asking anybody, as configuration does at start."""
        self._active = model

    # ── As a Provider ───────────────────────────────────────────────────────────────────────

    async def complete(self, request: Request) -> Response:
        for entry, asked in await self._chain(request):
            try:
                return await entry.get().complete(asked)
            except ApiError as error:
                last = error
                if error.kind not in FALLS_BACK and error.kind is not ErrorKind.CONFIG:
                    raise
        raise last

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        for entry, asked in await self._chain(request):
            seen = False
            try:
                async with aclosing(entry.get().stream(asked)) as chunks:
                    async for chunk in chunks:
                        seen = True
                        yield chunk
                return
            except ApiError as error:
                last = error
                if seen or (error.kind not in FALLS_BACK and error.kind is not ErrorKind.CONFIG):
                    raise
        raise last

    async def models(self) -> list[ModelInfo]:
        """What all providers offer. Those that cannot be asked offer what is configured."""
        found: list[ModelInfo] = []
        for entry in self.entries:
            try:
                await self.ask(entry)
            except ApiError:
                if not entry.settings.models:
                    continue
            found += entry.offered()
        return found

    def context_limit(self, model: str) -> int | None:
        entry = self._find(model)
        if entry is None or entry.problem is not None:
            return None
        return entry.get().context_limit(model)

    async def close(self) -> None:
        for entry in self.entries:
            await entry.close()
        await self._http.close()

    # ── Routing ─────────────────────────────────────────────────────────────────────────────

    async def ask(self, entry: Entry) -> None:
        """Learns what a provider offers. Raises ApiError."""
        entry.advertised = await entry.get().models()

    async def default_model(self) -> str:
        """The active model; else the first configured, or advertised, of the first provider."""
        if self._active:
            return self._active
        problems = []
        for entry in self.entries:
            try:
                if not entry.settings.models and not entry.advertised:
                    await self.ask(entry)
                entry.get()
            except ApiError as error:
                problems.append(error)
                continue
            if model := preferred(entry.settings.kind, entry.names):
                return entry.names[0] if entry.settings.models else model
        if problems:
            raise problems[0]
        raise ApiError(ErrorKind.CONFIG, self.no_model)

    async def _chain(self, request: Request) -> list[tuple[Entry, Request]]:
        """The provider for a request, then those it falls back to, each with its own model."""
        model = request.model or await self.default_model()
        entry = self._find(model)
        if entry is None:
            raise self._no_such(model)
        chain = [(entry, replace_model(request, model))]
        seen = {entry.settings.name}
        while entry.settings.fallback and entry.settings.fallback not in seen:
            entry = self._entries.get(entry.settings.fallback)
            if entry is None:
                break
            seen.add(entry.settings.name)
            if not entry.names:
                try:
                    await self.ask(entry)
                except ApiError:
                    continue
            if entry.names:
                chain.append((entry, replace_model(request, entry.names[0])))
        return chain

    def _find(self, model: str) -> Entry | None:
        """The provider that lists the model; else the one that could have any."""
        if entry := self._routes.get(model):
            return entry
        for entry in self.entries:
            if any(offered.name == model for offered in entry.advertised):
                return entry
        unlisted = [entry for entry in self.entries if not entry.settings.models]
        return unlisted[0] if len(unlisted) == 1 else None

    def _no_such(self, model: str) -> ApiError:
        names = sorted({name for entry in self.entries for name in entry.names})
        known = f"; there are {', '.join(names[:10])}" if names else ""
        return ApiError(ErrorKind.NOT_FOUND, f"no provider offers model {model!r}{known}")


def replace_model(request: Request, model: str) -> Request:
    if request.model == model:
        return request
    import msgspec

    return msgspec.structs.replace(request, model=model)


async def open_registry(
    document: Mapping[str, Any],
    *,
    environ: Mapping[str, str] = os.environ,
    models_directory: "Path | None" = None,
    servers: Sequence[LocalServer] = SERVERS,
    setup: str = SETUP,
) -> Registry:
    """The registry a config.toml describes; where it describes none, what can be found.

    Raises SettingsError for a document that cannot be used.
    """
    registry = Registry(environ=environ, models_directory=models_directory, setup=setup)
    configured = read_settings(document)
    if any(settings.fallback == "local" for settings in configured) and not any(
        settings.name == "local" for settings in configured
    ):
        configured.append(LOCAL)
    if not configured:
        found = await discover(
            environ, registry.http, servers=servers, models_directory=models_directory
        )
        configured = [candidate.settings for candidate in found]
    for settings in configured:
        if settings.kind == "bedrock":
            # Amazon's credentials may come from files, or from a service on the network.
            await asyncio.to_thread(registry.add, settings)
        else:
            registry.add(settings)
    if model := section(document, "daemon").get("model"):
        registry.prefer(str(model))
    return registry


def section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}
