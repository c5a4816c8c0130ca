"""Configuration: `config/search.toml` in the home, every key optional.

engines = ["bing", "duck_duck_go", "searxng"]
timeout_secs = 10

[searxng]
url = "http://localhost:8888"

[fetch]
allow = ["192.168.1.0/24"]
"""

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeAlias

from .errors import SearchConfigError

Network: TypeAlias = IPv4Network | IPv6Network

FREE_ENGINES = ("bing", "brave", "duck_duck_go", "mojeek", "wikipedia")
# Engines that need configuration: the key in the engine's table, and an environment variable.
CONFIGURED_ENGINES = {
    "searxng": ("url", ""),
    "brave_api": ("key", "BRAVE_API_KEY"),
    "tavily": ("key", "TAVILY_API_KEY"),
}
KNOWN_ENGINES = (*FREE_ENGINES, *CONFIGURED_ENGINES, "ddgs")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Limits of `fetch`, and the private networks it may connect to."""

    timeout: float = 15.0
    max_bytes: int = 4 * 1024 * 1024
    max_chars: int = 100_000
    max_redirects: int = 5
    allow: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchConfig:
    engines: tuple[str, ...] = FREE_ENGINES
    timeout: float = 10.0
    max_results: int = 20
    cache_ttl: float = 300.0
    cache_capacity: int = 256
    fetch: FetchConfig = FetchConfig()
    # The setting of each engine that needs one, by the engine's name.
    engine_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Keys of the file that have no meaning.
    unknown_keys: tuple[str, ...] = ()


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> SearchConfig:
    """Raises SearchConfigError. A missing file counts as an empty one."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise SearchConfigError(
            f"cannot read {path}: {error}; correct it, or move it away"
        ) from None
    try:
        return parse_config(ConfigTable(document), environment)
    except SearchConfigError as error:
        raise SearchConfigError(f"{path}: {error}") from None


def warn_of_unknown_keys(config: SearchConfig) -> None:
    for key in config.unknown_keys:
        log.warning("config/search.toml has %s, which means nothing here and is ignored", key)


def parse_config(table: "ConfigTable", environment: Mapping[str, str]) -> SearchConfig:
    settings = {}
    for name, (key, variable) in CONFIGURED_ENGINES.items():
        value = table.get_table(name).get_text(key) or environment.get(variable, "")
        if value:
            settings[name] = value
    engines = table.get_texts("engines", (*FREE_ENGINES, *settings))
    for name in engines:
        check_engine(name, settings)
    fetch = table.get_table("fetch")
    default, bounds = SearchConfig(), FetchConfig()
    return SearchConfig(
        engines=tuple(dict.fromkeys(engines)),
        timeout=table.get_number("timeout_secs", default.timeout),
        max_results=int(table.get_number("max_results", default.max_results)),
        cache_ttl=table.get_number("cache_ttl_secs", default.cache_ttl, least=0),
        cache_capacity=int(table.get_number("cache_capacity", default.cache_capacity, least=0)),
        fetch=FetchConfig(
            timeout=fetch.get_number("timeout_secs", bounds.timeout),
            max_bytes=int(fetch.get_number("max_bytes", bounds.max_bytes)),
            max_chars=int(fetch.get_number("max_chars", bounds.max_chars)),
            max_redirects=int(fetch.get_number("max_redirects", bounds.max_redirects, least=0)),
            allow=tuple(map(parse_network, fetch.get_texts("allow", ()))),
        ),
        engine_settings=settings,
        unknown_keys=tuple(table.list_unused_keys()),
    )


def check_engine(name: str, settings: Mapping[str, str]) -> None:
    if name not in KNOWN_ENGINES:
        raise SearchConfigError(
            f"there is no engine {name!r}; choose from {', '.join(KNOWN_ENGINES)}"
        )
    if name in CONFIGURED_ENGINES and name not in settings:
        key, variable = CONFIGURED_ENGINES[name]
        alternative = f" or set {variable}" if variable else ""
        raise SearchConfigError(f'{name} needs its {key}: give [{name}] {key} = "…"{alternative}')


def parse_network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise SearchConfigError(
            f"{text!r} in [fetch] allow is no address: write one such as 127.0.0.1 or 10.0.0.0/8"
        ) from None


class ConfigTable:
    """A table of the file. It tracks which of its keys were read."""

    def __init__(self, values: dict[str, Any], name: str = "") -> None:
        self._values = values
        self._name = name
        self._tables: dict[str, ConfigTable] = {}
        self._used_keys: set[str] = set()

    def get_table(self, name: str) -> "ConfigTable":
        if name not in self._tables:
            value = self._get_value(name, {})
            if not isinstance(value, dict):
                raise SearchConfigError(f"{name} is a table: write [{name}] and its keys below")
            self._tables[name] = ConfigTable(value, f"{name}.")
        return self._tables[name]

    def get_text(self, name: str) -> str:
        value = self._get_value(name, "")
        if not isinstance(value, str):
            raise SearchConfigError(f"{self._name}{name} is a text: write it in quotes")
        return value

    def get_texts(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._get_value(name, list(default))
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise SearchConfigError(f'{self._name}{name} is a list of texts: write {name} = ["…"]')
        return tuple(value)

    def get_number(self, name: str, default: float, least: float = 1e-3) -> float:
        value = self._get_value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            bound = "of at least 0" if least == 0 else "above 0"
            raise SearchConfigError(
                f"{self._name}{name} is a number {bound}, not {value!r}: correct it"
            )
        return value

    def list_unused_keys(self) -> list[str]:
        mine = [f"{self._name}{name}" for name in self._values if name not in self._used_keys]
        return mine + [name for table in self._tables.values() for name in table.list_unused_keys()]

    def _get_value(self, name: str, default: Any) -> Any:
        self._used_keys.add(name)
        return self._values.get(name, default)
