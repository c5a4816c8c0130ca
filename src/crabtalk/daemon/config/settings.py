"""Config: the settings in config.toml for the process itself. Without a file, all have defaults.

Sections of other packages are read there.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.daemon.events.run_queue import EventLimits
from crabtalk.hooks import DelegateLimits
from crabtalk.mcp import McpLimits
from crabtalk.runtime import RuntimeLimits as RuntimeLimits
from crabtalk.transport import TcpAddress, TransportLimits

from .config_file import ConfigError, read_config_file

T = TypeVar("T")

# Known sections and keys of config.toml. Other packages read their own sections, but a key that no
# package reads is most likely a typing error, and is reported.
SECTIONS = frozenset({"llm", "providers", "daemon", "storage", "env", "limits", "skills"})
DAEMON_KEYS = frozenset({"model", "owners", "tcp", "tls_cert", "tls_key"})
STORAGE_KEYS = frozenset({"url", "durability", "lease", "pool", "statement_timeout"})
FILE_URL = "file:"
DATABASE_URL_PREFIXES = ("postgresql://", "postgres://")
LIMIT_TYPES: tuple[type[Any], ...] = (
    TransportLimits,
    RuntimeLimits,
    FeedLimits,
    DelegateLimits,
    EventLimits,
    McpLimits,
)
LIMIT_KEYS = frozenset(field.name for kind in LIMIT_TYPES for field in dataclasses.fields(kind))
SECTION_KEYS = {
    "daemon": DAEMON_KEYS,
    "storage": STORAGE_KEYS,
    "limits": LIMIT_KEYS,
    "skills": frozenset({"external"}),
}


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Where conversations are stored. The other fields apply to databases; times are in seconds."""

    url: str = dataclasses.field(default=FILE_URL, repr=False)  # may hold a password
    lease: float = 10.0  # how long a daemon that does not renew it keeps its turns
    pool: int = 8  # connections, besides those for listening and for lease renewal
    statement_timeout: float = 10.0

    @property
    def is_shared(self) -> bool:
        """Whether other daemons may use the storage too."""
        return self.url != FILE_URL

    @property
    def secrets(self) -> list[str]:
        """Parts of the url that must not be shown, both as written and percent-decoded."""
        if not self.is_shared:
            return []
        parts = urlsplit(self.url)
        _, _, encoded = parts.netloc.rpartition("@")[0].partition(":")
        query = parse_qsl(parts.query)
        from_query = [value for name, value in query if name in ("password", "sslpassword")]
        return [secret for secret in (encoded, unquote(encoded), *from_query) if secret]


@dataclass(frozen=True, slots=True)
class Config:
    """`tcp` is None if TCP is off; `any_port` is true if no address was configured."""

    tcp: TcpAddress | None = dataclasses.field(default_factory=TcpAddress)
    any_port: bool = True
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: TransportLimits = dataclasses.field(default_factory=TransportLimits)
    runtime_limits: RuntimeLimits = dataclasses.field(default_factory=RuntimeLimits)
    feed_limits: FeedLimits = dataclasses.field(default_factory=FeedLimits)
    delegate_limits: DelegateLimits = dataclasses.field(default_factory=DelegateLimits)
    event_limits: EventLimits = dataclasses.field(default_factory=EventLimits)
    mcp_limits: McpLimits = dataclasses.field(default_factory=McpLimits)
    flush: bool = True  # survive a power cut, not only a crash of the process
    storage: StorageSettings = dataclasses.field(default_factory=StorageSettings)
    # It may hold secrets.
    document: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    unknown_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_cert" if self.tls_cert is None else "tls_key"
            raise ConfigError(f"TLS needs {missing} too: add it to [daemon] in config.toml")
        if self.tcp is not None and not self.tcp.is_loopback and self.tls_cert is None:
            raise ConfigError(
                f"{self.tcp} can be reached from other machines, which needs TLS: set tls_cert and "
                "tls_key in [daemon] of config.toml, or listen on 127.0.0.1"
            )


def load_config(path: Path, *, tcp: str | None = None) -> Config:
    """Read `path`, if it exists; `tcp` from the command line overrides the file."""
    return parse_config(read_config_file(path), path, tcp=tcp)


