"""ProviderSettings: the configuration of providers, validated and with variables expand in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import ApiError, ErrorKind

PROVIDER_KINDS = ("openai", "anthropic", "google", "bedrock", "azure", "local")

# People copy the URL of a request. These endpoints are removed from it to get the base URL.
ENDPOINT_PATHS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/audio/transcriptions",
    "/audio/speech",
    "/images/generations",
    "/responses",
    "/messages",
    "/models",
)


class ProviderSettingsError(ValueError):
    """A provider's settings are invalid; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One `[[providers]]` entry, or the `[llm]` shorthand."""

    name: str
    kind: str = "openai"
    base_url: str = ""
    api_key: str = ""
    models: tuple[str, ...] = ()
    max_retries: int = 2
    timeout: float = 30.0  # seconds without a token before a stream is given up
    first_token_timeout: float = 120.0
    connect_timeout: float = 10.0
    fallback: str = ""
    region: str = ""  # bedrock
    api_version: str = ""  # azure
    # Where it was configured, for error messages.
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.kind not in PROVIDER_KINDS:
            raise ProviderSettingsError(
                f"provider {self.name!r} has kind {self.kind!r}; "
                f"write one of {', '.join(PROVIDER_KINDS)}"
            )
        for name in ("timeout", "first_token_timeout", "connect_timeout"):
            if not getattr(self, name) > 0:
                raise ProviderSettingsError(f"{name} of provider {self.name!r} must be above zero")
        if self.max_retries < 0:
            raise ProviderSettingsError(
                f"max_retries of provider {self.name!r} must not be negative"
            )


FIELD_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "kind": str,
    "base_url": str,
    "api_key": str,
    "models": list,
    "max_retries": int,
    "timeout": (int, float),
    "first_token_timeout": (int, float),
    "connect_timeout": (int, float),
    "fallback": str,
    "region": str,
    "api_version": str,
}

TYPE_DESCRIPTIONS: dict[type | tuple[type, ...], str] = {
    str: 'text: write it in "quotes"',
    list: "a list of names",
    int: "a whole number",
    (int, float): "a number",
}


def read_provider_settings(document: Mapping[str, Any]) -> list[ProviderSettings]:
    """Read the providers of a config.toml. Variables are not expand in yet."""
    providers = []
    if llm := document.get("llm"):
        if not isinstance(llm, Mapping):
            raise ProviderSettingsError("llm must be a section: write [llm]")
        model = llm.get("model")
        rest = {key: value for key, value in llm.items() if key != "model"}
        models = {"models": [model]} if model else {}
        providers.append(read_provider_entry({"name": "llm", **rest, **models}, "[llm]"))
    entries = document.get("providers", [])
    if not isinstance(entries, list):
        raise ProviderSettingsError("providers must be a list of sections: write [[providers]]")
    for number, entry in enumerate(entries, 1):
        providers.append(read_provider_entry(entry, f"[[providers]] number {number}"))
    names = [settings.name for settings in providers]
    for settings in providers:
        if names.count(settings.name) > 1:
            raise ProviderSettingsError(
                f"two providers are called {settings.name!r}; names must differ"
            )
        if settings.fallback and settings.fallback not in (*names, "local"):
            raise ProviderSettingsError(
                f"provider {settings.name!r} falls back to {settings.fallback!r}, "
                "which is not there"
            )
    offered: dict[str, ProviderSettings] = {}
    for settings in providers:
        for model in settings.models:
            other = offered.setdefault(model, settings)
            if other is not settings:
                raise build_duplicate_model_error(model, other, settings)
    return providers


def build_duplicate_model_error(
    model: str, first: "ProviderSettings", second: "ProviderSettings"
) -> ProviderSettingsError:
    return ProviderSettingsError(
        f"model {model!r} is offered twice: by {first.name!r} ({first.source}) and by "
        f"{second.name!r} ({second.source}); leave it out of one"
    )


def read_provider_entry(entry: Any, source: str) -> ProviderSettings:
    if not isinstance(entry, Mapping):
        raise ProviderSettingsError(f"{source} must be a section")
    name = entry.get("name", "")
    if not isinstance(name, str) or not name:
        raise ProviderSettingsError(f'{source} has no name; give it one, such as name = "claude"')
    values: dict[str, Any] = {"source": source}
    for key, value in entry.items():
        if key not in FIELD_TYPES:
            raise ProviderSettingsError(f"{source} has {key}, which means nothing there")
        if not isinstance(value, FIELD_TYPES[key]) or isinstance(value, bool):
            raise ProviderSettingsError(
                f"{key} in {source} must be {TYPE_DESCRIPTIONS[FIELD_TYPES[key]]}"
            )
        values[key] = value
    models = values.get("models", [])
    if not all(isinstance(model, str) and model for model in models):
        raise ProviderSettingsError(f"models in {source} must be a list of names")
    values["models"] = tuple(models)
    return ProviderSettings(**values)


def resolve_settings(settings: ProviderSettings, environ: Mapping[str, str]) -> ProviderSettings:
    """Fill in `${VAR}` and normalise the base URL. Raises ProviderSettingsError for a variable
    that is not set."""

    def expand(key: str) -> str:
        return expand_variables(
            getattr(settings, key), environ, f"{key} of provider {settings.name!r}"
        )

    return replace(
        settings,
        base_url=normalise_base_url(expand("base_url"), settings.kind),
        api_key=expand("api_key"),
        region=expand("region"),
    )


def expand_variables(text: str, environ: Mapping[str, str], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in environ:
            raise ProviderSettingsError(
                f"{where} uses ${{{name}}}, which is not set; export {name}"
            )
        return environ[name]

    return re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", value, text)


def normalise_base_url(url: str, kind: str) -> str:
    """Remove an endpoint and trailing slashes, and add `/v1` to a bare host of kind openai."""
    url = url.strip().rstrip("/")
    if not url:
        return ""
    if "://" not in url:
        url = f"http://{url}"
    for endpoint in ENDPOINT_PATHS:
        if url.endswith(endpoint):
            url = url.removesuffix(endpoint).rstrip("/")
            break
    has_path = "/" in url.split("://", 1)[1]
    return f"{url}/v1" if kind == "openai" and not has_path else url


def to_config_error(error: ProviderSettingsError, settings: ProviderSettings) -> ApiError:
    return ApiError(ErrorKind.CONFIG, str(error), provider=settings.name)
