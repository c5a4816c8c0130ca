"""Pairings: requests of machines and devices to be let into an account.

A request lives for five minutes and is answered once. Its token is created when it is fetched. A
client that asks for it gets the token in a box that only the client can open, and may fetch it
again until the request expires. An unsealed token is handed out once, because anyone who has seen
the QR code could fetch it.
"""

import sqlite3
from dataclasses import dataclass

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from .accounts import add_device
from .errors import RelayError
from .ids import now_ms


@dataclass(frozen=True, slots=True)
class PairingState:
    """The state of a request. Without a token it is still pending."""

    token: str = ""
    sealed_token: bytes = b""
    response: bytes = b""


def request_pairing(
    db: sqlite3.Connection,
    kind: str,
    public_key: bytes,
    client: str,
    *,
    supports_v2: bool,
    sealed: bool,
    most: int,
    lifetime: float,
) -> PairingState:
    now = now_ms()
    delete_old_pairings(db, now - round(lifetime * 1000))
    row = find_pairing(db, kind, public_key)
    if row is None:
        if db.execute("SELECT count(*) FROM pairings").fetchone()[0] >= most:
            raise RelayError(503, "too many pairings are under way; try again in a few minutes")
        db.execute(
            "INSERT INTO pairings (kind, public_key, supports_v2, sealed, created_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (kind, public_key, supports_v2, sealed, now),
        )
        return PairingState()
    if row["response"] is None:
        return PairingState()
    return fetch_token(db, row, client)


def fetch_token(db: sqlite3.Connection, row: sqlite3.Row, client: str) -> PairingState:
    response = bytes(row["response"])
    if row["sealed_token"] is not None:
        return PairingState(sealed_token=bytes(row["sealed_token"]), response=response)
    if row["taken"]:
        raise RelayError(
            410, "this pairing was fetched before; if not by you, revoke its device and pair again"
        )
    token = add_device(db, row["account"], row["kind"], client)
    key = (row["kind"], row["public_key"])
    if not row["sealed"]:
        db.execute("UPDATE pairings SET taken = 1 WHERE kind = ? AND public_key = ?", key)
        return PairingState(token=token, response=response)
    sealed = seal_token(bytes(row["public_key"]), token)
    db.execute(
        "UPDATE pairings SET sealed_token = ? WHERE kind = ? AND public_key = ?", (sealed, *key)
    )
    return PairingState(sealed_token=sealed, response=response)


def get_pairing_status(
    db: sqlite3.Connection, kind: str, public_key: bytes, lifetime: float
) -> tuple[str, bool]:
    row = find_pairing(db, kind, public_key)
    if row is None or row["created_at"] < now_ms() - round(lifetime * 1000):
        return "not_found", False
    return "pending" if row["response"] is None else "authorized", bool(row["supports_v2"])


def answer_pairing(
    db: sqlite3.Connection,
    kind: str,
    public_key: bytes,
    account: str,
    response: bytes,
    lifetime: float,
) -> bool:
    """Return False if there is no such request. The first answer counts."""
    oldest = now_ms() - round(lifetime * 1000)
    delete_old_pairings(db, oldest)
    db.execute(
        "UPDATE pairings SET account = ?, response = ?"
        " WHERE kind = ? AND public_key = ? AND response IS NULL",
        (account, response, kind, public_key),
    )
    return find_pairing(db, kind, public_key) is not None


def find_pairing(db: sqlite3.Connection, kind: str, public_key: bytes) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM pairings WHERE kind = ? AND public_key = ?", (kind, public_key)
    ).fetchone()
    return row


def delete_old_pairings(db: sqlite3.Connection, before: int) -> None:
    db.execute("DELETE FROM pairings WHERE created_at < ?", (before,))


def seal_token(public_key: bytes, token: str) -> bytes:
    ephemeral_key = PrivateKey.generate()
    try:
        box = Box(ephemeral_key, PublicKey(public_key))
    except CryptoError:
        raise RelayError(401, "Invalid public key") from None
    return bytes(ephemeral_key.public_key) + bytes(box.encrypt(token.encode()))
