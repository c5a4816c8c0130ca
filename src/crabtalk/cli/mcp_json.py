"""Exchange: MCP servers in the JSON that other programs keep them in, `mcpServers`, and in ours.

Only text and values; no daemon, no files.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import CommandError

MASK = "********"
# The object itself, as programs call it.
SERVER_KEYS = ("mcpServers", "mcp_servers", "servers", "context_servers")
# What a server of ours can be told; `type` and `transport` only say which of the two it is.
SUPPORTED_KEYS = frozenset(
    {"name", "command", "args", "env", "url", "auth", "auto_restart", "idle_timeout"}
)
IGNORED_KEYS = frozenset({"type", "transport", "headers", "disabled", "enabled", "description"})
VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
INPUT_VARIABLE = re.compile(r"\$\{input:[^}]*\}")


@dataclass(frozen=True, slots=True)
class ImportedServers:
    """What a document had: servers in our words, and a sentence about each thing left out."""

    servers: list[dict[str, Any]]
    remarks: list[str]


def parse_servers(text: str, environ: Mapping[str, str]) -> ImportedServers:
    """Raises CommandError, for all of it, when one of them cannot be taken.

    Others look `${VAR}` up when they start a server; ours have literal values, so it is done here.
    """
    servers: list[dict[str, Any]] = []
    remarks: list[str] = []
    for name, given in find_servers(text).items():
        if not isinstance(given, dict):
            raise CommandError(f"the server {name!r} is no JSON object; mend it")
        if given.get("disabled") is True or given.get("enabled") is False:
            remarks.append(f"{name} is switched off there, and was left out")
            continue
        servers.append(convert_server(name, expand_variables(given, name, environ)))
        if ignored := sorted(given.keys() - SUPPORTED_KEYS - IGNORED_KEYS):
            remarks.append(
                f"{name} was taken without {', '.join(ignored)}, which means nothing here"
            )
    return ImportedServers(servers, remarks)


def find_servers(text: str) -> dict[str, Any]:
    """The servers of a document by name."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"that is not valid JSON: {error}; mend it") from None
    if isinstance(document, dict):
        found = next((document[key] for key in SERVER_KEYS if key in document), None)
        if isinstance(found, dict):
            return found
        if found is None and document and all(map(is_server, document.values())):
            return document
    raise CommandError('there is no "mcpServers" in that; name a file that has it')


def is_server(value: Any) -> bool:
    return isinstance(value, dict) and ("command" in value or "url" in value)


def expand_variables(value: Any, name: str, environ: Mapping[str, str]) -> Any:
    def look_up(found: re.Match[str]) -> str:
        # As shells do it: a default is for what is empty too.
        known = environ.get(found[1])
        if not known and found[2] is not None:
            return found[2]
        if known is None:
            raise CommandError(
                f"the server {name!r} needs ${found[1]}, which is not set; set it first"
            )
        return known

    match value:
        case str():
            if INPUT_VARIABLE.search(value):
                raise CommandError(f"the server {name!r} asks for {value}; write the value itself")
            return VARIABLE.sub(look_up, value)
        case list():
            return [expand_variables(each, name, environ) for each in value]
        case dict():
            return {key: expand_variables(each, name, environ) for key, each in value.items()}
    return value


def convert_server(name: str, given: dict[str, Any]) -> dict[str, Any]:
    kind = given.get("type") or given.get("transport")
    if kind == "sse":
        raise CommandError(
            f"the server {name!r} speaks SSE, the old way; look for its newer address"
        )
    server = {key: value for key, value in given.items() if key in SUPPORTED_KEYS}
    headers = given.get("headers") or {}
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
    """The other way round. What is as it is by default is left out."""
    return {"mcpServers": {server["name"]: export_server(server) for server in servers}}


def export_server(server: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if server.get("url"):
        made |= {"type": "http", "url": server["url"]}
        if server.get("auth"):
            made["headers"] = {"Authorization": server["auth"]}
    else:
        made |= {"command": server["command"], "args": list(server.get("args", ()))}
    if server.get("env"):
        made["env"] = dict(server["env"])
    if server.get("auto_restart") is False:
        made["auto_restart"] = False
    if server.get("idle_timeout") is not None:
        made["idle_timeout"] = server["idle_timeout"]
    return made


def has_masked_secrets(servers: list[dict[str, Any]]) -> bool:
    return any(
        MASK in (server.get("auth"), *(server.get("env") or {}).values()) for server in servers
    )
