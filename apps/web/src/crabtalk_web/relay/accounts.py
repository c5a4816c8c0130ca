"""Accounts and their devices. An account is a public key; a device is a token."""

import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from .errors import RelayError
from .ids import hash_token, new_id, new_token, now_ms
from .limits import RelayLimits
from .registration import Admission, admit_account

P = ParamSpec("P")
T = TypeVar("T")
MAX_CLIENT_NAME = 64


@dataclass(frozen=True, slots=True)
class AccountDevice:
    """The device that sends a request."""

    id: str
    account: str
    client: str = ""  # the name it sends


def log_in(
    db: sqlite3.Connection,
    public_key: bytes,
    challenge: bytes,
    client: str,
    admission: Admission,
) -> tuple[str, bool]:
    """Return the token of a new device of the account with this key, and whether the account is
    new.

    A challenge is accepted once, so a captured login cannot be repeated.
    """
    used = hashlib.sha256(public_key + challenge).digest()
    try:
        db.execute("INSERT INTO challenges VALUES (?, ?)", (used, now_ms()))
    except sqlite3.IntegrityError:
        raise RelayError(401, "this challenge was used before; sign a new one") from None
    row = db.execute("SELECT id FROM accounts WHERE public_key = ?", (public_key,)).fetchone()
    if row is not None:
        return add_device(db, row["id"], "account", client), False
    admit_account(db, admission)
    return add_device(db, create_account(db, public_key), "account", client), True


def has_account(db: sqlite3.Connection, public_key: bytes) -> bool:
    row = db.execute("SELECT 1 FROM accounts WHERE public_key = ?", (public_key,)).fetchone()
    return row is not None


def create_account(db: sqlite3.Connection, public_key: bytes) -> str:
    account = new_id()
    db.execute(
        "INSERT INTO accounts (id, public_key, created_at) VALUES (?, ?, ?)",
        (account, public_key, now_ms()),
    )
    return account


def add_device(db: sqlite3.Connection, account: str, kind: str, client: str) -> str:
    token, now = new_token(), now_ms()
    row = (new_id(), account, hash_token(token), kind, client[:MAX_CLIENT_NAME], now, now)
    db.execute("INSERT INTO devices VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    return token


def find_device(db: sqlite3.Connection, hashed: bytes) -> AccountDevice | None:
    row = db.execute(
        "SELECT id, account, client FROM devices WHERE token_hash = ?", (hashed,)
    ).fetchone()
    return None if row is None else AccountDevice(row["id"], row["account"], row["client"])


def list_devices(db: sqlite3.Connection, caller: AccountDevice) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM devices WHERE account = ? ORDER BY created_at, id", (caller.account,)
    )
    return [
        {
            "id": row["id"],
            "kind": row["kind"],
            "client": row["client"],
            "createdAt": row["created_at"],
            "seenAt": row["seen_at"],
            "current": row["id"] == caller.id,
        }
        for row in rows
    ]


def revoke_device(db: sqlite3.Connection, account: str, device: str) -> bytes | None:
    """Return the hash of the revoked token; None if there is no such device."""
    row = db.execute(
        "DELETE FROM devices WHERE id = ? AND account = ? RETURNING token_hash", (device, account)
    ).fetchone()
    return None if row is None else bytes(row["token_hash"])


def save_seen_times(db: sqlite3.Connection, seen: dict[str, int]) -> None:
    pairs = [(at, device) for device, at in seen.items()]
    db.executemany("UPDATE devices SET seen_at = ? WHERE id = ?", pairs)


def rename_devices(db: sqlite3.Connection, clients: dict[str, str]) -> None:
    """Store the new client names of devices, which change after an update."""
    pairs = [(client, device) for device, client in clients.items()]
    db.executemany("UPDATE devices SET client = ? WHERE id = ?", pairs)


def measure_usage(db: sqlite3.Connection, account: str) -> tuple[int, int]:
    """Return the number of messages an account stores, and the number of bytes."""
    row = db.execute("SELECT messages, bytes FROM accounts WHERE id = ?", (account,)).fetchone()
    return (0, 0) if row is None else (int(row["messages"]), int(row["bytes"]))


def run_within_quota(
    db: sqlite3.Connection,
    limits: RelayLimits,
    operation: Callable[Concatenate[sqlite3.Connection, str, P], T],
    account: str,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return the result of `operation`. Raises RelayError 413 if the account then stores more than
    it may; the database rolls back. Operations that make an account smaller are always allowed."""
    before = measure_usage(db, account)
    result = operation(db, account, *args, **kwargs)
    after = measure_usage(db, account)
    limits_by_name = (limits.account_messages, limits.account_bytes)
    for name, was, now, bound in zip(
        ("messages", "bytes"), before, after, limits_by_name, strict=True
    ):
        if now > bound and now > was:
            raise RelayError(
                413,
                f"an account of this relay may keep {bound} {name}; delete sessions that are no"
                " longer needed, or ask its operator",
            )
    return result


def allocate_updates(db: sqlite3.Connection, account: str, count: int = 1) -> int:
    """Return the first of `count` new sequence numbers for updates to the account's devices."""
    row = db.execute(
        "UPDATE accounts SET seq = seq + ? WHERE id = ? RETURNING seq", (count, account)
    ).fetchone()
    return int(row["seq"]) - count + 1


# ── Settings ────────────────────────────────────────────────────────────────────────────────────


def get_settings(db: sqlite3.Connection, account: str) -> tuple[bytes | None, int]:
    row = db.execute(
        "SELECT settings, settings_version FROM accounts WHERE id = ?", (account,)
    ).fetchone()
    return row["settings"], row["settings_version"]


def set_settings(
    db: sqlite3.Connection, account: str, value: bytes | None, expected: int
) -> tuple[bool, bytes | None, int, int]:
    """Return whether the value was set, the current value with its version, and the update
    number."""
    row = db.execute(
        "UPDATE accounts SET settings = ?, settings_version = settings_version + 1"
        " WHERE id = ? AND settings_version = ? RETURNING settings_version",
        (value, account, expected),
    ).fetchone()
    if row is None:
        return (False, *get_settings(db, account), 0)
    return True, value, int(row["settings_version"]), allocate_updates(db, account)


# ── Push tokens ─────────────────────────────────────────────────────────────────────────────────


def list_push_tokens(db: sqlite3.Connection, account: str) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM push_tokens WHERE account = ? ORDER BY created_at DESC", (account,)
    )
    return [
        {
            "id": row["id"],
            "token": row["token"],
            "createdAt": row["created_at"],
            "updatedAt": row["updated_at"],
        }
        for row in rows
    ]


def add_push_token(db: sqlite3.Connection, account: str, token: str, limits_by_name: int) -> None:
    now = now_ms()
    count = db.execute("SELECT count(*) FROM push_tokens WHERE account = ?", (account,))
    if count.fetchone()[0] >= limits_by_name:
        raise RelayError(
            409, f"an account has at most {limits_by_name} push tokens; delete one first"
        )
    db.execute(
        "INSERT INTO push_tokens VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (account, token) DO UPDATE SET updated_at = excluded.updated_at",
        (new_id(), account, token, now, now),
    )


def delete_push_token(db: sqlite3.Connection, account: str, token: str) -> None:
    db.execute("DELETE FROM push_tokens WHERE account = ? AND token = ?", (account, token))
