"""Convert MCP servers between the `mcpServers` JSON of other programs and our settings.

Works on text and values only; no daemon and no files.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import CommandError

MASK = "********"
# The names that programs use for the object of servers.
SERVER_KEYS = ("mcpServers", "mcp_servers", "servers", "context_servers")
# Keys of our servers. `type` and `transport` are ignored: `command` or `url` says the same.
SUPPORTED_KEYS = frozenset(
    {"name", "command", "args", "env", "url", "auth", "auto_restart", "idle_timeout"}
)
IGNORED_KEYS = frozenset({"type", "transport", "headers", "disabled", "enabled", "description"})
VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
INPUT_VARIABLE = re.compile(r"\$\{input:[^}]*\}")


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """The servers of a document in our settings, and a sentence about each thing left out."""

    servers: list[dict[str, Any]]
    remarks: list[str]


def parse_servers(text: str, environ: Mapping[str, str]) -> ImportedServers:
    """Parse all servers of a document. Raises CommandError if one of them cannot be imported.

    Other programs expand `${VAR}` when they start a server; our settings have literal values, so
    variables are expanded here.
    """
    servers: list[dict[str, Any]] = []
    remarks: list[str] = []
    for name, settings in find_servers(text).items():
        if not isinstance(settings, dict):
            raise CommandError(f"the server {name!r} is no JSON object; mend it")
        if settings.get("disabled") is True or settings.get("enabled") is False:
            remarks.append(f"{name} is switched off there, and was left out")
            continue
        servers.append(convert_server(name, expand_variables(settings, name, environ)))
        if ignored := sorted(settings.keys() - SUPPORTED_KEYS - IGNORED_KEYS):
            remarks.append(
                f"{name} was taken without {', '.join(ignored)}, which means nothing here"
            )
    return ImportedServers(servers, remarks)


def find_servers(text: str) -> dict[str, Any]:
    """Return the servers of a document by name."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"that is not valid JSON: {error}; mend it") from None
    if isinstance(document, dict):
        servers = next((document[key] for key in SERVER_KEYS if key in document), None)
        if isinstance(servers, dict):
            return servers
        if servers is None and document and all(map(is_server, document.values())):
            return document
    raise CommandError('there is no "mcpServers" in that; name a file that has it')


def is_server(value: Any) -> bool:
    return isinstance(value, dict) and ("command" in value or "url" in value)


def expand_variables(value: Any, name: str, environ: Mapping[str, str]) -> Any:
    def look_up(match: re.Match[str]) -> str:
        # As in shells, a default is also used for an empty variable.
        variable = environ.get(match[1])
        if not variable and match[2] is not None:
            return match[2]
        if variable is None:
            raise CommandError(
                f"the server {name!r} needs ${match[1]}, which is not set; set it first"
            )
        return variable

    match value:
        case str():
            if INPUT_VARIABLE.search(value):
                raise CommandError(f"the server {name!r} asks for {value}; write the value itself")
            return VARIABLE.sub(look_up, value)
        case list():
            return [expand_variables(item, name, environ) for item in value]
        case dict():
            return {key: expand_variables(item, name, environ) for key, item in value.items()}
    return value


def convert_server(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    kind = settings.get("type") or settings.get("transport")
    if kind == "sse":
        raise CommandError(
            f"the server {name!r} speaks SSE, the old way; look for its newer address"
        )
    server = {key: value for key, value in settings.items() if key in SUPPORTED_KEYS}
    headers = settings.get("headers") or {}
    if not isinstance(headers, dict):
        raise CommandError(f"headers of the server {name!r} are no JSON object; mend it")
    for header, value in headers.items():
        if header.lower() != "authorization":
            raise CommandError(
                f"the server {name!r} wants the header {header}, and only Authorization can be "
                "sent; take it out of the file"
            )
        server["auth"] = value
    return {**server, "name": name}


def export_servers(servers: list[dict[str, Any]]) -> dict[str, Any]:
    """Convert our settings to `mcpServers`. Defaults are left out."""
    return {"mcpServers": {server["name"]: export_server(server) for server in servers}}


def export_server(server: Mapping[str, Any]) -> dict[str, Any]:
    exported: dict[str, Any] = {}
    if server.get("url"):
        exported |= {"type": "http", "url": server["url"]}
        if server.get("auth"):
            exported["headers"] = {"Authorization": server["auth"]}
    else:
        exported |= {"command": server["command"], "args": list(server.get("args", ()))}
    if server.get("env"):
        exported["env"] = dict(server["env"])
    if server.get("auto_restart") is False:
        exported["auto_restart"] = False
    if server.get("idle_timeout") is not None:
        exported["idle_timeout"] = server["idle_timeout"]
    return exported


def has_masked_secrets(servers: list[dict[str, Any]]) -> bool:
    return any(
        MASK in (server.get("auth"), *(server.get("env") or {}).values()) for server in servers
    )
