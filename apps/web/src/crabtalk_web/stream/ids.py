"""Ids in the shape of cuid2: random, or derived from their parts."""

import hashlib
import re
import secrets
import string

import msgspec

from .envelope import CUID
from .json_values import replace_surrogates

ID_LENGTH = 24
OWN_ID = re.compile(r"[a-z][0-9a-z]{23}")
ALPHABET = string.digits + string.ascii_lowercase


def new_id() -> str:
    rest = (secrets.choice(ALPHABET) for _ in range(ID_LENGTH - 1))
    return secrets.choice(string.ascii_lowercase) + "".join(rest)


def derive_id(*parts: str | int) -> str:
    """Return the same id for the same parts, in any process."""
    clean_parts = [replace_surrogates(part) if isinstance(part, str) else part for part in parts]
    return f"c{hashlib.sha256(msgspec.json.encode(clean_parts)).hexdigest()[: ID_LENGTH - 1]}"


def is_cuid(value: str) -> bool:
    """Return whether every reader of the protocol accepts it as an id."""
    return re.search(CUID, value) is not None


def is_own_id(value: str) -> bool:
    """Return whether it has the shape of our own ids, which the strictest readers accept."""
    return OWN_ID.fullmatch(value) is not None
