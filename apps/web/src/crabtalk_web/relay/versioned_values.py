"""Versioned values: a change must name the version it replaces."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Literal

from .accounts import allocate_updates
from .ids import now_ms

RecordField = Literal["metadata", "agent_state", "daemon_state"]


@dataclass(frozen=True, slots=True)
class VersionedValue:
    """The current value. `update` is the update number of the change, 0 for none."""

    value: bytes | None
    version: int
    update: int = 0

    @property
    def is_done(self) -> bool:
        return self.update > 0


def swap_value(
    db: sqlite3.Connection,
    account: str,
    table: Literal["sessions", "machines"],
    field: RecordField,
    record: str,
    value: bytes | None,
    expected: int,
) -> VersionedValue | None:
    """Return None if the account has no such record."""
    row = db.execute(
        f"SELECT {field} AS value, {field}_version AS version FROM {table}"  # noqa: S608
        " WHERE id = ? AND account = ?",
        (record, account),
    ).fetchone()
    if row is None:
        return None
    if row["version"] != expected:
        return VersionedValue(row["value"], row["version"])
    db.execute(
        f"UPDATE {table} SET {field} = ?, {field}_version = ?, updated_at = ? WHERE id = ?",  # noqa: S608
        (value, expected + 1, now_ms(), record),
    )
    return VersionedValue(value, expected + 1, allocate_updates(db, account))


def build_update_value(swapped: VersionedValue) -> dict[str, Any]:
    """Build the value in the form that updates have."""
    return {"value": swapped.value, "version": swapped.version}
