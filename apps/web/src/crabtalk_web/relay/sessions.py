"""Sessions: one for each conversation, identified by its tag."""

import sqlite3
from typing import Any

from .accounts import allocate_updates
from .errors import RelayError, build_not_found_error
from .ids import new_id, now_ms


def create_session(
    db: sqlite3.Connection,
    account: str,
    tag: str,
    metadata: bytes,
    data_key: bytes | None,
    most: int,
) -> tuple[dict[str, Any], int]:
    """Return the session with this tag, and the update number if it is new."""
    row = db.execute(
        "SELECT * FROM sessions WHERE account = ? AND tag = ?", (account, tag)
    ).fetchone()
    if row is not None:
        return build_session(row), 0
    count = db.execute("SELECT count(*) FROM sessions WHERE account = ?", (account,)).fetchone()[0]
    if count >= most:
        raise RelayError(
            413, f"an account of this relay has at most {most} sessions; delete some of them first"
        )
    now = now_ms()
    row = db.execute(
        "INSERT INTO sessions"
        " (id, account, tag, metadata, data_key, active_at, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING *",
        (new_id(), account, tag, metadata, data_key, now, now, now),
    ).fetchone()
    return build_session(row), allocate_updates(db, account)


def list_newest(db: sqlite3.Connection, account: str, limit: int) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM sessions WHERE account = ? ORDER BY updated_at DESC, no DESC LIMIT ?",
        (account, limit),
    )
    return [build_session(row) for row in rows]


def list_page(
    db: sqlite3.Connection, account: str, before: str | None, since: int, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return a page, the newest first, after the session `before`, and whether there are more."""
    rows = db.execute(
        "SELECT * FROM sessions WHERE account = ? AND (? IS NULL OR id < ?) AND updated_at > ?"
        " ORDER BY id DESC LIMIT ?",
        (account, before, before, since, limit + 1),
    ).fetchall()
    return [build_session(row) for row in rows[:limit]], len(rows) > limit


def list_active(
    db: sqlite3.Connection, account: str, since: int, limit: int
) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM sessions WHERE account = ? AND active AND active_at > ?"
        " ORDER BY active_at DESC LIMIT ?",
        (account, since, limit),
    )
    return [build_session(row) for row in rows]


def find_session_number(db: sqlite3.Connection, account: str, session: str) -> int:
    """Return the session's number in other tables. Raises RelayError 404."""
    row = db.execute(
        "SELECT no FROM sessions WHERE id = ? AND account = ?", (session, account)
    ).fetchone()
    if row is None:
        raise build_not_found_error("Session")
    return int(row["no"])


def delete_session(db: sqlite3.Connection, account: str, session: str) -> tuple[list[str], int]:
    """Return the names of its files, which the caller must delete, and the update number."""
    number = find_session_number(db, account, session)
    rows = db.execute("SELECT name FROM attachments WHERE session = ?", (number,))
    names = [str(row["name"]) for row in rows]
    db.execute("DELETE FROM sessions WHERE no = ?", (number,))
    return names, allocate_updates(db, account)


def build_session(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "seq": row["seq"],
        "metadata": row["metadata"],
        "metadataVersion": row["metadata_version"],
        "agentState": row["agent_state"],
        "agentStateVersion": row["agent_state_version"],
        "dataEncryptionKey": row["data_key"],
        "active": bool(row["active"]),
        "activeAt": row["active_at"],
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
        "lastMessage": None,
    }
