"""Agents as values: what a file or a client says about one, checked.

Where an agent is kept is not known here. Secrets (an MCP server's environment and authorisation)
leave through `settings_of` masked, and come back through `unmask`.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from crabtalk.model.messages import Value

MASK = "********"
MAX_INTEGER = 2**63 - 1  # what TOML promises to carry
MAX_DEPTH = 32  # levels of tables and lists in a hook's settings
MAX_IDLE_SECONDS = 1e9  # seconds


class AgentError(Exception):
    """An agent's name or settings cannot be used, with what to write instead."""


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
    """Everything there is to know about an agent; what it remembers is kept elsewhere."""

    name: str
    prompt: str
    description: str = ""
    model: str = ""  # empty: the active one
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
    """Raises AgentError for what cannot be the name of an agent, and so of a file."""
    if not name:
        raise AgentError('the name of an agent is empty; give it one, such as "crab"')
    # The bytes keep the name of the file, with what is added while it is replaced, below the 255
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
    """An agent from its settings. `prompt` wins over the one in them. Unknown keys mean nothing."""
    check_agent_name(name)
    given = document if prompt is None else {**document, "prompt": prompt}
    values = parse_keys(AGENT_KEYS, given, "")
    if "prompt" not in values:
        raise AgentError("prompt is missing; write what the agent is told before everything else")
    return Agent(name=name, **values)


def find_unknown_keys(document: Mapping[str, Any]) -> list[str]:
    """Keys that nobody reads, those of MCP servers as `mcps.<server>.<key>`."""
    unknown = [key for key in document if key not in AGENT_KEYS]
    servers = document.get("mcps")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, Mapping):
            name = server.get("name")
            unknown += [f"mcps.{name}.{key}" for key in server if key not in SERVER_KEYS]
    return unknown


def render_settings(agent: Agent) -> dict[str, Any]:
    """All settings as JSON has them, without name and prompt. Secrets are masked."""
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
    """Settings a client sent back, with what is stored in the place of every mask."""
    servers = document.get("mcps")
    if not isinstance(servers, list):
        return dict(document)
    known = {server.name: server for server in stored.mcps} if stored else {}
    return {**document, "mcps": [unmask_server(server, known) for server in servers]}


def unmask_server(server: Any, known: Mapping[str, McpServerConfig]) -> Any:
    """A server of the wrong shape stays as it is: `read_agent` has the words for that."""
    if not isinstance(server, Mapping):
        return server
    name = server.get("name")
    before = known.get(name) if isinstance(name, str) else None

    def secret(value: Any, found: str | None, key: str) -> Any:
        if value != MASK:
            return value
        if found is None:
            raise AgentError(f"{key} of mcps {name!r} is masked, but none is stored; send it whole")
        return found

    result = dict(server)
    if "auth" in server:
        result["auth"] = secret(server["auth"], (before and before.auth) or None, "auth")
    if isinstance(env := server.get("env"), Mapping):
        old = before.env if before else {}
        result["env"] = {
            key: secret(value, old.get(key), f"env {key!r}") for key, value in env.items()
        }
    return result


ValueParser = Callable[[Any, str], Any]


def parse_keys(
    keys: Mapping[str, ValueParser], given: Mapping[str, Any], where: str
) -> dict[str, Any]:
    """What is said about `keys`; null, as JSON clients send it, says nothing."""
    return {
        key: read(given[key], key + where)
        for key, read in keys.items()
        if given.get(key) is not None
    }


def parse_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise AgentError(f"{key} must be a string")
    # Neither an encoder, a program's arguments nor a database takes these.
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
    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise AgentError(f"{key} must be a whole number from {least} to {most}")
        return value

    return read


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
    """Also as OpenAI's API spells the name of a tool."""
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
    """Rules by list; what they mean is not known here."""
    if not isinstance(value, Mapping):
        raise AgentError(f"{key} must be a table of lists: write [{key}] and allow = [...]")
    return {
        parse_text(name, key): parse_strings(entry, f"{key}.{name}")
        for name, entry in value.items()
    }


def parse_plain_value(value: Any, key: str, depth: int = 0) -> Any:
    """What TOML and JSON can both hold, and nothing else."""
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
    """Empty, as clients send it for a server that is started, is as good as absent."""
    address = parse_text(value, key)
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if address and not (fits and address.isprintable() and " " not in address):
        raise AgentError(f"{key} must be an address that starts with http:// or https://")
    return address


def parse_header(value: Any, key: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in parse_text(value, key)):
        raise AgentError(f"{key} must be one line: the complete Authorization header")
    return str(value)


def parse_servers(value: Any, key: str) -> tuple[McpServerConfig, ...]:
    if not isinstance(value, list | tuple):
        raise AgentError(f"{key} must be a list of tables: write [[mcps]]")
    found: dict[str, McpServerConfig] = {}
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            raise AgentError(f"number {number} of {key} must be a table: write [[mcps]]")
        if not entry.get("name"):
            raise AgentError(f'number {number} of {key} has no name; add one, such as "github"')
        name = parse_nonempty_text(entry["name"], f"name of number {number} of {key}")
        if name in found:
            raise AgentError(f"two servers in {key} are called {name!r}; names must differ")
        server = McpServerConfig(**parse_keys(SERVER_KEYS, entry, f" of {key} {name!r}"))
        if not server.command.strip() and not server.url:
            raise AgentError(f"{key} {name!r} has neither command nor url; write one of them")
        found[name] = server
    return tuple(found.values())


# In the order in which a new file has them.
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
