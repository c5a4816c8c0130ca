"""Creates providers from settings. Each vendor's module is imported on first use."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .http_client import HttpClient, Timeouts
from .provider import Dialect, HttpProvider, Provider, RetryPolicy
from .provider_settings import ProviderSettings, ProviderSettingsError, resolve_settings
from .redaction import find_url_secrets

if TYPE_CHECKING:
    from pathlib import Path


def build_provider(
    settings: ProviderSettings,
    http: HttpClient,
    *,
    environ: Mapping[str, str] = os.environ,
    models_directory: "Path | None" = None,
) -> Provider:
    """Build the provider for `settings`. Raises ProviderSettingsError if a setting is missing."""
    settings = resolve_settings(settings, environ)
    if settings.kind == "local":
        return build_local_provider(settings, http, models_directory)
    dialect = build_dialect(settings, environ)
    return HttpProvider(
        dialect,
        http,
        timeouts=Timeouts(
            connect=settings.connect_timeout,
            first=settings.first_token_timeout,
            between=settings.timeout,
        ),
        retry=RetryPolicy(max_retries=settings.max_retries),
        secrets=list_secrets(settings, dialect),
    )


def list_secrets(settings: ProviderSettings, dialect: Dialect) -> list[str]:
    """Return the credentials sent to the server, for settings with variables filled in."""
    secrets = [settings.api_key, *find_url_secrets(settings.base_url)]
    if settings.kind == "bedrock":
        from .bedrock import BedrockDialect

        if isinstance(dialect, BedrockDialect):
            secrets += dialect.secrets
    return secrets


def build_dialect(settings: ProviderSettings, environ: Mapping[str, str]) -> Dialect:
    name, base, key = settings.name, settings.base_url, settings.api_key
    match settings.kind:
        case "openai":
            from .openai import DEFAULT_BASE, OpenAiDialect

            return OpenAiDialect(name, base=base or DEFAULT_BASE, api_key=key)
        case "anthropic":
            from . import anthropic

            options = {"base": base} if base else {}
            return anthropic.AnthropicDialect(name, api_key=key, **options)
        case "google":
            from . import google

            options = {"base": base} if base else {}
            return google.GoogleDialect(name, api_key=key, **options)
        case "azure":
            from .azure import AzureDialect

            if not base:
                raise ProviderSettingsError(
                    f"provider {name!r} needs base_url, the endpoint of your Azure resource"
                )
            return AzureDialect(name, base=base, api_key=key, api_version=settings.api_version)
        case "bedrock":
            from . import bedrock

            return bedrock.BedrockDialect(
                name,
                region=settings.region or bedrock.read_region(environ),
                credentials=bedrock.read_credentials(environ),
                base=base,
            )
    raise ProviderSettingsError(f"no backend is called {settings.kind!r}")


def build_local_provider(
    settings: ProviderSettings, http: HttpClient, directory: "Path | None"
) -> Provider:
    from .local.provider import LocalProvider

    if directory is None:
        raise ProviderSettingsError(
            f"provider {settings.name!r} is local, and no directory holds its model"
        )
    return LocalProvider(directory, name=settings.name)
