"""Machines: where gateways run. They choose their own ids, and each id belongs to one account."""

import sqlite3
from typing import Any

from .accounts import allocate_updates
from .errors import RelayError, build_not_found_error
from .ids import now_ms


def register_machine(
    db: sqlite3.Connection,
    account: str,
    machine: str,
    metadata: bytes,
    daemon_state: bytes | None,
    data_key: bytes | None,
    most: int,
) -> tuple[dict[str, Any], int]:
    """Return the machine, and the first of two update numbers if it is new."""
    row = db.execute("SELECT * FROM machines WHERE id = ?", (machine,)).fetchone()
    if row is not None and row["account"] != account:
        raise RelayError(409, "this machine belongs to another account; give it a new id")
    if row is not None:
        return build_machine(row), 0
    count = db.execute("SELECT count(*) FROM machines WHERE account = ?", (account,)).fetchone()[0]
    if count >= most:
        raise RelayError(
            413, f"an account of this relay has at most {most} machines; delete some of them first"
        )
    now = now_ms()
    row = db.execute(
        "INSERT INTO machines (id, account, metadata, metadata_version, daemon_state,"
        " daemon_state_version, data_key, active_at, created_at, updated_at)"
        " VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?) RETURNING *",
        (machine, account, metadata, daemon_state, int(daemon_state is not None), data_key)
        + (now,) * 3,
    ).fetchone()
    return build_machine(row), allocate_updates(db, account, 2)


def list_machines(db: sqlite3.Connection, account: str) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM machines WHERE account = ? ORDER BY active_at DESC, id", (account,)
    )
    return [build_machine(row) for row in rows]


def get_machine(db: sqlite3.Connection, account: str, machine: str) -> dict[str, Any]:
    row = db.execute(
        "SELECT * FROM machines WHERE id = ? AND account = ?", (machine, account)
    ).fetchone()
    if row is None:
        raise build_not_found_error("Machine")
    return build_machine(row)


def delete_machine(db: sqlite3.Connection, account: str, machine: str) -> int:
    """Return the update number of the deletion."""
    get_machine(db, account, machine)
    db.execute("DELETE FROM machines WHERE id = ?", (machine,))
    return allocate_updates(db, account)


def build_machine(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "seq": row["seq"],
        "metadata": row["metadata"],
        "metadataVersion": row["metadata_version"],
        "daemonState": row["daemon_state"],
        "daemonStateVersion": row["daemon_state_version"],
        "dataEncryptionKey": row["data_key"],
        "active": bool(row["active"]),
        "activeAt": row["active_at"],
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
    }
