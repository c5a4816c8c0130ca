"""Ids in the shape of cuid2: drawn by lot, or derived from what they stand for."""

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
    """The same for the same parts, in this process and any other."""
    named = [replace_surrogates(part) if isinstance(part, str) else part for part in parts]
    return f"c{hashlib.sha256(msgspec.json.encode(named)).hexdigest()[: ID_LENGTH - 1]}"


def is_cuid(given: str) -> bool:
    """Whether every reader of the protocol takes it for an id."""
    return re.search(CUID, given) is not None


def is_own_id(given: str) -> bool:
    """Whether it has the one shape that we give out, which the strictest readers take."""
    return OWN_ID.fullmatch(given) is not None
