"""Access keys: the keys with which a machine opens a session, sealed for that machine."""

import sqlite3
from typing import Any

from .errors import RelayError
from .ids import now_ms
from .machines import get_machine
from .sessions import find_session_number
from .versioned_values import VersionedValue


def get_access_key(
    db: sqlite3.Connection, account: str, session: str, machine: str
) -> dict[str, Any] | None:
    row = find_access_key(
        db, find_session_number(db, account, session), get_machine(db, account, machine)["id"]
    )
    return None if row is None else build_access_key(row)


def create_access_key(
    db: sqlite3.Connection, account: str, session: str, machine: str, data: bytes
) -> dict[str, Any]:
    number, machine = (
        find_session_number(db, account, session),
        get_machine(db, account, machine)["id"],
    )
    if find_access_key(db, number, machine) is not None:
        raise RelayError(409, "there is an access key already; replace it with its version")
    now = now_ms()
    row = db.execute(
        "INSERT INTO access_keys VALUES (?, ?, ?, 1, ?, ?) RETURNING *",
        (number, machine, data, now, now),
    ).fetchone()
    return build_access_key(row)


def change_access_key(
    db: sqlite3.Connection, account: str, session: str, machine: str, data: bytes, expected: int
) -> tuple[bool, VersionedValue]:
    number, machine = (
        find_session_number(db, account, session),
        get_machine(db, account, machine)["id"],
    )
    row = find_access_key(db, number, machine)
    if row is None:
        raise RelayError(404, "there is no access key yet; create it first")
    if row["version"] != expected:
        return False, VersionedValue(row["data"], row["version"])
    db.execute(
        "UPDATE access_keys SET data = ?, version = ?, updated_at = ?"
        " WHERE session = ? AND machine = ?",
        (data, expected + 1, now_ms(), number, machine),
    )
    return True, VersionedValue(data, expected + 1)


def find_access_key(db: sqlite3.Connection, number: int, machine: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM access_keys WHERE session = ? AND machine = ?", (number, machine)
    ).fetchone()
    return row


def build_access_key(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "data": row["data"],
        "dataVersion": row["version"],
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
    }
