"""Config: what config.toml says about the process itself. An absent file is a working set-up.

Sections that belong to other rooms are left to them.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from crabtalk.hooks import DelegateLimits
from crabtalk.mcp import McpLimits
from crabtalk.runtime import Limits as RuntimeLimits
from crabtalk.transport import Limits, TcpAddress

from .config_file import ConfigError, read
from .feed import FeedLimits
from .firings import EventLimits

T = TypeVar("T")

# What config.toml may say. Sections of other rooms are theirs to read, but a word nobody reads is
# most likely a slip of the pen, and is said to be one.
SECTIONS = frozenset({"llm", "providers", "daemon", "storage", "env", "limits", "skills"})
DAEMON_KEYS = frozenset({"model", "tcp", "tls_cert", "tls_key"})
STORAGE_KEYS = frozenset({"url", "durability"})
LIMIT_KINDS: tuple[type[Any], ...] = (
    Limits,
    RuntimeLimits,
    FeedLimits,
    DelegateLimits,
    EventLimits,
    McpLimits,
)
LIMIT_KEYS = frozenset(field.name for kind in LIMIT_KINDS for field in dataclasses.fields(kind))


@dataclass(frozen=True, slots=True)
class Config:
    """`tcp` is None when TCP is off; `any_port` when nobody asked for its port in particular."""

    tcp: TcpAddress | None = dataclasses.field(default_factory=TcpAddress)
    any_port: bool = True
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits = dataclasses.field(default_factory=Limits)
    runtime_limits: RuntimeLimits = dataclasses.field(default_factory=RuntimeLimits)
    feed_limits: FeedLimits = dataclasses.field(default_factory=FeedLimits)
    delegate_limits: DelegateLimits = dataclasses.field(default_factory=DelegateLimits)
    event_limits: EventLimits = dataclasses.field(default_factory=EventLimits)
    mcp_limits: McpLimits = dataclasses.field(default_factory=McpLimits)
    flush: bool = True  # survive a power cut, not only the death of the process
    document: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    unknown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            lacking = "tls_cert" if self.tls_cert is None else "tls_key"
            raise ConfigError(f"TLS needs {lacking} too: add it to [daemon] in config.toml")
        if self.tcp is not None and not self.tcp.is_loopback and self.tls_cert is None:
            raise ConfigError(
                f"{self.tcp} can be reached from other machines, which needs TLS: set tls_cert and "
                "tls_key in [daemon] of config.toml, or listen on 127.0.0.1"
            )


def load_config(path: Path, *, tcp: str | None = None) -> Config:
    """Reads `path`, if it exists; `tcp` from the command line wins over what it says."""
    return parse_config(read(path), path, tcp=tcp)


def parse_config(document: dict[str, Any], path: Path, *, tcp: str | None = None) -> Config:
    """The same for a document that was read from `path` already."""
    daemon = section(document, "daemon", path)
    limits = section(document, "limits", path)
    storage = section(document, "storage", path)
    check_env(section(document, "env", path), path)
    address = tcp if tcp is not None else daemon.get("tcp")
    return Config(
        tcp=parse_tcp(address) if address is not None else TcpAddress(),
        any_port=address is None,
        tls_cert=file_in(daemon, "tls_cert", path),
        tls_key=file_in(daemon, "tls_key", path),
        limits=parse_limits(Limits, limits, path),
        runtime_limits=parse_limits(RuntimeLimits, limits, path),
        feed_limits=parse_limits(FeedLimits, limits, path),
        delegate_limits=parse_limits(DelegateLimits, limits, path),
        event_limits=parse_limits(EventLimits, limits, path),
        mcp_limits=parse_limits(McpLimits, limits, path),
        flush=parse_storage(storage, path),
        document=document,
        unknown=(
            *(f"[{name}]" for name in document if name not in SECTIONS),
            *(f"{key} in [daemon]" for key in daemon if key not in DAEMON_KEYS),
            *(f"{key} in [storage]" for key in storage if key not in STORAGE_KEYS),
            *(f"{key} in [limits]" for key in limits if key not in LIMIT_KEYS),
        ),
    )


def section(document: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} in {path} must be a section: write [{name}]")
    return value


def parse_tcp(address: object) -> TcpAddress | None:
    if isinstance(address, str) and address.lower() == "off":
        return None
    try:
        return TcpAddress.parse(str(address))
    except ValueError as error:
        raise ConfigError(f"tcp: {error}; or off") from None


def file_in(daemon: dict[str, Any], key: str, path: Path) -> Path | None:
    """A path from the file; relative ones are relative to it."""
    value = daemon.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{key} in {path} must be a path")
    return path.parent / Path(value).expanduser()


def parse_storage(given: dict[str, Any], path: Path) -> bool:
    """Whether appends are flushed. The one place to keep conversations is the home, so far."""
    if (url := given.get("url", "file:")) != "file:":
        raise ConfigError(f'url in [storage] of {path} must be "file:", not {url!r}')
    durability = given.get("durability", "fsync")
    if durability not in ("fsync", "os"):
        raise ConfigError(f'durability in {path} must be "fsync" or "os", not {durability!r}')
    return bool(durability == "fsync")


def check_env(given: dict[str, Any], path: Path) -> None:
    for name, value in given.items():
        if not isinstance(value, str) or "\0" in value or not name or "=" in name:
            raise ConfigError(f'{name} in [env] of {path} must be text: write {name} = "..."')


def parse_limits(kind: type[T], given: dict[str, Any], path: Path) -> T:
    """Those of one room; the keys of all rooms differ."""
    keys = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{key: value for key, value in given.items() if key in keys})
    except ValueError as error:
        raise ConfigError(f"[limits] in {path}: {error}") from None
