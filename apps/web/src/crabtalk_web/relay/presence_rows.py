"""The presence columns in the database."""

import sqlite3
from collections.abc import Iterable
from typing import Literal

RecordKind = Literal["sessions", "machines"]


def is_owned(db: sqlite3.Connection, kind: RecordKind, account: str, record: str) -> bool:
    row = db.execute(
        f"SELECT 1 FROM {kind} WHERE id = ? AND account = ?",  # noqa: S608
        (record, account),
    ).fetchone()
    return row is not None


def set_active(db: sqlite3.Connection, seen: Iterable[tuple[RecordKind, str, int]]) -> None:
    for kind, record, at in seen:
        db.execute(
            f"UPDATE {kind} SET active = 1, active_at = max(active_at, ?) WHERE id = ?",  # noqa: S608
            (at, record),
        )


def set_inactive(db: sqlite3.Connection, kind: RecordKind, account: str, record: str) -> int | None:
    """Return when it was last active; None if the account has no such record."""
    row = db.execute(
        f"UPDATE {kind} SET active = 0"  # noqa: S608
        " WHERE id = ? AND account = ? RETURNING active_at",
        (record, account),
    ).fetchone()
    return None if row is None else int(row["active_at"])


def expire_records(
    db: sqlite3.Connection, kind: RecordKind, before: int
) -> list[tuple[str, str, int]]:
    """Mark records without heartbeats since `before` as inactive. Return account, id and last
    time."""
    rows = db.execute(
        f"UPDATE {kind} SET active = 0 WHERE active AND active_at < ?"  # noqa: S608
        " RETURNING account, id, active_at",
        (before,),
    ).fetchall()
    return [(row["account"], row["id"], row["active_at"]) for row in rows]
