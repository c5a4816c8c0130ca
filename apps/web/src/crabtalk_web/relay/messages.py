"""The messages of a session, in one order without gaps."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .accounts import allocate_updates
from .errors import RelayError, build_not_found_error
from .ids import new_id, now_ms

LAST_SEQ = 2**31 - 1


@dataclass(frozen=True, slots=True)
class MessageDraft:
    content: bytes
    local_id: str | None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """All given messages in order, and the new ones with their update numbers."""

    rows: list[dict[str, Any]]
    new: list[dict[str, Any]]
    first_update: int


def append_messages(
    db: sqlite3.Connection, account: str, session: str, drafts: Sequence[MessageDraft]
) -> AppendResult:
    """A draft with a known local id is a repeat: it is neither stored nor counted."""
    row = db.execute(
        "SELECT no, seq FROM sessions WHERE id = ? AND account = ?", (session, account)
    ).fetchone()
    if row is None:
        raise build_not_found_error("Session")
    number, seq, now = int(row["no"]), int(row["seq"]), now_ms()
    known = find_by_local_ids(
        db, number, [draft.local_id for draft in drafts if draft.local_id is not None]
    )
    rows, new, inserts = list(known.values()), [], []
    for draft in drafts:
        if draft.local_id is not None and draft.local_id in known:
            continue
        seq += 1
        message = build_message(new_id(), seq, draft.content, draft.local_id, now)
        if draft.local_id is not None:
            known[draft.local_id] = message
        new.append(message)
        inserts.append((number, seq, message["id"], draft.local_id, draft.content, now))
    if not new:
        return AppendResult(rows, new, 0)
    if seq > LAST_SEQ:
        raise RelayError(409, "this session is full; begin another one")
    db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", inserts)
    size = sum(len(insert[4]) for insert in inserts)
    db.execute(
        "UPDATE sessions SET seq = ?, bytes = bytes + ?, updated_at = ? WHERE no = ?",
        (seq, size, now, number),
    )
    db.execute(
        "UPDATE accounts SET messages = messages + ?, bytes = bytes + ? WHERE id = ?",
        (len(new), size, account),
    )
    rows = sorted([*rows, *new], key=lambda message: int(message["seq"]))
    return AppendResult(rows, new, allocate_updates(db, account, len(new)))


def find_by_local_ids(
    db: sqlite3.Connection, number: int, ids: list[str]
) -> dict[str, dict[str, Any]]:
    if not ids:
        return {}
    marks = ", ".join("?" * len(ids))
    rows = db.execute(
        f"SELECT * FROM messages WHERE session = ? AND local_id IN ({marks}) ORDER BY seq",  # noqa: S608
        (number, *ids),
    )
    return {row["local_id"]: build_stored_message(row) for row in rows}


def list_after(
    db: sqlite3.Connection, number: int, seq: int, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    rows = db.execute(
        "SELECT * FROM messages WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
        (number, seq, limit + 1),
    ).fetchall()
    return [build_stored_message(row) for row in rows[:limit]], len(rows) > limit


def list_before(
    db: sqlite3.Connection, number: int, seq: int, limit: int
) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest first."""
    rows = db.execute(
        "SELECT * FROM messages WHERE session = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
        (number, seq, limit + 1),
    ).fetchall()
    return [build_stored_message(row) for row in rows[:limit]], len(rows) > limit


def build_stored_message(row: sqlite3.Row) -> dict[str, Any]:
    return build_message(row["id"], row["seq"], row["content"], row["local_id"], row["created_at"])


def build_message(
    id_: str, seq: int, content: bytes, local_id: str | None, at: int
) -> dict[str, Any]:
    return {
        "id": id_,
        "seq": seq,
        "content": {"t": "encrypted", "c": content},
        "localId": local_id,
        "createdAt": at,
        "updatedAt": at,
    }


def drop_content(message: dict[str, Any]) -> dict[str, Any]:
    """Return what the sender needs to know, without the content."""
    return {name: value for name, value in message.items() if name != "content"}
