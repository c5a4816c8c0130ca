"""Artifacts: sealed documents of an account, with separate versions for header and body."""

import sqlite3
from typing import Any

from .accounts import allocate_updates
from .errors import RelayError, build_not_found_error
from .ids import now_ms
from .versioned_values import VersionedValue


def create_artifact(
    db: sqlite3.Connection, account: str, artifact: str, header: bytes, body: bytes, data_key: bytes
) -> tuple[dict[str, Any], int]:
    """Return the artifact, and the update number if it is new."""
    row = db.execute("SELECT * FROM artifacts WHERE id = ?", (artifact,)).fetchone()
    if row is not None and row["account"] != account:
        raise RelayError(409, "another account has an artifact of this id; choose a new one")
    if row is not None:
        return build_artifact(row), 0
    now = now_ms()
    row = db.execute(
        "INSERT INTO artifacts VALUES (?, ?, ?, 1, ?, 1, ?, 0, ?, ?) RETURNING *",
        (artifact, account, header, body, data_key, now, now),
    ).fetchone()
    return build_artifact(row), allocate_updates(db, account)


def list_artifacts(db: sqlite3.Connection, account: str) -> list[dict[str, Any]]:
    """List the artifacts without their bodies."""
    rows = db.execute(
        "SELECT * FROM artifacts WHERE account = ? ORDER BY updated_at DESC", (account,)
    )
    return [drop_body(build_artifact(row)) for row in rows]


def get_artifact(db: sqlite3.Connection, account: str, artifact: str) -> dict[str, Any]:
    row = db.execute(
        "SELECT * FROM artifacts WHERE id = ? AND account = ?", (artifact, account)
    ).fetchone()
    if row is None:
        raise build_not_found_error("Artifact")
    return build_artifact(row)


def change_artifact(
    db: sqlite3.Connection,
    account: str,
    artifact: str,
    header: tuple[bytes, int] | None,
    body: tuple[bytes, int] | None,
) -> tuple[dict[str, VersionedValue], int]:
    """Return the current values of the changed parts, and the update number. If a part has another
    version than expected, nothing changes and the number is 0."""
    now = get_artifact(db, account, artifact)
    wanted = {"header": header, "body": body}
    changes = {name: change for name, change in wanted.items() if change is not None}
    old = {
        name: VersionedValue(now[name], now[f"{name}Version"])
        for name, (_, expected) in changes.items()
        if now[f"{name}Version"] != expected
    }
    if old:
        return old, 0
    for name, (value, expected) in changes.items():
        db.execute(
            f"UPDATE artifacts SET {name} = ?, {name}_version = ? WHERE id = ?",  # noqa: S608
            (value, expected + 1, artifact),
        )
    db.execute(
        "UPDATE artifacts SET seq = seq + 1, updated_at = ? WHERE id = ?", (now_ms(), artifact)
    )
    update = allocate_updates(db, account)
    return {
        name: VersionedValue(value, v + 1, update) for name, (value, v) in changes.items()
    }, update


def delete_artifact(db: sqlite3.Connection, account: str, artifact: str) -> int:
    get_artifact(db, account, artifact)
    db.execute("DELETE FROM artifacts WHERE id = ?", (artifact,))
    return allocate_updates(db, account)


def build_artifact(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "header": row["header"],
        "headerVersion": row["header_version"],
        "body": row["body"],
        "bodyVersion": row["body_version"],
        "dataEncryptionKey": row["data_key"],
        "seq": row["seq"],
        "createdAt": row["created_at"],
        "updatedAt": row["updated_at"],
    }


def drop_body(artifact: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in artifact.items() if name not in ("body", "bodyVersion")}
