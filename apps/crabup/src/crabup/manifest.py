"""Parses and checks package manifests. Strangers write them, so nothing in them is trusted.

It reads no file but the manifest; `install_plan` decides what a manifest leads to.
"""

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .errors import CrabupError
from .programs import DISTRIBUTION_PATTERN

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
CHECKSUM_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")
MAX_MANIFEST_BYTES = 1024 * 1024

T = TypeVar("T")


class ManifestError(CrabupError):
    """A manifest cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class PackageAgent:
    """An agent of a package. `mcps` is None if the manifest does not say which servers it has."""

    name: str
    description: str = ""
    prompt: str = ""
    model: str = ""
    thinking: bool = False
    skills: tuple[str, ...] = ()
    mcps: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True)
class PackageManifest:
    name: str
    text: bytes
    description: str = ""
    repository: str = ""
    branch: str = ""
    checksum: str = ""
    script: str = ""
    mcps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    agents: tuple[PackageAgent, ...] = ()
    # The distribution of each command.
    commands: Mapping[str, str] = field(default_factory=dict)


def read_manifest(path: Path, name: str) -> PackageManifest:
    """The manifest of the package `name`. Raises ManifestError."""
    check_package_name(name)
    try:
        if path.is_symlink() or not path.is_file():
            raise ManifestError(f"there is no package {name}: {path} is not a file; check the name")
        data = path.read_bytes()
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}; check its rights") from None
    return parse_manifest(data, name)


def parse_manifest(data: bytes, name: str) -> PackageManifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"the manifest of {name} has more than {MAX_MANIFEST_BYTES} bytes; report it"
        )
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest of {name} is not TOML: {error}; report it") from None
    parser = ManifestParser(name)
    package = parser.read_table(document, "package")
    if (actual_name := parser.read_text(package, "name", "package")) != name:
        raise ManifestError(f"the manifest of {name} is that of {actual_name!r}; report it")
    mcps = {
        key: parser.parse_server(key, value)
        for key, value in parser.read_table(document, "mcps").items()
    }
    checksum = parser.read_text(package, "checksum", "package")
    if checksum and not CHECKSUM_PATTERN.fullmatch(checksum):
        raise parser.make_error("package.checksum must be sha256: and 64 hexadecimal digits")
    return PackageManifest(
        name,
        data,
        parser.read_text(package, "description", "package"),
        parser.read_text(package, "repository", "package"),
        parser.read_text(package, "branch", "package"),
        checksum,
        parser.read_text(parser.read_table(package, "setup"), "script", "package.setup"),
        mcps,
        tuple(
            parser.parse_agent(key, value, mcps)
            for key, value in parser.read_table(document, "agents").items()
        ),
        {
            key: parser.parse_command(key, value)
            for key, value in parser.read_table(document, "commands").items()
        },
    )


def check_package_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise ManifestError(
            f"{name!r} cannot be the name of a package: take lower-case letters, digits, - and _"
        )


def is_agent_name(name: str) -> bool:
    """The daemon's rule for names of agents, which are also names of files."""
    is_odd = any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name)
    is_long = len(name) > 64 or len(name.encode(errors="replace")) > 192
    is_outside = bool(set(name) & set('/\\.[]"'))
    return bool(name) and name == name.strip() and not (is_odd or is_long or is_outside)


