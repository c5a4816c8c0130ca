"""Configuration: `config/web.toml` in the home, every key optional.

sender = "user"
announce_agents = true
while_busy = "queue"            # or "steer"
cwd = "~/work"

[relay]
port = 3005
"""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import WebGatewayError

WHILE_BUSY = ("queue", "steer")
REGISTRATION = ("open", "invite", "closed")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of the relay that `crabtalk-web up` and `crabtalk-web relay` run."""

    host: str = "127.0.0.1"
    port: int = 3005
    tls_certificate: str = ""
    tls_key: str = ""
    host_name: str = ""
    public_url: str = ""
    # Who may create an account: "open", "invite" or "closed". Empty: "open" for a relay that only
    # this machine can reach, else "invite".
    registration: str = ""
    # Addresses and networks of proxies whose X-Forwarded-For is trusted.
    trusted_proxies: tuple[str, ...] = ()
    # Limits by name, as docs/relay.md lists them.
    limits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    # The sender whose conversations devices see and write in.
    sender: str = "user"
    # Create a session for every agent at startup, whether it has a conversation or not.
    announce_agents: bool = True
    # Messages sent while the agent is at work are queued, or steer the open turn.
    while_busy: str = "queue"
    # Working directory of the tools in turns that a device starts.
    cwd: str = "~"
    # How many messages a new session shows of a conversation that is older than the session.
    backfill: int = 1000
    # Use the tool names and the question format that certain apps draw specially.
    compat: bool = False
    # Also write tool output as reasoning, for apps that show it in no other way.
    output_as_thinking: bool = False
    # Report the token usage of turns to the relay, which can read it.
    report_usage: bool = False
    # Send push notices about ended turns and questions. They contain no text of the conversation.
    push: bool = True
    # Limit in bytes of one conversation's journal while the relay is unavailable.
    journal_bytes: int = 64 * 1024 * 1024
    relay: RelaySettings = field(default_factory=RelaySettings)

    @property
    def directory(self) -> Path:
        return Path(self.cwd).expanduser()


def load_config(path: Path) -> GatewayConfig:
    """Raises WebGatewayError. A missing file means the defaults."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise WebGatewayError(f"cannot read {path}: {error}; correct it, or move it away") from None
    try:
        relay = parse_relay_settings(document.pop("relay", {}))
        config: GatewayConfig = parse_settings(GatewayConfig, document, "", relay=relay)
    except WebGatewayError as error:
        raise WebGatewayError(f"{path}: {error}") from None
    if config.while_busy not in WHILE_BUSY:
        raise WebGatewayError(
            f'{path}: while_busy is "queue" or "steer", not {config.while_busy!r}'
        )
    if config.relay.registration not in ("", *REGISTRATION):
        raise WebGatewayError(
            f'{path}: registration is "open", "invite" or "closed", not'
            f" {config.relay.registration!r}"
        )
    if not config.sender:
        raise WebGatewayError(f"{path}: sender is empty; leave it out for `user`")
    return config


def parse_relay_settings(table: Any) -> RelaySettings:
    settings = dict(table) if isinstance(table, dict) else {}
    proxies = settings.pop("trusted_proxies", [])
    if not isinstance(proxies, list) or not all(isinstance(proxy, str) for proxy in proxies):
        raise WebGatewayError('relay.trusted_proxies must be a list such as ["10.0.0.0/8"]')
    limits = settings.pop("limits", {})
    is_table = isinstance(limits, dict)
    if not is_table or not all(type(value) in (int, float) for value in limits.values()):
        raise WebGatewayError("relay.limits must be a table of numbers")
    other_values = settings if isinstance(table, dict) else table
    parsed: RelaySettings = parse_settings(
        RelaySettings, other_values, "relay.", trusted_proxies=tuple(proxies), limits=limits
    )
    return parsed


def parse_settings(kind: Any, table: Any, prefix: str, **other_values: Any) -> Any:
    if not isinstance(table, dict):
        raise WebGatewayError(f"{prefix.rstrip('.')} is no table")
    known = kind.__dataclass_fields__
    for key, value in table.items():
        if key not in known or key in other_values:
            raise WebGatewayError(f"{prefix}{key} means nothing here; take it out")
        value_type = type(known[key].default)
        if type(value) is not value_type:
            raise WebGatewayError(f"{prefix}{key} must be {TYPE_NAMES[value_type]}, not {value!r}")
        if value_type is int and value < 0:
            raise WebGatewayError(f"{prefix}{key} must not be negative")
    return kind(**table, **other_values)


TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false"}
