"""The backup text: the master secret in a form that a person can write down and read back.

It is Base32 in groups of five. The digits that Base32 lacks are those people confuse with letters,
so they are read as the letters they look like.
"""

import base64
import binascii

from .keys import KEY_SIZE

GROUP_SIZE = 5
LOOKS_LIKE = str.maketrans("0189", "OIBG")
ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")


def to_backup_text(secret: bytes) -> str:
    text = base64.b32encode(secret).decode().rstrip("=")
    return "-".join(text[at : at + GROUP_SIZE] for at in range(0, len(text), GROUP_SIZE))


def from_backup_text(text: str) -> bytes | None:
    """Return None if it cannot be a secret because characters are missing or left over."""
    letters = "".join(letter for letter in text.upper().translate(LOOKS_LIKE) if letter in ALPHABET)
    try:
        secret = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except binascii.Error:
        return None
    return secret if len(secret) == KEY_SIZE else None
