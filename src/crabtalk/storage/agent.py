"""Agents as values: parses and checks the settings from a file or a client.

It does not know where agents are stored. Secrets (an MCP server's environment and authorisation)
are masked by `render_settings` and restored by `unmask_settings`.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from crabtalk.model.messages import Value

MASK = "********"
MAX_INTEGER = 2**63 - 1  # the range that TOML guarantees
MAX_DEPTH = 32  # levels of tables and lists in a hook's settings
MAX_IDLE_SECONDS = 1e9  # seconds


class AgentError(Exception):
    """An agent's name or settings cannot be used. The text says what to write instead."""


class McpServerConfig(Value, frozen=True):
    """An MCP server an agent declares. With a `url`, `command` is ignored."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    url: str = ""
    auth: str = ""  # the complete Authorization header
    auto_restart: bool = True
    idle_timeout: float | None = None  # seconds without a call before it is stopped


class Agent(Value, frozen=True):
    """All settings of an agent; its memory is stored elsewhere."""

    name: str
    prompt: str
    description: str = ""
    model: str = ""  # empty: the active model
    max_iterations: int = 16
    tool_choice: str = "auto"
    thinking: bool = False
    tools: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    approve: tuple[str, ...] = ()
    mode: str = ""  # the permission mode of its conversations; empty: auto
    permissions: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    compact_tool_max_len: int = 1024
    hooks: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    mcps: tuple[McpServerConfig, ...] = ()


def check_agent_name(name: str) -> None:
    """Raises AgentError for a text that cannot be the name of an agent and of its file."""
    if not name:
        raise AgentError('the name of an agent is empty; give it one, such as "crab"')
    # 192 bytes: the file name, with the suffix of its temporary file, must stay below the 255 bytes
    # that file systems allow.
    if len(name) > 64 or len(name.encode(errors="replace")) > 192:
        raise AgentError(f"the name {name[:16]!r}... is too long; use at most 64 characters")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in name):
        raise AgentError(f"the name {name!r} holds characters that cannot be shown; leave them out")
    if any(character in '/\\.[]"' for character in name):
        raise AgentError(f'the name {name!r} must not hold any of / \\ . [ ] "; leave them out')
    if name != name.strip():
        raise AgentError(f"the name {name!r} starts or ends with white space; remove it")


def parse_agent(name: str, document: Mapping[str, Any], prompt: str | None = None) -> Agent:
    """Parses an agent's settings. `prompt` overrides the one in `document`; unknown keys are
    ignored. Raises AgentError."""
    check_agent_name(name)
    settings = document if prompt is None else {**document, "prompt": prompt}
    values = parse_keys(AGENT_KEYS, settings, "")
    if "prompt" not in values:
        raise AgentError("prompt is missing; write what the agent is told before everything else")
    return Agent(name=name, **values)


def find_unknown_keys(document: Mapping[str, Any]) -> list[str]:
    """Keys that have no meaning, those of MCP servers as `mcps.<server>.<key>`."""
    unknown = [key for key in document if key not in AGENT_KEYS]
    servers = document.get("mcps")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, Mapping):
            name = server.get("name")
            unknown += [f"mcps.{name}.{key}" for key in server if key not in SERVER_KEYS]
    return unknown


def render_settings(agent: Agent) -> dict[str, Any]:
    """All settings as JSON values, without name and prompt. Secrets are masked."""
    settings = {key: getattr(agent, key) for key in AGENT_KEYS if key != "prompt"}
    settings["mcps"] = [
        {key: getattr(server, key) for key in SERVER_KEYS}
        | {
            "env": dict.fromkeys(server.env, MASK),
            "url": server.url or None,
            "auth": MASK if server.auth else None,
        }
        for server in agent.mcps
    ]
    return msgspec.json.decode(msgspec.json.encode(settings), type=dict[str, Any])


def unmask_settings(document: Mapping[str, Any], stored: Agent | None) -> dict[str, Any]:
    """Settings that a client sent back, with each mask replaced by the stored secret."""
    servers = document.get("mcps")
    if not isinstance(servers, list):
        return dict(document)
    known = {server.name: server for server in stored.mcps} if stored else {}
    return {**document, "mcps": [unmask_server(server, known) for server in servers]}


def unmask_server(server: Any, known: Mapping[str, McpServerConfig]) -> Any:
    """A server of the wrong type stays as it is: `parse_agent` reports it."""
    if not isinstance(server, Mapping):
        return server
    name = server.get("name")
    before = known.get(name) if isinstance(name, str) else None

    def unmask(value: Any, stored: str | None, key: str) -> Any:
        if value != MASK:
            return value
        if stored is None:
            raise AgentError(f"{key} of mcps {name!r} is masked, but none is stored; send it whole")
        return stored

    result = dict(server)
    if "auth" in server:
        result["auth"] = unmask(server["auth"], (before and before.auth) or None, "auth")
    if isinstance(env := server.get("env"), Mapping):
        old = before.env if before else {}
        result["env"] = {
            key: unmask(value, old.get(key), f"env {key!r}") for key, value in env.items()
        }
    return result


ValueParser = Callable[[Any, str], Any]


def parse_keys(
    keys: Mapping[str, ValueParser], document: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """Parses the values of `keys`. Null, as JSON clients send it, counts as absent."""
    return {
        key: parse(document[key], key + where)
        for key, parse in keys.items()
        if document.get(key) is not None
    }


def parse_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise AgentError(f"{key} must be a string")
    # Encoders, program arguments and databases reject these.
    try:
        value.encode()
    except UnicodeEncodeError:
        raise AgentError(f"{key} holds a NUL or half a character; leave it out") from None
    if "\0" in value:
        raise AgentError(f"{key} holds a NUL or half a character; leave it out")
    return value


def parse_nonempty_text(value: Any, key: str) -> str:
    if not parse_text(value, key).strip():
        raise AgentError(f"{key} is empty; write at least a word")
    return str(value)


def parse_flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise AgentError(f"{key} must be true or false")
    return value


def make_integer_parser(least: int, most: int) -> ValueParser:
    def parse(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise AgentError(f"{key} must be a whole number from {least} to {most}")
        return value

    return parse


def parse_seconds(value: Any, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise AgentError(f"{key} must be a number of seconds")
    if not 0 < value <= MAX_IDLE_SECONDS:
        raise AgentError(
            f"{key} must be a number of seconds above zero, at most {MAX_IDLE_SECONDS:g}"
        )
    return float(value)


def parse_strings(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise AgentError(f"{key} must be a list of strings")
    return tuple(parse_text(entry, key) for entry in value)


def parse_tool_choice(value: Any, key: str) -> str:
    """Also accepts a tool's name in the form of OpenAI's API."""
    match value:
        case {"type": "function", "function": {"name": str(name)}} if name:
            return parse_text(name, key)
        case str():
            return parse_text(value, key) or "auto"
    raise AgentError(f'{key} must be "auto", "none", "required" or the name of a tool')


def parse_hook_tables(value: Any, key: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise AgentError(f"{key} must hold a table for each hook: write [hooks.bash]")
    tables: dict[str, dict[str, Any]] = parse_plain_value(value, key)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise AgentError(f"{key}.{name} must be a table: write [{key}.{name}]")
    return tables


def parse_permissions(value: Any, key: str) -> dict[str, tuple[str, ...]]:
    """Permission rules by list; their meaning is not known here."""
    if not isinstance(value, Mapping):
        raise AgentError(f"{key} must be a table of lists: write [{key}] and allow = [...]")
    return {
        parse_text(name, key): parse_strings(entry, f"{key}.{name}")
        for name, entry in value.items()
    }


def parse_plain_value(value: Any, key: str, depth: int = 0) -> Any:
    """Accepts only values that both TOML and JSON can represent."""
    if depth > MAX_DEPTH:
        raise AgentError(f"{key} is nested too deeply; use at most {MAX_DEPTH} levels")
    match value:
        case bool():
            return value
        case int():
            return make_integer_parser(-MAX_INTEGER - 1, MAX_INTEGER)(value, key)
        case float() if abs(value) < float("inf"):
            return value
        case str():
            return parse_text(value, key)
        case list() | tuple():
            return [parse_plain_value(entry, key, depth + 1) for entry in value]
        case Mapping():
            return {
                parse_text(name, f"a name in {key}"): parse_plain_value(
                    entry, f"{key}.{name}", depth + 1
                )
                for name, entry in value.items()
                if entry is not None
            }
    raise AgentError(f"{key} must be text, a number, true or false, a list or a table")


def parse_environment(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise AgentError(f'{key} must be a table of strings, such as {{ TOKEN = "..." }}')
    for name in value:
        if not parse_text(name, f"a name in {key}") or "=" in name:
            raise AgentError(f"a name in {key} is empty or holds =; write the name of a variable")
    return {
        name: parse_text(entry, f"{name} in {key}")
        for name, entry in value.items()
        if entry is not None
    }


def parse_web_address(value: Any, key: str) -> str:
    """Empty counts as absent: clients send that for a server with a command."""
    address = parse_text(value, key)
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if address and not (is_valid and address.isprintable() and " " not in address):
        raise AgentError(f"{key} must be an address that starts with http:// or https://")
    return address


def parse_header(value: Any, key: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in parse_text(value, key)):
        raise AgentError(f"{key} must be one line: the complete Authorization header")
    return str(value)


def parse_servers(value: Any, key: str) -> tuple[McpServerConfig, ...]:
    if not isinstance(value, list | tuple):
        raise AgentError(f"{key} must be a list of tables: write [[mcps]]")
    servers: dict[str, McpServerConfig] = {}
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            raise AgentError(f"number {number} of {key} must be a table: write [[mcps]]")
        if not entry.get("name"):
            raise AgentError(f'number {number} of {key} has no name; add one, such as "github"')
        name = parse_nonempty_text(entry["name"], f"name of number {number} of {key}")
        if name in servers:
            raise AgentError(f"two servers in {key} are called {name!r}; names must differ")
        server = McpServerConfig(**parse_keys(SERVER_KEYS, entry, f" of {key} {name!r}"))
        if not server.command.strip() and not server.url:
            raise AgentError(f"{key} {name!r} has neither command nor url; write one of them")
        servers[name] = server
    return tuple(servers.values())


# In the order in which a new file lists them.
AGENT_KEYS: dict[str, ValueParser] = {
    "description": parse_text,
    "model": parse_text,
    "prompt": parse_nonempty_text,
    "max_iterations": make_integer_parser(1, 1000),
    "tool_choice": parse_tool_choice,
    "thinking": parse_flag,
    "tools": parse_strings,
    "skills": parse_strings,
    "approve": parse_strings,
    "mode": parse_text,
    "permissions": parse_permissions,
    "compact_tool_max_len": make_integer_parser(0, MAX_INTEGER),
    "hooks": parse_hook_tables,
    "mcps": parse_servers,
}
SERVER_KEYS: dict[str, ValueParser] = {
    "name": parse_nonempty_text,
    "command": parse_text,
    "args": parse_strings,
    "env": parse_environment,
    "url": parse_web_address,
    "auth": parse_header,
    "auto_restart": parse_flag,
    "idle_timeout": parse_seconds,
}
