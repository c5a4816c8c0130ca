"""The key-value store of an account. Values are sealed, keys are not."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .accounts import allocate_updates

NEW_VERSION = -1


@dataclass(frozen=True, slots=True)
class KeyValueChange:
    """A value of None deletes. `version` is the version to replace, NEW_VERSION if there is
    none."""

    key: str
    value: bytes | None
    version: int


def get_values(db: sqlite3.Connection, account: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    marks = ", ".join("?" * len(keys))
    rows = db.execute(
        f"SELECT * FROM pairs WHERE account = ? AND key IN ({marks}) AND value IS NOT NULL",  # noqa: S608
        (account, *keys),
    )
    return [build_entry(row) for row in rows]


def list_values(
    db: sqlite3.Connection, account: str, prefix: str, limit: int
) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT * FROM pairs WHERE account = ? AND value IS NOT NULL"
        " AND substr(key, 1, ?) = ? ORDER BY key LIMIT ?",
        (account, len(prefix), prefix, limit),
    )
    return [build_entry(row) for row in rows]


def change_values(
    db: sqlite3.Connection, account: str, changes: Sequence[KeyValueChange]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the errors (then nothing was changed), the results, and the update number.

    A deleted key keeps its version: a writer that replaces it must have seen the deletion.
    """
    errors, results = [], []
    for change in changes:
        row = db.execute(
            "SELECT * FROM pairs WHERE account = ? AND key = ?", (account, change.key)
        ).fetchone()
        current = NEW_VERSION if row is None else int(row["version"])
        if current != change.version:
            errors.append(
                {
                    "key": change.key,
                    "error": "version-mismatch",
                    "version": current,
                    "value": None if row is None else row["value"],
                }
            )
        else:
            results.append({"key": change.key, "version": current + 1})
    if errors:
        return errors, [], 0
    db.executemany(
        "INSERT INTO pairs VALUES (?, ?, ?, ?) ON CONFLICT (account, key)"
        " DO UPDATE SET value = excluded.value, version = excluded.version",
        [(account, change.key, change.value, change.version + 1) for change in changes],
    )
    return [], results, allocate_updates(db, account)


def build_entry(row: sqlite3.Row) -> dict[str, Any]:
    return {"key": row["key"], "value": row["value"], "version": row["version"]}