def parse_config(document: dict[str, Any], path: Path, *, tcp: str | None = None) -> Config:
    """The same for a document that was already read from `path`."""
    daemon = get_section(document, "daemon", path)
    limits = get_section(document, "limits", path)
    storage = get_section(document, "storage", path)
    check_env(get_section(document, "env", path), path)
    check_owners(daemon.get("owners", []), path)
    address = tcp if tcp is not None else daemon.get("tcp")
    return Config(
        tcp=parse_tcp(address) if address is not None else TcpAddress(),
        any_port=address is None,
        tls_cert=resolve_file(daemon, "tls_cert", path),
        tls_key=resolve_file(daemon, "tls_key", path),
        limits=parse_limits(TransportLimits, limits, path),
        runtime_limits=parse_limits(RuntimeLimits, limits, path),
        feed_limits=parse_limits(FeedLimits, limits, path),
        delegate_limits=parse_limits(DelegateLimits, limits, path),
        event_limits=parse_limits(EventLimits, limits, path),
        mcp_limits=parse_limits(McpLimits, limits, path),
        flush=parse_durability(storage, path),
        storage=parse_storage(storage, path),
        document=document,
        unknown_keys=find_unknown_keys(document),
    )


def find_unknown_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that no package reads. Those of [llm] and [[providers]] are checked by their package."""
    tables = {name: table for name, table in document.items() if isinstance(table, Mapping)}
    return (
        *(f"[{name}]" for name in document if name not in SECTIONS),
        *(
            f"{key} in [{name}]"
            for name, keys in SECTION_KEYS.items()
            for key in tables.get(name, ())
            if key not in keys
        ),
    )


def describe_unknown_keys(keys: Iterable[str], path: Path) -> list[str]:
    return [f"{path} has {key}, which means nothing here and is ignored" for key in keys]


def get_section(document: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
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


def resolve_file(daemon: dict[str, Any], key: str, path: Path) -> Path | None:
    """A path from the file; relative paths are relative to its directory."""
    value = daemon.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{key} in {path} must be a path")
    return path.parent / Path(value).expanduser()


def parse_durability(section: dict[str, Any], path: Path) -> bool:
    """Whether appends to files are fsynced."""
    durability = section.get("durability", "fsync")
    if durability not in ("fsync", "os"):
        raise ConfigError(f'durability in {path} must be "fsync" or "os", not {durability!r}')
    return bool(durability == "fsync")


def parse_storage(section: dict[str, Any], path: Path) -> StorageSettings:
    def number(key: str, least: float, most: float) -> float:
        value = section.get(key, getattr(StorageSettings(), key))
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (least <= value <= most)
        ):
            raise ConfigError(f"{key} in [storage] of {path} must be from {least:g} to {most:g}")
        return value

    pool = number("pool", 2, 1000)
    if pool != int(pool):
        raise ConfigError(f"pool in [storage] of {path} must be a whole number")
    return StorageSettings(
        url=parse_url(section.get("url", FILE_URL), path),
        lease=float(number("lease", 0.5, 3600)),
        pool=int(pool),
        statement_timeout=float(number("statement_timeout", 0.1, 600)),
    )


def parse_url(url: object, path: Path) -> str:
    """Errors do not quote the url: it may contain a password."""
    where = f"url in [storage] of {path}"
    if not isinstance(url, str) or not (url == FILE_URL or url.startswith(DATABASE_URL_PREFIXES)):
        raise ConfigError(
            f'{where} must be "file:", or "postgresql://HOST/DATABASE" for what daemons share'
        )
    if "${" in url:
        raise ConfigError(
            f"{where} names a variable, which means nothing there: leave the password out of it, "
            "and set PGPASSWORD in the environment, or add ?passfile=PATH"
        )
    try:
        # An unescaped character in the password may end the address early; then it is not masked.
        is_whole = "@" in urlsplit(url).netloc or "@" not in url
    except ValueError:
        is_whole = False
    if not is_whole:
        raise ConfigError(
            f"{where} is no address; in a name or password, write anything but letters and "
            "digits as %XX"
        )
    return url


def check_env(section: dict[str, Any], path: Path) -> None:
    for name, value in section.items():
        if not isinstance(value, str) or "\0" in value or not name or "=" in name:
            raise ConfigError(f'{name} in [env] of {path} must be text: write {name} = "..."')


def check_owners(owners: object, path: Path) -> None:
    """Strict, because owners have all rights."""
    if not isinstance(owners, list) or not all(isinstance(name, str) and name for name in owners):
        raise ConfigError(
            f'owners in [daemon] of {path} must be a list of senders, such as ["alice", "tg:123"]'
        )


def parse_limits(kind: type[T], section: dict[str, Any], path: Path) -> T:
    """The limits of one package; no key is used by two packages."""
    keys = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{key: value for key, value in section.items() if key in keys})
    except ValueError as error:
        raise ConfigError(f"[limits] in {path}: {error}") from None
