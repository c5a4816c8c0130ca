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
    """Of the relay that `crabtalk-web up` and `crabtalk-web relay` run."""

    host: str = "127.0.0.1"
    port: int = 3005
    tls_certificate: str = ""
    tls_key: str = ""
    host_name: str = ""
    public_url: str = ""
    # Who may make an account: "open", "invite" or "closed". Empty: "open" for a relay that only
    # this machine reaches, else "invite".
    registration: str = ""
    # Addresses and networks of proxies whose X-Forwarded-For is believed.
    trusted_proxies: tuple[str, ...] = ()
    # Bounds by name, as docs/relay.md lists them.
    limits: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    # Whose conversations devices see, and in whose name they talk.
    sender: str = "user"
    # A session for every agent from the start, be there a conversation or not.
    announce_agents: bool = True
    # What is said while the agent is at work waits, or is said into the turn.
    while_busy: str = "queue"
    # Where the tools of a turn work that a device begins.
    cwd: str = "~"
    # How much of a conversation that is older than its session is shown in it. Messages.
    backfill: int = 1000
    # Tools under the names that certain apps draw in a way of their own, and questions as these
    # expect them.
    compat: bool = False
    # What tools gave back also as reasoning, for apps that show it in no other way.
    output_as_thinking: bool = False
    # How many tokens a turn took, told to the relay, which reads it.
    report_usage: bool = False
    # Notices of ended turns and of questions. They say nothing of what was said.
    push: bool = True
    # What may wait on disk for a relay that is away. Bytes, of one conversation.
    journal_bytes: int = 64 * 1024 * 1024
    relay: RelaySettings = field(default_factory=RelaySettings)

    @property
    def directory(self) -> Path:
        return Path(self.cwd).expanduser()


def load_config(path: Path) -> GatewayConfig:
    """Raises GatewayError. A file that is not there is an empty one."""
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
    given = dict(table) if isinstance(table, dict) else {}
    proxies = given.pop("trusted_proxies", [])
    if not isinstance(proxies, list) or not all(isinstance(one, str) for one in proxies):
        raise WebGatewayError('relay.trusted_proxies must be a list such as ["10.0.0.0/8"]')
    limits = given.pop("limits", {})
    is_table = isinstance(limits, dict)
    if not is_table or not all(type(value) in (int, float) for value in limits.values()):
        raise WebGatewayError("relay.limits must be a table of numbers")
    rest = given if isinstance(table, dict) else table
    found: RelaySettings = parse_settings(
        RelaySettings, rest, "relay.", trusted_proxies=tuple(proxies), limits=limits
    )
    return found


def parse_settings(kind: Any, table: Any, prefix: str, **rest: Any) -> Any:
    if not isinstance(table, dict):
        raise WebGatewayError(f"{prefix.rstrip('.')} is no table")
    known = kind.__dataclass_fields__
    for key, value in table.items():
        if key not in known or key in rest:
            raise WebGatewayError(f"{prefix}{key} means nothing here; take it out")
        wanted = type(known[key].default)
        if type(value) is not wanted:
            raise WebGatewayError(f"{prefix}{key} must be {TYPE_NAMES[wanted]}, not {value!r}")
        if wanted is int and value < 0:
            raise WebGatewayError(f"{prefix}{key} must not be negative")
    return kind(**table, **rest)


TYPE_NAMES = {str: "a text", int: "a whole number", bool: "true or false"}
