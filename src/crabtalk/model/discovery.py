"""Discovery: finds a model if none is configured.

In this order: a key in the environment, a model server on its usual loopback port, the local model
if it is installed. A discovered server is only asked for its models.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from .errors import ApiError
from .http_client import HttpClient, HttpRequest, Timeouts
from .messages import Value
from .provider_settings import ProviderSettings, normalise_base_url

if TYPE_CHECKING:
    from pathlib import Path

PROBE_TIMEOUT = 0.3

SETUP_HELP = """no model is set up. Three ways on:
  - a key: export OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY
  - a server of your own: start Ollama, LM Studio, llama-server or vLLM
  - a tiny model without either: crabtalkd model install
`crabtalkd setup` walks you through them"""


class DiscoveredProvider(Value, frozen=True):
    """A provider that was found without configuration, and why it is offered."""

    settings: ProviderSettings
    reason: str


class LocalServer(Value, frozen=True):
    """A program that runs models locally, and its default address."""

    name: str
    title: str
    base_url: str
    # Ollama's /v1/models includes models that are not installed; this path lists installed ones.
    installed_models_path: str = ""


KNOWN_LOCAL_SERVERS = (
    LocalServer("ollama", "Ollama", "http://127.0.0.1:11434", installed_models_path="/api/tags"),
    LocalServer("lmstudio", "LM Studio", "http://127.0.0.1:1234"),
    LocalServer("llama-server", "llama-server", "http://127.0.0.1:8080"),
    LocalServer("vllm", "vLLM", "http://127.0.0.1:8000"),
)

# The default model of each vendor: the first in its list with one of these prefixes.
PREFERRED_PREFIXES: dict[str, tuple[str, ...]] = {
    "openai": ("gpt-5-mini", "gpt-5", "gpt-4.1-mini", "gpt-4o"),
    "anthropic": ("claude-sonnet", "claude-haiku", "claude-opus"),
    "google": ("gemini-3-flash", "gemini-2.5-flash", "gemini-"),
}


LOCAL_SETTINGS = ProviderSettings(name="local", kind="local", source="crabtalkd model install")


async def discover_providers(
    environ: Mapping[str, str],
    http: HttpClient,
    *,
    servers: Sequence[LocalServer] = KNOWN_LOCAL_SERVERS,
    models_directory: "Path | None" = None,
) -> list[DiscoveredProvider]:
    """Return usable providers, best first. If there are none, show SETUP_HELP."""
    providers = find_environment_providers(environ)
    providers += await find_running_servers(environ, http, servers)
    if models_directory is not None:
        from .local.install import is_installed

        if is_installed(models_directory):
            providers.append(
                DiscoveredProvider(LOCAL_SETTINGS, "the tiny offline model is installed")
            )
    return providers


def find_environment_providers(environ: Mapping[str, str]) -> list[DiscoveredProvider]:
    """Return providers whose keys are set, the most common vendors first."""
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    candidates = (
        ("openai", "OPENAI_API_KEY", "OPENAI_BASE_URL", ()),
        ("openai", "OPENAI_BASE_URL", "OPENAI_BASE_URL", ()),
        ("anthropic", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", ()),
        ("google", "GEMINI_API_KEY", "GEMINI_BASE_URL", ()),
        ("google", "GOOGLE_API_KEY", "GEMINI_BASE_URL", ()),
        ("azure", "AZURE_OPENAI_API_KEY", "AZURE_OPENAI_ENDPOINT", ("AZURE_OPENAI_ENDPOINT",)),
        ("bedrock", "AWS_BEARER_TOKEN_BEDROCK", "", ()),
        ("bedrock", "AWS_ACCESS_KEY_ID", "", ("AWS_SECRET_ACCESS_KEY",)),
    )
    providers: dict[str, DiscoveredProvider] = {}
    for kind, key, base, required in candidates:
        if kind in providers or not all(environ.get(name) for name in (key, *required)):
            continue
        if kind == "bedrock" and not region:
            continue
        is_api_key = kind != "bedrock" and key != base
        settings = ProviderSettings(
            name=kind,
            kind=kind,
            api_key=environ[key] if is_api_key else "",
            base_url=environ.get(base, ""),
            region=region if kind == "bedrock" else "",
            api_version=environ.get("OPENAI_API_VERSION", "") if kind == "azure" else "",
            source=f"${key}",
        )
        providers[kind] = DiscoveredProvider(settings, f"{key} is set")
    return list(providers.values())


async def find_running_servers(
    environ: Mapping[str, str],
    http: HttpClient,
    servers: Sequence[LocalServer] = KNOWN_LOCAL_SERVERS,
    seconds: float = PROBE_TIMEOUT,
) -> list[DiscoveredProvider]:
    """Return servers that answer in time and have a model. All are asked in parallel."""
    candidates = [apply_ollama_host(server, environ) for server in servers]
    answers = await asyncio.gather(
        *(list_server_models(server, http, seconds) for server in candidates)
    )
    return [
        DiscoveredProvider(
            ProviderSettings(
                name=server.name,
                base_url=normalise_base_url(server.base_url, "openai"),
                models=tuple(models),
                source=server.base_url,
            ),
            f"{server.title} answers at {server.base_url}",
        )
        for server, models in zip(candidates, answers, strict=True)
        if models
    ]


def apply_ollama_host(server: LocalServer, environ: Mapping[str, str]) -> LocalServer:
    """Apply OLLAMA_HOST, the address Ollama binds to, which is also where to reach it."""
    host = environ.get("OLLAMA_HOST", "").strip().rstrip("/")
    if server.name != "ollama" or not host:
        return server
    if "://" not in host:
        host = f"http://{host}"
    scheme, _, rest = host.partition("://")
    if ":" not in rest.rsplit("]", 1)[-1]:
        rest = f"{rest}:11434"
    rest = rest.replace("0.0.0.0", "127.0.0.1", 1)  # noqa: S104 - Ollama listens there, not we
    return msgspec.structs.replace(server, base_url=f"{scheme}://{rest}")


async def list_server_models(server: LocalServer, http: HttpClient, seconds: float) -> list[str]:
    """Return the models of a server; none if it is absent, something else, or requires a key."""
    timeouts = Timeouts(connect=seconds, first=seconds, between=seconds)
    path = server.installed_models_path or "/v1/models"
    try:
        async with asyncio.timeout(seconds):
            status, _, body = await http.fetch(
                HttpRequest(server.base_url + path, method="GET"), timeouts
            )
    except (ApiError, TimeoutError):
        return []
    if status != 200:
        return []
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return []
    key = "models" if server.installed_models_path else "data"
    entries = document.get(key) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return []
    names = [entry.get("name") or entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and name]


def choose_preferred_model(kind: str, names: Sequence[str]) -> str:
    """Choose the default model from those a vendor offers. Empty if it offers none."""
    for prefix in PREFERRED_PREFIXES.get(kind, ()):
        for name in names:
            if name.startswith(prefix):
                return name
    return names[0] if names else ""
