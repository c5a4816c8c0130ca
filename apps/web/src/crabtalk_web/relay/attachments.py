"""The database rows of attachments. Their bytes are in `blobs`."""

import sqlite3
import uuid
from dataclasses import dataclass

from .errors import RelayError, build_not_found_error
from .ids import now_ms
from .sessions import find_session_number


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    name: str
    size: int
    is_kept: bool


def reserve_attachment(
    db: sqlite3.Connection, account: str, session: str, size: int, *, quota: int
) -> str:
    """Return the name under which the bytes can be uploaded. The size counts against the quota from
    now on."""
    number = find_session_number(db, account, session)
    used = db.execute(
        "SELECT coalesce(sum(size), 0) FROM attachments WHERE account = ?", (account,)
    ).fetchone()[0]
    if used + size > quota:
        raise RelayError(
            413,
            f"the files of this account may have {quota} bytes and have {used};"
            " delete sessions that are no longer needed",
        )
    name = f"{uuid.uuid4()}.enc"
    db.execute(
        "INSERT INTO attachments (name, session, account, size, created_at) VALUES (?, ?, ?, ?, ?)",
        (name, number, account, size, now_ms()),
    )
    return name


def find_attachment(
    db: sqlite3.Connection, account: str, session: str, name: str
) -> StoredAttachment:
    row = db.execute(
        "SELECT name, size, is_kept FROM attachments WHERE name = ? AND session = ?",
        (name, find_session_number(db, account, session)),
    ).fetchone()
    if row is None:
        raise build_not_found_error("Attachment")
    return StoredAttachment(row["name"], row["size"], bool(row["is_kept"]))


def mark_kept(db: sqlite3.Connection, name: str) -> bool:
    """Return False if the row was deleted during the upload."""
    row = db.execute(
        "UPDATE attachments SET is_kept = 1 WHERE name = ? RETURNING name", (name,)
    ).fetchone()
    return row is not None


def delete_old_attachments(db: sqlite3.Connection, before: int, unsent_before: int) -> list[str]:
    """Return the names of expired attachments, and of those that were never uploaded."""
    rows = db.execute(
        "DELETE FROM attachments WHERE created_at < ? OR (created_at < ? AND NOT is_kept)"
        " RETURNING name",
        (before, unsent_before),
    ).fetchall()
    return [row["name"] for row in rows]


def list_names(db: sqlite3.Connection) -> set[str]:
    return {row["name"] for row in db.execute("SELECT name FROM attachments")}
