"""Ids, tokens and the current time.

Ids grant no access, so they use ordinary randomness; tokens use the secure source.
"""

import hashlib
import itertools
import random
import secrets
import string
import time

BASE36_DIGITS = string.digits + string.ascii_lowercase
LETTERS = string.ascii_letters + string.digits
TOKEN_BYTES = 32

_counter = itertools.count(secrets.randbelow(36**4))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    """Return 25 characters beginning with c. Later ids sort later, which keeps indexes small."""
    rest = to_base36(random.getrandbits(64), 12)
    return f"c{to_base36(now_ms(), 8)}{to_base36(next(_counter), 4)}{rest}"


def new_update_id() -> str:
    number = random.getrandbits(72)
    return "".join(LETTERS[(number >> 6 * at) % 62] for at in range(12))


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> bytes:
    """Only this hash is stored, so that a copy of the database does not reveal tokens."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def to_base36(number: int, width: int) -> str:
    letters = []
    for _ in range(width):
        number, digit = divmod(number, 36)
        letters.append(BASE36_DIGITS[digit])
    return "".join(reversed(letters))
