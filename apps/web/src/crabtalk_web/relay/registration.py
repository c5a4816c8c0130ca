"""Registration: who may create an account at this relay, and invites.

Logging in to an existing account needs no invite and is never refused here. The database has only
the hashes of invite codes, so a copy of it cannot be used to register.
"""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .errors import RelayError
from .ids import new_id, now_ms

RegistrationMode = Literal["open", "invite", "closed"]
REGISTRATION_MODES: tuple[RegistrationMode, ...] = get_args(RegistrationMode)

# Without letters and digits that look alike. 20 of them have 100 bits.
ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"
CODE_LENGTH = 20
CODE_GROUP = 5

# Clients read the code, people read the message.
INVITE_NEEDED = "invite-needed"
CLOSED = "registration-closed"


@dataclass(frozen=True, slots=True)
class Admission:
    """The data that decides whether an unknown key gets an account."""

    mode: RegistrationMode
    most: int
    invite: str = ""
    # Unused accounts older than this may be evicted. Milliseconds since 1970.
    unused_before: int = 0


def admit_account(db: sqlite3.Connection, admission: Admission) -> None:
    """Use up the invite and make room. Raises RelayError 403."""
    if admission.mode == "closed":
        raise build_registration_error(CLOSED, "this relay takes no new accounts; ask its operator")
    if admission.mode == "invite":
        use_invite(db, admission.invite)
    make_room(db, admission)


def make_room(db: sqlite3.Connection, admission: Admission) -> None:
    if db.execute("SELECT count(*) FROM accounts").fetchone()[0] < admission.most:
        return
    # An evicted key can log in again and has lost nothing.
    removed = db.execute(
        "DELETE FROM accounts WHERE id = (SELECT id FROM accounts WHERE created_at < ?"
        " AND settings IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM sessions WHERE account = accounts.id)"
        " AND NOT EXISTS (SELECT 1 FROM machines WHERE account = accounts.id)"
        " AND NOT EXISTS (SELECT 1 FROM pairs WHERE account = accounts.id)"
        " AND NOT EXISTS (SELECT 1 FROM artifacts WHERE account = accounts.id)"
        " AND NOT EXISTS"
        " (SELECT 1 FROM devices WHERE account = accounts.id AND seen_at >= ?)"
        " ORDER BY created_at LIMIT 1) RETURNING id",
        (admission.unused_before, admission.unused_before),
    ).fetchone()
    if removed is None:
        raise RelayError(403, "this relay takes no more accounts; ask its operator")
    db.execute("INSERT INTO removals (account) VALUES (?)", (removed["id"],))


# ── Invites ─────────────────────────────────────────────────────────────────────────────────────


def create_invite(db: sqlite3.Connection, uses: int, expires_at: int) -> str:
    """Return the code, which is shown only once."""
    code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
    db.execute(
        "INSERT INTO invites (id, hash, uses_left, created_at, expires_at) VALUES (?, ?, ?, ?, ?)",
        (new_id(), hash_code(code), uses, now_ms(), expires_at),
    )
    return "-".join(code[at : at + CODE_GROUP] for at in range(0, CODE_LENGTH, CODE_GROUP))


def list_invites(db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the invites that can still be used."""
    rows = db.execute(
        "SELECT * FROM invites WHERE expires_at > ? AND uses_left > 0 ORDER BY created_at, id",
        (now_ms(),),
    )
    return [
        {
            "id": row["id"],
            "usesLeft": row["uses_left"],
            "used": row["used"],
            "createdAt": row["created_at"],
            "expiresAt": row["expires_at"],
        }
        for row in rows
    ]


def revoke_invite(db: sqlite3.Connection, invite: str) -> bool:
    """Return False if there is no such invite."""
    row = db.execute("DELETE FROM invites WHERE id = ? RETURNING id", (invite,)).fetchone()
    return row is not None


def use_invite(db: sqlite3.Connection, code: str) -> None:
    if not code:
        raise build_registration_error(
            INVITE_NEEDED, "this relay asks new accounts for an invite; get one from who runs it"
        )
    row = db.execute(
        "UPDATE invites SET uses_left = uses_left - 1, used = used + 1"
        " WHERE hash = ? AND uses_left > 0 AND expires_at > ? RETURNING id",
        (hash_code(code), now_ms()),
    ).fetchone()
    if row is None:
        raise build_registration_error(
            INVITE_NEEDED,
            "this invite is wrong, used up or too old; get another one from who runs the relay",
        )


def forget_old_invites(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM invites WHERE expires_at <= ? OR uses_left <= 0", (now_ms(),))


def hash_code(code: str) -> bytes:
    """Dashes, spaces and case do not matter."""
    letters = "".join(letter for letter in code.upper() if letter in ALPHABET)
    return hashlib.sha256(letters.encode()).digest()


def build_registration_error(code: str, text: str) -> RelayError:
    return RelayError(403, text, {"error": text, "code": code})
