"""SetupWizard: asks for a provider and writes it into config.toml, keeping the rest as it is."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from crabtalk.model import (
    LOCAL_SETTINGS,
    DiscoveredProvider,
    HttpClient,
    ProviderSettings,
    Registry,
    choose_preferred_model,
    discover_providers,
)

from .progress_bar import DownloadProgress

# Title, provider kind, and the variable that usually holds the key.
VENDORS = (
    ("OpenAI, or anything that speaks its API", "openai", "OPENAI_API_KEY"),
    ("Anthropic", "anthropic", "ANTHROPIC_API_KEY"),
    ("Google Gemini", "google", "GEMINI_API_KEY"),
    ("Azure OpenAI", "azure", "AZURE_OPENAI_API_KEY"),
    ("Amazon Bedrock", "bedrock", ""),
)


class SetupWizard:
    """One run of the setup; asks for everything that the options leave open."""

    def __init__(
        self,
        root: Path,
        document: Mapping[str, Any],
        kind: str | None,
        base_url: str | None,
        api_key: str | None,
        model: str | None,
    ) -> None:
        self._root = root
        self._document = document
        self._kind = kind
        self._base_url = base_url
        self._api_key = api_key
        self._model = model

    def run(self) -> str:
        """Ask, check that the provider answers, and write. Returns a summary to print."""
        settings = self._read_options() if self._kind is not None else self._ask_provider()
        offered = asyncio.run(self._list_models(settings))
        model = self._model or self._ask_model(settings, offered)
        path = self._root / "config.toml"
        old_text = path.read_text() if path.exists() else ""
        save_config(path, add_provider(old_text, settings, model))
        return f"{path} now has {settings.name}; {model or 'its first model'} answers by default"

    def _read_options(self) -> ProviderSettings:
        kind = self._kind or ""
        variable = next((key for _, vendor, key in VENDORS if vendor == kind), "")
        return ProviderSettings(
            name=kind,
            kind=kind,
            base_url=self._base_url or "",
            api_key=self._api_key
            if self._api_key is not None
            else make_variable_reference(variable),
        )

    def _ask_provider(self) -> ProviderSettings:
        """A menu of the discovered providers, the vendors, and the local model."""
        discovered = asyncio.run(self._discover())
        choices = [(f"{p.settings.name}: {p.reason}", p.settings) for p in discovered]
        choices += [
            (f"{title} (with a key)", ProviderSettings(name=kind, kind=kind))
            for title, kind, _ in VENDORS
        ]
        if all(settings.kind != "local" for _, settings in choices):
            choices.append(("the tiny offline model (127 MB to fetch)", LOCAL_SETTINGS))
        click.echo("Which model should answer?")
        for number, (title, _) in enumerate(choices, 1):
            click.echo(f"  {number}. {title}")
        answer = click.prompt("Number", type=click.IntRange(1, len(choices)), default=1)
        settings = choices[answer - 1][1]
        if any(settings is candidate.settings for candidate in discovered):
            return self._reference_key(settings)
        return self._ask_details(settings)

    def _ask_details(self, settings: ProviderSettings) -> ProviderSettings:
        if settings.kind == "local":
            from crabtalk.model.local.install import install_local_model, is_installed

            directory = self._root / "models"
            if not is_installed(directory):
                with DownloadProgress() as progress:
                    install_local_model(directory, progress.update)
            return settings
        variable = next(key for _, kind, key in VENDORS if kind == settings.kind)
        base = ""
        if settings.kind in ("openai", "azure"):
            base = click.prompt(
                "Base URL (empty: the vendor's own)", default="", show_default=False
            )
        if settings.kind == "bedrock":
            region = click.prompt("AWS region", default=os.environ.get("AWS_REGION", "us-east-1"))
            return replace(settings, region=region)
        key = make_variable_reference(variable)
        if not key:
            key = click.prompt("API key", hide_input=True, default="", show_default=False)
        return replace(settings, base_url=base, api_key=key)

    def _reference_key(self, settings: ProviderSettings) -> ProviderSettings:
        """Refer to a discovered key by its variable, so that the key itself is not written."""
        variable = settings.source.removeprefix("$")
        return replace(
            settings,
            api_key=make_variable_reference(variable) if settings.api_key else "",
            models=(),
        )

    async def _discover(self) -> list[DiscoveredProvider]:
        http = HttpClient()
        try:
            return await discover_providers(
                os.environ, http, models_directory=self._root / "models"
            )
        finally:
            await http.close()

    async def _list_models(self, settings: ProviderSettings) -> list[str]:
        """The provider's models. Raises ApiError with its own message if it does not answer."""
        registry = Registry(models_directory=self._root / "models")
        try:
            registry.add(settings)
            (entry,) = registry.entries
            await registry.refresh_models(entry)
            return entry.model_names
        finally:
            await registry.close()

    def _ask_model(self, settings: ProviderSettings, offered: list[str]) -> str:
        suggestion = choose_preferred_model(settings.kind, offered)
        if not sys.stdin.isatty() or len(offered) < 2:
            return suggestion
        click.echo(f"It offers {', '.join(offered[:12])}{' ...' if len(offered) > 12 else ''}")
        return str(click.prompt("Model", default=suggestion))


def add_provider(text: str, settings: ProviderSettings, model: str) -> str:
    """Add or replace a provider in `text`, a config.toml, and make `model` the default.

    Everything else in it, comments included, stays the same.
    """
    import tomlkit

    document = tomlkit.parse(text)
    entry = tomlkit.table()
    for key, value in to_toml_entry(settings).items():
        entry[key] = value
    providers: Any = document.get("providers")
    if providers is None:
        providers = tomlkit.aot()
        document["providers"] = providers
    for index, existing in enumerate(providers):
        if existing.get("name") == settings.name:
            providers[index] = entry
            break
    else:
        providers.append(entry)
    if model:
        daemon: Any = document.setdefault("daemon", tomlkit.table())
        daemon["model"] = model
    return tomlkit.dumps(document)


def to_toml_entry(settings: ProviderSettings) -> dict[str, Any]:
    """The settings that are not empty."""
    entry: dict[str, Any] = {"name": settings.name, "kind": settings.kind}
    for key in ("base_url", "api_key", "region", "api_version"):
        if value := getattr(settings, key):
            entry[key] = value
    if settings.models:
        entry["models"] = list(settings.models)
    return entry


def save_config(path: Path, text: str) -> None:
    """Created with mode 0600, because it may hold a key."""
    from crabtalk.transport import replace_file  # late: not needed if setup is aborted

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_file(path, text.encode(), 0o600)


def make_variable_reference(variable: str, environ: Mapping[str, str] = os.environ) -> str:
    """`${VAR}` if that variable is set, so that the key itself is not written; else empty."""
    return f"${{{variable}}}" if variable and environ.get(variable) else ""
