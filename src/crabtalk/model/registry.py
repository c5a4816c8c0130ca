"""Registry: all providers as one. It finds the provider for a model, and another if that fails.

Lookups take no lock: a running call keeps the provider it started with, even if providers are
added, removed or switched in the meantime.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from .discovery import (
    KNOWN_LOCAL_SERVERS,
    LOCAL_SETTINGS,
    LocalServer,
    choose_preferred_model,
    discover_providers,
)
from .errors import TRANSIENT, ApiError, ErrorKind
from .http_client import HttpClient
from .messages import Chunk, ModelInfo, Request, Response
from .provider import HttpProvider, Provider
from .provider_factory import build_provider
from .provider_settings import (
    ProviderSettings,
    ProviderSettingsError,
    build_duplicate_model_error,
    read_provider_settings,
    to_config_error,
)

if TYPE_CHECKING:
    from pathlib import Path

# Failures after which another provider is tried. A malformed request would fail there too.
FALLBACK_KINDS = TRANSIENT | {ErrorKind.QUOTA}

SETUP_COMMAND = "crabtalkd setup"


class RegisteredProvider(msgspec.Struct):
    """A provider in the registry, or the error that prevents its use."""

    settings: ProviderSettings
    provider: Provider | ApiError
    advertised_models: list[ModelInfo] = msgspec.field(default_factory=list)

    @property
    def model_names(self) -> list[str]:
        """The configured models, else those that the service advertises."""
        return list(self.settings.models) or [model.name for model in self.advertised_models]

    def list_offered_models(self) -> list[ModelInfo]:
        """Return its models with their context limits, as advertised or else as known to us."""
        advertised = {model.name: model.context_limit for model in self.advertised_models}
        if isinstance(self.provider, ApiError):
            return [ModelInfo(name) for name in self.model_names]
        known = self.provider.context_limit
        return [ModelInfo(name, advertised.get(name) or known(name)) for name in self.model_names]

    @property
    def problem(self) -> ApiError | None:
        return self.provider if isinstance(self.provider, ApiError) else None

    def require_provider(self) -> Provider:
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
        setup: str = SETUP_COMMAND,
    ) -> None:
        self._http = http or HttpClient()
        self._environ = environ
        self._models_directory = models_directory
        self._setup = setup  # the command that helps people without a model
        self._entries: dict[str, RegisteredProvider] = {}
        self._routes: dict[str, RegisteredProvider] = {}
        self._active = ""

    # ── Providers ───────────────────────────────────────────────────────────────────────────

    def add(self, settings: ProviderSettings) -> None:
        """Add a provider. If its settings are unusable, requests for its models raise the error.

        Raises ProviderSettingsError and adds nothing if its name or one of its models is taken.
        """
        if settings.name in self._entries:
            raise ProviderSettingsError(f"a provider called {settings.name!r} is there already")
        for model in settings.models:
            if model in self._routes:
                raise build_duplicate_model_error(model, self._routes[model].settings, settings)
        entry = RegisteredProvider(settings, self._build_provider(settings))
        self._entries[settings.name] = entry
        for model in settings.models:
            self._routes[model] = entry

    def _build_provider(self, settings: ProviderSettings) -> Provider | ApiError:
        try:
            return build_provider(
                settings,
                self._http,
                environ=self._environ,
                models_directory=self._models_directory,
            )
        except ProviderSettingsError as error:
            return to_config_error(error, settings)
        except ApiError as error:
            return error

    async def remove(self, name: str) -> None:
        """Remove a provider and close it. Running calls over HTTP continue to their end."""
        entry = self._entries.pop(name, None)
        if entry is None:
            raise ProviderSettingsError(f"no provider is called {name!r}")
        self._routes = {model: e for model, e in self._routes.items() if e is not entry}
        if self._active and self._active not in self._routes:
            self._active = ""
        await entry.close()

    @property
    def entries(self) -> list[RegisteredProvider]:
        return list(self._entries.values())

    @property
    def secrets(self) -> list[str]:
        """The secrets of all providers, with variables filled in."""
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
    def no_model_message(self) -> str:
        """The error message if no model is configured."""
        return f"no model is set up; `{self._setup}` helps with that"

    @property
    def active(self) -> str:
        """The model for requests that name none; empty if none was chosen or configured."""
        return self._active

    def switch(self, model: str) -> None:
        """Make `model` the default. Raises ApiError if no provider can offer it."""
        if self._find_entry(model) is None:
            raise self._build_unknown_model_error(model)
        self._active = model

    def set_active(self, model: str) -> None:
        """Make `model` the default without checking it, as configuration does at start."""
        self._active = model

    # ── As a Provider ───────────────────────────────────────────────────────────────────────

    async def complete(self, request: Request) -> Response:
        for entry, fallback_request in await self._build_fallback_chain(request):
            try:
                return await entry.require_provider().complete(fallback_request)
            except ApiError as error:
                last = error
                if error.kind not in FALLBACK_KINDS and error.kind is not ErrorKind.CONFIG:
                    raise
        raise last

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        for entry, fallback_request in await self._build_fallback_chain(request):
            seen = False
            try:
                async with aclosing(entry.require_provider().stream(fallback_request)) as chunks:
                    async for chunk in chunks:
                        seen = True
                        yield chunk
                return
            except ApiError as error:
                last = error
                if seen or (
                    error.kind not in FALLBACK_KINDS and error.kind is not ErrorKind.CONFIG
                ):
                    raise
        raise last

    async def models(self) -> list[ModelInfo]:
        """Return the models of all providers. If a provider cannot be reached, its configured
        models are returned."""
        models: list[ModelInfo] = []
        for entry in self.entries:
            try:
                await self.refresh_models(entry)
            except ApiError:
                if not entry.settings.models:
                    continue
            models += entry.list_offered_models()
        return models

    def context_limit(self, model: str) -> int | None:
        entry = self._find_entry(model)
        if entry is None or entry.problem is not None:
            return None
        return entry.require_provider().context_limit(model)

    async def close(self) -> None:
        for entry in self.entries:
            await entry.close()
        await self._http.close()

    # ── Routing ─────────────────────────────────────────────────────────────────────────────

    async def refresh_models(self, entry: RegisteredProvider) -> None:
        """Ask a provider for its models. Raises ApiError."""
        entry.advertised_models = await entry.require_provider().models()

    async def default_model(self) -> str:
        """Return the active model, else the first or preferred model of the first provider that
        works."""
        if self._active:
            return self._active
        problems = []
        for entry in self.entries:
            try:
                if not entry.settings.models and not entry.advertised_models:
                    await self.refresh_models(entry)
                entry.require_provider()
            except ApiError as error:
                problems.append(error)
                continue
            if model := choose_preferred_model(entry.settings.kind, entry.model_names):
                return entry.model_names[0] if entry.settings.models else model
        if problems:
            raise problems[0]
        raise ApiError(ErrorKind.CONFIG, self.no_model_message)

    async def _build_fallback_chain(
        self, request: Request
    ) -> list[tuple[RegisteredProvider, Request]]:
        """Return the provider for a request and its fallbacks, each with the request for its own
        model."""
        model = request.model or await self.default_model()
        entry = self._find_entry(model)
        if entry is None:
            raise self._build_unknown_model_error(model)
        chain = [(entry, replace_model(request, model))]
        seen = {entry.settings.name}
        while entry.settings.fallback and entry.settings.fallback not in seen:
            entry = self._entries.get(entry.settings.fallback)
            if entry is None:
                break
            seen.add(entry.settings.name)
            if not entry.model_names:
                try:
                    await self.refresh_models(entry)
                except ApiError:
                    continue
            if entry.model_names:
                chain.append((entry, replace_model(request, entry.model_names[0])))
        return chain

    def _find_entry(self, model: str) -> RegisteredProvider | None:
        """Return the provider that lists the model, else the only one without configured models."""
        if entry := self._routes.get(model):
            return entry
        for entry in self.entries:
            if any(offered.name == model for offered in entry.advertised_models):
                return entry
        unlisted = [entry for entry in self.entries if not entry.settings.models]
        return unlisted[0] if len(unlisted) == 1 else None

    def _build_unknown_model_error(self, model: str) -> ApiError:
        names = sorted({name for entry in self.entries for name in entry.model_names})
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
    servers: Sequence[LocalServer] = KNOWN_LOCAL_SERVERS,
    setup: str = SETUP_COMMAND,
) -> Registry:
    """Create the registry from a config.toml, or from discovery if it has no providers.

    Raises ProviderSettingsError for an invalid document.
    """
    registry = Registry(environ=environ, models_directory=models_directory, setup=setup)
    configured = read_provider_settings(document)
    if any(settings.fallback == "local" for settings in configured) and not any(
        settings.name == "local" for settings in configured
    ):
        configured.append(LOCAL_SETTINGS)
    if not configured:
        discovered = await discover_providers(
            environ, registry.http, servers=servers, models_directory=models_directory
        )
        configured = [candidate.settings for candidate in discovered]
    for settings in configured:
        if settings.kind == "bedrock":
            # Reading AWS credentials may access files or the network.
            await asyncio.to_thread(registry.add, settings)
        else:
            registry.add(settings)
    if model := get_section(document, "daemon").get("model"):
        registry.set_active(str(model))
    return registry


def get_section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name)
    return section if isinstance(section, Mapping) else {}
