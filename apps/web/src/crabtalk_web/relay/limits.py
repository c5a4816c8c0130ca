"""The relay's limits, so that no client can exhaust its storage or block the others."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from .errors import RelayConfigError


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Sizes are in bytes, times in seconds."""

    # ── Requests ──────────────────────────────────────────────────────────────────────────────
    body: int = 100 * 1024 * 1024
    # For requests without a token.
    strangers_body: int = 64 * 1024
    # How long receiving a request may take.
    body_timeout: float = 60.0
    # For the bodies of all unanswered requests together.
    inbound: int = 256 * 1024 * 1024
    # Requests a minute from one address without a token; pairing polls once a second.
    strangers_requests: int = 600
    # ── Messages and records ──────────────────────────────────────────────────────────────────
    batch: int = 100
    page: int = 500
    metadata: int = 1024 * 1024
    kv_batch: int = 100
    kv_list: int = 1000
    # ── Sockets ───────────────────────────────────────────────────────────────────────────────
    sockets: int = 4096
    account_sockets: int = 2048
    # Sockets of one address that have not authenticated yet.
    strangers_sockets: int = 256
    frame: int = 8 * 1024 * 1024
    rpc: int = 4 * 1024 * 1024
    # Data queued for a client that does not read, before it is disconnected.
    outbox: int = 16 * 1024 * 1024
    # Calls and other events of one socket that are handled at once.
    socket_events: int = 64
    # RPC methods registered by one socket: a gateway has a handful for each of its agents.
    methods: int = 16_384
    ping_interval: float = 15.0
    ping_timeout: float = 45.0
    connect_timeout: float = 20.0
    rpc_timeout: float = 30.0
    # How long a call waits for a client that has just disconnected or connected.
    rpc_absent: float = 2.0
    # ── Presence ──────────────────────────────────────────────────────────────────────────────
    skew: float = 600.0
    inactivity: float = 600.0
    # ── Accounts and pairing ──────────────────────────────────────────────────────────────────
    accounts: int = 1000
    # New accounts an hour from one address.
    accounts_an_hour: int = 20
    # After this time an account without sessions, machines or messages may be evicted.
    unused_account: float = 3600.0
    account_sessions: int = 10_000
    account_machines: int = 1000
    account_messages: int = 2_000_000
    # Everything it stores except files, which have their own limit.
    account_bytes: int = 4 * 1024 * 1024 * 1024
    pairing: float = 300.0
    pairings: int = 1000
    nonce: float = 300.0
    # ── Files ─────────────────────────────────────────────────────────────────────────────────
    attachment: int = 10 * 1024 * 1024
    uploads_a_minute: int = 60
    upload: float = 900.0
    account_files: int = 2 * 1024 * 1024 * 1024
    file_retention: float = 90 * 24 * 3600.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a number above zero, not {value!r}")


def read_limits(given: Mapping[str, float]) -> RelayLimits:
    """Parse the limits of a settings file. Raises RelayConfigError."""
    known = {field.name: type(field.default) for field in fields(RelayLimits)}
    for name, value in given.items():
        if name not in known:
            raise RelayConfigError(f"relay.limits.{name} is no bound; docs/relay.md lists them")
        if not value > 0 or (known[name] is int and not isinstance(value, int)):
            raise RelayConfigError(f"relay.limits.{name} must be a number above zero")
    return RelayLimits(**given)  # type: ignore[arg-type]  # checked above
