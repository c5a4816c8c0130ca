"""Settings: `config/<name>.toml` in the home, mode 0600 because it holds a token. People edit it.

token = "123:abc"
allowed_users = [12345, "group:-100123"]
agent = "crab"
agents = ["crab", "guarded"]
owners = [12345]
base_url = "https://chat.example"

[chats."67890"]
agents = ["guarded"]
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crabtalk.transport import replace_file

from .errors import GatewayError

DEFAULT_AGENT = "crab"
MAX_ALLOWED = 10_000
SHARED_KEYS = ("token", "allowed_users", "agent", "agents", "owners", "chats", "base_url")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The settings of one chat. Empty fields take the general settings."""

    agents: tuple[str, ...] = ()
    agent: str = ""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`extra` has the settings of one service, with defaults for those the file does not have."""

    token: str = field(default="", repr=False)
    allowed_users: tuple[str, ...] = ()
    agent: str = DEFAULT_AGENT
    base_url: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    agents: tuple[str, ...] = ()  # agents that chats may talk to; empty: `agent` alone
    owners: tuple[str, ...] = ()  # people and groups that may talk to every agent
    chats: Mapping[str, ChatSettings] = field(default_factory=dict)


def load_settings(path: Path, extra: Mapping[str, Any] | None = None) -> GatewaySettings:
    """Load the settings. A missing file counts as an empty one. Raises GatewayError.

    `extra` names the service's own keys and their defaults. A value must have its default's type.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise GatewayError(f"cannot read {path}: {error}; correct it, or move it away") from None
    try:
        return parse_settings(document, extra or {})
    except GatewayError as error:
        raise GatewayError(f"{path}: {error}") from None


def parse_settings(document: Mapping[str, Any], extra: Mapping[str, Any]) -> GatewaySettings:
    for key in document:
        if key not in SHARED_KEYS and key not in extra:
            raise GatewayError(f"{key} means nothing here; take it out")
    agents = read_names(document, "agents")
    return GatewaySettings(
        token=read_text(document, "token", ""),
        allowed_users=read_ids("allowed_users", document.get("allowed_users", [])),
        agent=read_agent(document, agents) or DEFAULT_AGENT,
        agents=agents,
        owners=read_ids("owners", document.get("owners", [])),
        chats=read_chats(document.get("chats", {})),
        base_url=read_text(document, "base_url", "").rstrip("/"),
        extra={
            key: check_same_type(key, document.get(key, default), default)
            for key, default in extra.items()
        },
    )


def read_text(document: Mapping[str, Any], key: str, default: str) -> str:
    value = document.get(key, default)
    if not isinstance(value, str):
        raise GatewayError(f"{key} must be a text, not {type(value).__name__}")
    return value


def read_ids(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > MAX_ALLOWED:
        raise GatewayError(f"{key} must be a list of ids, such as [12345]")
    for user in value:
        if isinstance(user, bool) or not isinstance(user, str | int) or not str(user).strip():
            raise GatewayError(f"{key} has {user!r}, which is no id")
    return tuple(str(user).strip() for user in value)


def read_names(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """The names of agents. An empty list is refused, because it would allow no agent."""
    if key not in document:
        return ()
    value = document[key]
    is_list = isinstance(value, list) and 0 < len(value) <= MAX_ALLOWED
    if not is_list or not all(isinstance(name, str) and name for name in value):
        raise GatewayError(f'{key} must be a list of names of agents, such as ["{DEFAULT_AGENT}"]')
    return tuple(value)


def read_agent(document: Mapping[str, Any], agents: tuple[str, ...]) -> str:
    """The agent that answers by default; empty if the settings name none."""
    agent = read_text(document, "agent", "") or (agents[0] if agents else "")
    if agents and agent not in agents:
        raise GatewayError(
            f"agent is {agent!r}, which agents does not list; add it there, or take the line out"
        )
    return agent


def read_chats(value: Any) -> Mapping[str, ChatSettings]:
    if not isinstance(value, dict) or len(value) > MAX_ALLOWED:
        raise GatewayError('chats must be tables, such as [chats."12345"]')
    chats: dict[str, ChatSettings] = {}
    for chat, table in value.items():
        try:
            chats[chat.strip()] = read_chat(table)
        except GatewayError as error:
            raise GatewayError(f'[chats."{chat}"]: {error}') from None
    return chats


def read_chat(table: Any) -> ChatSettings:
    if not isinstance(table, dict):
        raise GatewayError('write it as a table with agents = ["guarded"]')
    if unknown := table.keys() - {"agent", "agents"}:
        raise GatewayError(f"{min(unknown)} means nothing here; take it out")
    agents = read_names(table, "agents")
    agent = read_agent(table, agents)
    return ChatSettings(agents or ((agent,) if agent else ()), agent)


def check_same_type(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise GatewayError(f"{key} must be like {default!r}, not {value!r}")
    return value


def write_settings(path: Path, changes: Mapping[str, Any]) -> None:
    """Write these keys into the file and keep the rest of it, comments included.

    Raises GatewayError. A value of None removes its key.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        text = path.read_text("utf-8") if path.exists() else ""
        document = tomlkit.parse(text)
        for key, value in changes.items():
            if value is None:
                document.pop(key, None)
            else:
                document[key] = value
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, tomlkit.dumps(document).encode(), 0o600)
    except (OSError, ValueError, TOMLKitError) as error:
        raise GatewayError(f"cannot write {path}: {error}; see to the file") from None


def allow_user(path: Path, user: str) -> None:
    """Add a user to allowed_users. Raises GatewayError."""
    known = load_allowed_users(path)
    if user not in known:
        entries = [
            int(user_id) if user_id.isdecimal() and str(int(user_id)) == user_id else user_id
            for user_id in known
        ]
        new = int(user) if user.isdecimal() and str(int(user)) == user else user
        write_settings(path, {"allowed_users": [*entries, new]})


def load_allowed_users(path: Path) -> tuple[str, ...]:
    """The users that the file allows now; other keys are not checked. Raises GatewayError."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise GatewayError(f"cannot read {path}: {error}; correct it, or move it away") from None
    return read_ids("allowed_users", document.get("allowed_users", []))
