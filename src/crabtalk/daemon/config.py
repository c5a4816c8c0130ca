"""Config: what config.toml says about the process itself. An absent file is a working set-up.

Sections that belong to other rooms are left to them.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crabtalk.transport import Limits, TcpAddress


class ConfigError(Exception):
    """config.toml, or an option that overrides it, cannot be used; says where and what to write."""


@dataclass(frozen=True, slots=True)
class Config:
    """`tcp` is None when TCP is off."""

    tcp: TcpAddress | None = field(default_factory=TcpAddress)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both tls_cert and tls_key in [daemon]")
        if self.tcp is not None and not self.tcp.is_loopback and self.tls_cert is None:
            raise ConfigError(
                f"{self.tcp} can be reached from other machines, which needs TLS: set tls_cert and "
                "tls_key in [daemon] of config.toml, or listen on 127.0.0.1"
            )


def load_config(path: Path, *, tcp: str | None = None) -> Config:
    """Reads `path`, if it exists; `tcp` from the command line wins over what it says."""
    document = read(path)
    daemon = section(document, "daemon", path)
    address = tcp if tcp is not None else daemon.get("tcp")
    return Config(
        tcp=parse_tcp(address) if address is not None else TcpAddress(),
        tls_cert=file_in(daemon, "tls_cert", path),
        tls_key=file_in(daemon, "tls_key", path),
        limits=parse_limits(section(document, "limits", path), path),
    )


def read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    import tomllib  # a start without a file does not pay for it

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def section(document: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = document.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} in {path} must be a section: write [{name}]")
    return value


def parse_tcp(address: object) -> TcpAddress | None:
    if address == "off":
        return None
    try:
        return TcpAddress.parse(str(address))
    except ValueError as error:
        raise ConfigError(f'tcp: {error}, or "off"') from None


def file_in(daemon: dict[str, Any], key: str, path: Path) -> Path | None:
    """A path from the file; relative ones are relative to it."""
    value = daemon.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ConfigError(f"{key} in {path} must be a path")
    return path.parent / Path(value).expanduser()


def parse_limits(given: dict[str, Any], path: Path) -> Limits:
    """Keys this version does not know are left to the rooms that do."""
    known = {known.name for known in dataclasses.fields(Limits)}
    try:
        return Limits(**{key: value for key, value in given.items() if key in known})
    except ValueError as error:
        raise ConfigError(f"[limits] in {path}: {error}") from None