@dataclass(frozen=True, slots=True)
class ManifestParser:
    """Parses the manifest of `package`. Each method returns a value or raises ManifestError."""

    package: str

    def make_error(self, problem: str) -> ManifestError:
        return ManifestError(f"the manifest of {self.package} cannot be used: {problem}; report it")

    def read_table(self, document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        return self._read_typed(document, key, key, dict, {}, "a table")

    def read_text(self, document: Mapping[str, Any], key: str, where: str) -> str:
        value = self._read_typed(document, key, f"{where}.{key}", str, "", "a string")
        if "\0" in value:
            raise self.make_error(f"{where}.{key} holds a NUL")
        return value

    def read_flag(self, document: Mapping[str, Any], key: str, where: str, default: bool) -> bool:
        return self._read_typed(document, key, f"{where}.{key}", bool, default, "true or false")

    def read_texts(self, document: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        values: list[Any] = self._read_typed(document, key, f"{where}.{key}", list, [], "a list")
        if not all(isinstance(value, str) and "\0" not in value for value in values):
            raise self.make_error(f"{where}.{key} must be a list of strings")
        return tuple(values)

    def parse_server(self, name: str, value: Any) -> Mapping[str, Any]:
        """An MCP server as in an agent's file. Empty values are left out."""
        where = f"mcps.{name}"
        if not isinstance(value, dict):
            raise self.make_error(f"{where} must be a table")
        if not name.strip() or not name.isprintable():
            raise self.make_error(f"an MCP server cannot be called {name!r}")
        env: dict[str, Any] = self._read_typed(value, "env", f"{where}.env", dict, {}, "a table")
        if not all(isinstance(entry, str) and "\0" not in entry for entry in env.values()):
            raise self.make_error(f"{where}.env must be a table of strings")
        server: dict[str, Any] = {
            "name": name,
            "command": self.read_text(value, "command", where),
            "args": list(self.read_texts(value, "args", where)),
            "env": dict(env),
            "url": self.read_text(value, "url", where),
            "auth": self.read_text(value, "auth", where),
        }
        if not server["command"].strip() and not server["url"]:
            raise self.make_error(f"{where} has neither command nor url")
        if not self.read_flag(value, "auto_restart", where, True):
            server["auto_restart"] = False
        return {key: entry for key, entry in server.items() if entry not in ("", [], {})}

    def parse_agent(
        self, name: str, value: Any, servers: Mapping[str, Mapping[str, Any]]
    ) -> PackageAgent:
        where = f"agents.{name}"
        if not isinstance(value, dict):
            raise self.make_error(f"{where} must be a table")
        self._check_agent_name(name)
        return PackageAgent(
            name,
            self.read_text(value, "description", where),
            self.read_text(value, "prompt", where),
            self.read_text(value, "model", where),
            self.read_flag(value, "thinking", where, False),
            self.read_texts(value, "skills", where),
            self._parse_servers(value, where, servers) if "mcps" in value else None,
        )

    def parse_command(self, name: str, value: Any) -> str:
        """The distribution of a command. Its key is `distribution`, or `crate` as in Rust."""
        where = f"commands.{name}"
        if not isinstance(value, dict):
            raise self.make_error(f"{where} must be a table")
        distribution = self.read_text(value, "distribution", where) or self.read_text(
            value, "crate", where
        )
        if not DISTRIBUTION_PATTERN.fullmatch(distribution):
            raise self.make_error(f"{where} names no distribution")
        return distribution

    def _parse_servers(
        self, value: Mapping[str, Any], where: str, known_servers: Mapping[str, Mapping[str, Any]]
    ) -> tuple[Mapping[str, Any], ...]:
        """Parse a list of names in [mcps], and of whole tables."""
        entries: list[Any] = self._read_typed(value, "mcps", f"{where}.mcps", list, [], "a list")
        servers = []
        for entry in entries:
            match entry:
                case str() if entry in known_servers:
                    servers.append(known_servers[entry])
                case str():
                    raise self.make_error(f"{where}.mcps names {entry!r}, which is not in [mcps]")
                case {"name": str(name)}:
                    servers.append(self.parse_server(name, entry))
                case _:
                    raise self.make_error(f"{where}.mcps must hold names, or tables with a name")
        if len({server["name"] for server in servers}) < len(servers):
            raise self.make_error(f"{where}.mcps has a name twice")
        return tuple(servers)

    def _check_agent_name(self, name: str) -> None:
        if not is_agent_name(name):
            raise self.make_error(f"an agent cannot be called {name!r}")

    def _read_typed(
        self,
        document: Mapping[str, Any],
        key: str,
        where: str,
        kind: type[T],
        default: T,
        description: str,
    ) -> T:
        value = document.get(key, default)
        if not isinstance(value, kind):
            raise self.make_error(f"{where} must be {description}")
        return value
