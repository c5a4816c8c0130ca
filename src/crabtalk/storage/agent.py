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
MOST = 2**63 - 1  # what TOML promises to carry
DEEPEST = 32  # levels of tables and lists in a hook's settings
LONGEST_IDLE = 1e9  # seconds


class AgentError(Exception):
    """An agent's name or settings cannot be used, with what to write instead."""


class McpServer(Value, frozen=True):
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
    mcps: tuple[McpServer, ...] = ()


def check_name(name: str) -> None:
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


def read_agent(name: str, document: Mapping[str, Any], prompt: str | None = None) -> Agent:
    """An agent from its settings. `prompt` wins over the one in them. Unknown keys mean nothing."""
    check_name(name)
    given = document if prompt is None else {**document, "prompt": prompt}
    values = read_keys(AGENT_KEYS, given, "")
    if "prompt" not in values:
        raise AgentError("prompt is missing; write what the agent is told before everything else")
    return Agent(name=name, **values)


def unknown_keys(document: Mapping[str, Any]) -> list[str]:
    """Keys that nobody reads, those of MCP servers as `mcps.<server>.<key>`."""
    unknown = [key for key in document if key not in AGENT_KEYS]
    servers = document.get("mcps")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, Mapping):
            name = server.get("name")
            unknown += [f"mcps.{name}.{key}" for key in server if key not in SERVER_KEYS]
    return unknown


def settings_of(agent: Agent) -> dict[str, Any]:
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


def unmask(document: Mapping[str, Any], stored: Agent | None) -> dict[str, Any]:
    """Settings a client sent back, with what is stored in the place of every mask."""
    servers = document.get("mcps")
    if not isinstance(servers, list):
        return dict(document)
    known = {server.name: server for server in stored.mcps} if stored else {}
    return {**document, "mcps": [unmask_server(server, known) for server in servers]}


def unmask_server(server: Any, known: Mapping[str, McpServer]) -> Any:
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


Reader = Callable[[Any, str], Any]


def read_keys(keys: Mapping[str, Reader], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What is said about `keys`; null, as JSON clients send it, says nothing."""
    return {
        key: read(given[key], key + where)
        for key, read in keys.items()
        if given.get(key) is not None
    }


def text(value: Any, key: str) -> str:
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


def some_text(value: Any, key: str) -> str:
    if not text(value, key).strip():
        raise AgentError(f"{key} is empty; write at least a word")
    return str(value)


def flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise AgentError(f"{key} must be true or false")
    return value


def whole(least: int, most: int) -> Reader:
    def read(value: Any, key: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise AgentError(f"{key} must be a whole number from {least} to {most}")
        return value

    return read


def seconds(value: Any, key: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise AgentError(f"{key} must be a number of seconds")
    if not 0 < value <= LONGEST_IDLE:
        raise AgentError(f"{key} must be a number of seconds above zero, at most {LONGEST_IDLE:g}")
    return float(value)


def strings(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise AgentError(f"{key} must be a list of strings")
    return tuple(text(entry, key) for entry in value)


def tool_choice(value: Any, key: str) -> str:
    """Also as OpenAI's API spells the name of a tool."""
    match value:
        case {"type": "function", "function": {"name": str(name)}} if name:
            return text(name, key)
        case str():
            return text(value, key) or "auto"
    raise AgentError(f'{key} must be "auto", "none", "required" or the name of a tool')


def hook_tables(value: Any, key: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise AgentError(f"{key} must hold a table for each hook: write [hooks.bash]")
    tables: dict[str, dict[str, Any]] = plain(value, key)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise AgentError(f"{key}.{name} must be a table: write [{key}.{name}]")
    return tables


def permission_lists(value: Any, key: str) -> dict[str, tuple[str, ...]]:
    """Rules by list; what they mean is not known here."""
    if not isinstance(value, Mapping):
        raise AgentError(f"{key} must be a table of lists: write [{key}] and allow = [...]")
    return {text(name, key): strings(entry, f"{key}.{name}") for name, entry in value.items()}


def plain(value: Any, key: str, depth: int = 0) -> Any:
    """What TOML and JSON can both hold, and nothing else."""
    if depth > DEEPEST:
        raise AgentError(f"{key} is nested too deeply; use at most {DEEPEST} levels")
    match value:
        case bool():
            return value
        case int():
            return whole(-MOST - 1, MOST)(value, key)
        case float() if abs(value) < float("inf"):
            return value
        case str():
            return text(value, key)
        case list() | tuple():
            return [plain(entry, key, depth + 1) for entry in value]
        case Mapping():
            return {
                text(name, f"a name in {key}"): plain(entry, f"{key}.{name}", depth + 1)
                for name, entry in value.items()
                if entry is not None
            }
    raise AgentError(f"{key} must be text, a number, true or false, a list or a table")


def environment(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise AgentError(f'{key} must be a table of strings, such as {{ TOKEN = "..." }}')
    for name in value:
        if not text(name, f"a name in {key}") or "=" in name:
            raise AgentError(f"a name in {key} is empty or holds =; write the name of a variable")
    return {
        name: text(entry, f"{name} in {key}") for name, entry in value.items() if entry is not None
    }


def web_address(value: Any, key: str) -> str:
    """Empty, as clients send it for a server that is started, is as good as absent."""
    address = text(value, key)
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if address and not (fits and address.isprintable() and " " not in address):
        raise AgentError(f"{key} must be an address that starts with http:// or https://")
    return address


def header(value: Any, key: str) -> str:
    if any(unicodedata.category(character) == "Cc" for character in text(value, key)):
        raise AgentError(f"{key} must be one line: the complete Authorization header")
    return str(value)


def servers(value: Any, key: str) -> tuple[McpServer, ...]:
    if not isinstance(value, list | tuple):
        raise AgentError(f"{key} must be a list of tables: write [[mcps]]")
    found: dict[str, McpServer] = {}
    for number, entry in enumerate(value, 1):
        if not isinstance(entry, Mapping):
            raise AgentError(f"number {number} of {key} must be a table: write [[mcps]]")
        if not entry.get("name"):
            raise AgentError(f'number {number} of {key} has no name; add one, such as "github"')
        name = some_text(entry["name"], f"name of number {number} of {key}")
        if name in found:
            raise AgentError(f"two servers in {key} are called {name!r}; names must differ")
        server = McpServer(**read_keys(SERVER_KEYS, entry, f" of {key} {name!r}"))
        if not server.command.strip() and not server.url:
            raise AgentError(f"{key} {name!r} has neither command nor url; write one of them")
        found[name] = server
    return tuple(found.values())


# In the order in which a new file has them.
AGENT_KEYS: dict[str, Reader] = {
    "description": text,
    "model": text,
    "prompt": some_text,
    "max_iterations": whole(1, 1000),
    "tool_choice": tool_choice,
    "thinking": flag,
    "tools": strings,
    "skills": strings,
    "approve": strings,
    "mode": text,
    "permissions": permission_lists,
    "compact_tool_max_len": whole(0, MOST),
    "hooks": hook_tables,
    "mcps": servers,
}
SERVER_KEYS: dict[str, Reader] = {
    "name": some_text,
    "command": text,
    "args": strings,
    "env": environment,
    "url": web_address,
    "auth": header,
    "auto_restart": flag,
    "idle_timeout": seconds,
}
