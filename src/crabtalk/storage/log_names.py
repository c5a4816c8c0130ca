"""Names of conversation logs: readable, and different for different pairs."""

import hashlib
import re

from .records import Pair

# Characters of each half of the readable part. At four bytes each, the name stays below the 255
# bytes that a file name may have.
SLUG_LENGTH = 24
NAME_BYTES = 240  # 255 without the longest suffix
HANDLE = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


def make_slug(text: str) -> str:
    """`tg:12345` becomes `tg-12345`: letters, digits, and single dashes between them."""
    dashed = "".join(c if c.isalnum() else "-" for c in text)
    ascii_lower = "".join(c.lower() if c.isascii() else c for c in dashed)
    return re.sub("-+", "-", ascii_lower).strip("-")


def make_log_name(pair: Pair, attempt: int = 1) -> str:
    """The readable part is for people; the hash of the exact pair makes the name unique.

    `attempt` increases when a log of this name belongs to another pair after all.
    """
    exact = f"{len(pair.agent)}:{pair.agent}{pair.sender}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(exact, digest_size=5).hexdigest()
    # A sender may be long; people read only its beginning.
    slugs = [make_slug(text[: 4 * SLUG_LENGTH]) for text in pair]
    parts = [slug[:SLUG_LENGTH].strip("-") for slug in slugs]
    name = "-".join([part for part in parts if part] + [digest])
    return name if attempt == 1 else f"{name}-{attempt}"


def is_handle(text: str) -> bool:
    """Whether `text` could be the name of a log. Such a text never leads to another directory."""
    if len(text) > NAME_BYTES or HANDLE.fullmatch(text) is None:
        return False
    return len(text.encode()) <= NAME_BYTES
