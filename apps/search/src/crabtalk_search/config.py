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

from .errors import ConfigError

Network: TypeAlias = IPv4Network | IPv6Network

FREE = ("bing", "brave", "duck_duck_go", "mojeek", "wikipedia")
# Those that need a word of the configuration: the table it stands in, its key, the environment's.
TOLD = {
    "searxng": ("url", ""),
    "brave_api": ("key", "BRAVE_API_KEY"),
    "tavily": ("key", "TAVILY_API_KEY"),
}
KNOWN = (*FREE, *TOLD, "ddgs")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Bounds of `fetch`, and the addresses it may ask although they are not public."""

    timeout: float = 15.0
    max_bytes: int = 4 * 1024 * 1024
    max_chars: int = 100_000
    max_redirects: int = 5
    allow: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Config:
    engines: tuple[str, ...] = FREE
    timeout: float = 10.0
    max_results: int = 20
    cache_ttl: float = 300.0
    cache_capacity: int = 256
    fetch: FetchConfig = FetchConfig()
    # What engines were told, by their names.
    told: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Keys that mean nothing here.
    unknown: tuple[str, ...] = ()


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ConfigError. A file that is not there is an empty one."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; correct it, or move it away") from None
    try:
        return configured(Table(document), environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def warn_of_unknown(config: Config) -> None:
    for word in config.unknown:
        log.warning("config/search.toml has %s, which means nothing here and is ignored", word)


def configured(table: "Table", environment: Mapping[str, str]) -> Config:
    told = {}
    for name, (key, variable) in TOLD.items():
        value = table.table(name).text(key) or environment.get(variable, "")
        if value:
            told[name] = value
    engines = table.texts("engines", (*FREE, *told))
    for name in engines:
        check_engine(name, told)
    fetch = table.table("fetch")
    default, bounds = Config(), FetchConfig()
    return Config(
        engines=tuple(dict.fromkeys(engines)),
        timeout=table.number("timeout_secs", default.timeout),
        max_results=int(table.number("max_results", default.max_results)),
        cache_ttl=table.number("cache_ttl_secs", default.cache_ttl, least=0),
        cache_capacity=int(table.number("cache_capacity", default.cache_capacity, least=0)),
        fetch=FetchConfig(
            timeout=fetch.number("timeout_secs", bounds.timeout),
            max_bytes=int(fetch.number("max_bytes", bounds.max_bytes)),
            max_chars=int(fetch.number("max_chars", bounds.max_chars)),
            max_redirects=int(fetch.number("max_redirects", bounds.max_redirects, least=0)),
            allow=tuple(map(network, fetch.texts("allow", ()))),
        ),
        told=told,
        unknown=tuple(table.rest()),
    )


def check_engine(name: str, told: Mapping[str, str]) -> None:
    if name not in KNOWN:
        raise ConfigError(f"there is no engine {name!r}; choose from {', '.join(KNOWN)}")
    if name in TOLD and name not in told:
        key, variable = TOLD[name]
        where = f" or set {variable}" if variable else ""
        raise ConfigError(f'{name} needs its {key}: give [{name}] {key} = "…"{where}')


def network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(
            f"{text!r} in [fetch] allow is no address: write one such as 127.0.0.1 or 10.0.0.0/8"
        ) from None


class Table:
    """A table of the file, which knows what was never asked of it."""

    def __init__(self, values: dict[str, Any], name: str = "") -> None:
        self._values = values
        self._name = name
        self._tables: dict[str, Table] = {}
        self._asked: set[str] = set()

    def table(self, name: str) -> "Table":
        if name not in self._tables:
            value = self._take(name, {})
            if not isinstance(value, dict):
                raise ConfigError(f"{name} is a table: write [{name}] and its keys below")
            self._tables[name] = Table(value, f"{name}.")
        return self._tables[name]

    def text(self, name: str) -> str:
        value = self._take(name, "")
        if not isinstance(value, str):
            raise ConfigError(f"{self._name}{name} is a text: write it in quotes")
        return value

    def texts(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._take(name, list(default))
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f'{self._name}{name} is a list of texts: write {name} = ["…"]')
        return tuple(value)

    def number(self, name: str, default: float, least: float = 1e-3) -> float:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            bound = "of at least 0" if least == 0 else "above 0"
            raise ConfigError(f"{self._name}{name} is a number {bound}, not {value!r}: correct it")
        return value

    def rest(self) -> list[str]:
        mine = [f"{self._name}{name}" for name in self._values if name not in self._asked]
        return mine + [name for table in self._tables.values() for name in table.rest()]

    def _take(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        return self._values.get(name, default)
