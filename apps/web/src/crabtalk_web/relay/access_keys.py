"""Access keys: what a machine was given to open a session with, sealed for that machine."""

import sqlite3
from typing import Any

from .errors import RelayError
from .ids import now_ms
from .machines import one
from .sessions import number_of
from .versions import Swap


def get(db: sqlite3.Connection, account: str, session: str, machine: str) -> dict[str, Any] | None:
    row = find(db, number_of(db, account, session), one(db, account, machine)["id"])
    return None if row is None else view(row)


def create(
    db: sqlite3.Connection, account: str, session: str, machine: str, data: bytes
) -> dict[str, Any]:
    number, machine = number_of(db, account, session), one(db, account, machine)["id"]
    if find(db, number, machine) is not None:
        raise RelayError(409, "there is an access key already; replace it with its version")
    now = now_ms()
    row = db.execute(
        "INSERT INTO access_keys VALUES (?, ?, ?, 1, ?, ?) RETURNING *",
        (number, machine, data, now, now),
    ).fetchone()
    return view(row)


def change(
    db: sqlite3.Connection, account: str, session: str, machine: str, data: bytes, expected: int
) -> tuple[bool, Swap]:
    number, machine = number_of(db, account, session), one(db, account, machine)["id"]
    row = find(db, number, machine)
    if row is None:
        raise RelayError(404, "there is no access key yet; create it first")
    if row["version"] != expected:
        return False, Swap(row["data"], row["version"])
    db.execute(
        "UPDATE access_keys SET data = ?, version = ?, updated_at = ?"
        " WHERE session = ? AND machine = ?",
        (data, expected + 1, now_ms(), number, machine),
    )
    return True, Swap(data, expected + 1)


def find(db: sqlite3.Connection, number: int, machine: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM access_keys WHERE session = ? AND machine = ?", (number, machine)
    ).fetchone()
    return row


def view(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "data": row["data"],
        "dataVersion": row["version"],
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
    }
