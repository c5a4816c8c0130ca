"""Pairings: requests of machines and devices to be let into an account.

A request lives five minutes and is answered once. Its token is made when it is fetched; a client
that asks for it gets it in a box that only it can open, and may then fetch it again until the
request expires. In clear it is handed out once, for whoever has seen the QR code could fetch it.
"""

import sqlite3
from dataclasses import dataclass

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from .accounts import add_device
from .errors import RelayError
from .ids import now_ms


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request has come to. No token: it still waits."""

    token: str = ""
    sealed_token: bytes = b""
    response: bytes = b""


def ask(
    db: sqlite3.Connection,
    kind: str,
    public_key: bytes,
    client: str,
    *,
    supports_v2: bool,
    sealed: bool,
    most: int,
    lifetime: float,
) -> Asked:
    now = now_ms()
    forget_old(db, now - round(lifetime * 1000))
    row = find(db, kind, public_key)
    if row is None:
        if db.execute("SELECT count(*) FROM pairings").fetchone()[0] >= most:
            raise RelayError(503, "too many pairings are under way; try again in a few minutes")
        db.execute(
            "INSERT INTO pairings (kind, public_key, supports_v2, sealed, created_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (kind, public_key, supports_v2, sealed, now),
        )
        return Asked()
    if row["response"] is None:
        return Asked()
    return fetch(db, row, client)


def fetch(db: sqlite3.Connection, row: sqlite3.Row, client: str) -> Asked:
    response = bytes(row["response"])
    if row["sealed_token"] is not None:
        return Asked(sealed_token=bytes(row["sealed_token"]), response=response)
    if row["taken"]:
        raise RelayError(
            410, "this pairing was fetched before; if not by you, revoke its device and pair again"
        )
    token = add_device(db, row["account"], row["kind"], client)
    key = (row["kind"], row["public_key"])
    if not row["sealed"]:
        db.execute("UPDATE pairings SET taken = 1 WHERE kind = ? AND public_key = ?", key)
        return Asked(token=token, response=response)
    sealed = sealed_for(bytes(row["public_key"]), token)
    db.execute(
        "UPDATE pairings SET sealed_token = ? WHERE kind = ? AND public_key = ?", (sealed, *key)
    )
    return Asked(sealed_token=sealed, response=response)


def status(
    db: sqlite3.Connection, kind: str, public_key: bytes, lifetime: float
) -> tuple[str, bool]:
    row = find(db, kind, public_key)
    if row is None or row["created_at"] < now_ms() - round(lifetime * 1000):
        return "not_found", False
    return "pending" if row["response"] is None else "authorized", bool(row["supports_v2"])


def answer(
    db: sqlite3.Connection,
    kind: str,
    public_key: bytes,
    account: str,
    response: bytes,
    lifetime: float,
) -> bool:
    """False when there is no such request. The first answer counts."""
    oldest = now_ms() - round(lifetime * 1000)
    forget_old(db, oldest)
    db.execute(
        "UPDATE pairings SET account = ?, response = ?"
        " WHERE kind = ? AND public_key = ? AND response IS NULL",
        (account, response, kind, public_key),
    )
    return find(db, kind, public_key) is not None


def find(db: sqlite3.Connection, kind: str, public_key: bytes) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM pairings WHERE kind = ? AND public_key = ?", (kind, public_key)
    ).fetchone()
    return row


def forget_old(db: sqlite3.Connection, before: int) -> None:
    db.execute("DELETE FROM pairings WHERE created_at < ?", (before,))


def sealed_for(public_key: bytes, token: str) -> bytes:
    once = PrivateKey.generate()
    try:
        box = Box(once, PublicKey(public_key))
    except CryptoError:
        raise RelayError(401, "Invalid public key") from None
    return bytes(once.public_key) + bytes(box.encrypt(token.encode()))
