"""Lists and removes a relay's accounts, for its operator.

The functions work on the relay's folder, whether a relay is running on it or not. A running relay
finds removals in the database within a second and closes the connections of removed accounts.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .blobs import BlobStore
from .database import BUSY_MS
from .errors import RelayConfigError
from .ids import now_ms
from .schema import migrate_database

# Messages deleted in one transaction, which bounds how long a running relay waits.
DELETE_BATCH = 2000


@contextmanager
def open_database(data: Path) -> Iterator[sqlite3.Connection]:
    """Open the database of a relay in autocommit mode. Raises RelayConfigError."""
    path = data / "relay.db"
    if not path.is_file():
        raise RelayConfigError(
            f"there is no relay in {data}; start one there first, or name --data"
        )
    try:
        db = sqlite3.connect(path, isolation_level=None)
        db.row_factory = sqlite3.Row
        db.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        db.execute("PRAGMA foreign_keys = ON")
        migrate_database(db)
    except sqlite3.Error as error:
        raise RelayConfigError(f"cannot open {path}: {error}; check the folder") from None
    try:
        yield db
    except sqlite3.OperationalError as error:
        raise RelayConfigError(f"cannot change {path}: {error}; try again") from None
    finally:
        db.close()


def list_accounts(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the accounts, the oldest first. `bytes` counts messages, records and files."""
    rows = db.execute(
        "SELECT id, created_at, messages, bytes,"
        " (SELECT count(*) FROM sessions WHERE account = accounts.id) AS sessions,"
        " (SELECT max(seen_at) FROM devices WHERE account = accounts.id) AS seen_at,"
        " (SELECT coalesce(sum(size), 0) FROM attachments WHERE account = accounts.id) AS files"
        " FROM accounts ORDER BY created_at, id"
    )
    return [
        {
            "id": row["id"],
            "createdAt": row["created_at"],
            "lastSeenAt": row["seen_at"],
            "sessions": row["sessions"],
            "messages": row["messages"],
            "bytes": row["bytes"] + row["files"],
        }
        for row in rows
    ]


def remove_account(db: sqlite3.Connection, data: Path, account: str) -> bool:
    """Remove an account with all its data. Return False if the id is unknown.

    Its devices are locked out in the first transaction; its data is deleted in batches, so that a
    running relay can write in between. After an interruption, removing it again finishes the work.
    """
    if not lock_out_account(db, account):
        return False
    names = [
        str(row["name"])
        for row in db.execute("SELECT name FROM attachments WHERE account = ?", (account,))
    ]
    sessions = db.execute("SELECT no FROM sessions WHERE account = ?", (account,)).fetchall()
    for session in sessions:
        remove_session(db, int(session["no"]))
    db.execute("DELETE FROM accounts WHERE id = ?", (account,))
    BlobStore(data / "blobs").remove(names)
    return True


def lock_out_account(db: sqlite3.Connection, account: str) -> bool:
    """Delete all tokens of an account, and replace its key by a random one."""
    db.execute("BEGIN IMMEDIATE")
    row = db.execute(
        "UPDATE accounts SET public_key = randomblob(40) WHERE id = ? RETURNING id", (account,)
    ).fetchone()
    if row is not None:
        db.execute("DELETE FROM devices WHERE account = ?", (account,))
        db.execute("DELETE FROM pairings WHERE account = ?", (account,))
        db.execute("INSERT INTO removals (account) VALUES (?)", (account,))
    db.execute("COMMIT")
    return row is not None


def remove_session(db: sqlite3.Connection, number: int) -> None:
    while True:
        cursor = db.execute(
            "DELETE FROM messages WHERE rowid IN"
            " (SELECT rowid FROM messages WHERE session = ? LIMIT ?)",
            (number, DELETE_BATCH),
        )
        if cursor.rowcount < DELETE_BATCH:
            break
    db.execute("DELETE FROM sessions WHERE no = ?", (number,))


# ── For a running relay ─────────────────────────────────────────────────────────────────────────


def list_removals(db: sqlite3.Connection, number: int) -> list[tuple[int, str]]:
    rows = db.execute("SELECT no, account FROM removals WHERE no > ? ORDER BY no", (number,))
    return [(int(row["no"]), str(row["account"])) for row in rows]


def forget_removals(db: sqlite3.Connection, number: int) -> None:
    """Delete removals up to this number, after the running relay has acted on them."""
    db.execute("DELETE FROM removals WHERE no <= ?", (number,))


def find_last_removal(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(no), 0) FROM removals").fetchone()[0])


def compute_invite_expiry(seconds: float) -> int:
    """Return when a new invite expires, in milliseconds since 1970."""
    return now_ms() + round(seconds * 1000)
