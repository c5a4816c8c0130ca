"""Versions: values that change only for those who have seen the value they replace."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

from .accounts import next_update
from .ids import now_ms

Field = Literal["metadata", "agent_state", "daemon_state"]


@dataclass(frozen=True, slots=True)
class Swap:
    """What is there now. `update` is the number of the update that tells of it, 0 for none."""

    value: bytes | None
    version: int
    update: int = 0

    @property
    def is_done(self) -> bool:
        return self.update > 0


def swap(
    db: sqlite3.Connection,
    account: str,
    table: Literal["sessions", "machines"],
    field: Field,
    record: str,
    value: bytes | None,
    expected: int,
) -> Swap | None:
    """None when the account has no such record."""
    row = db.execute(
        f"SELECT {field} AS value, {field}_version AS version FROM {table}"  # noqa: S608
        " WHERE id = ? AND account = ?",
        (record, account),
    ).fetchone()
    if row is None:
        return None
    if row["version"] != expected:
        return Swap(row["value"], row["version"])
    db.execute(
        f"UPDATE {table} SET {field} = ?, {field}_version = ?, updated_at = ? WHERE id = ?",  # noqa: S608
        (value, expected + 1, now_ms(), record),
    )
    return Swap(value, expected + 1, next_update(db, account))


def versioned(swapped: Swap) -> dict[str, Any]:
    """As updates say it."""
    return {"value": swapped.value, "version": swapped.version}
