"""What a conversation's log is called: readable, and different for different pairs."""

import hashlib
import re

from .records import Pair

# Of each half of the readable part, in characters. Four bytes each at worst, which with the rest
# stays below the 255 bytes a file name may have.
SLUG_LENGTH = 24
NAME_BYTES = 240  # what the longest suffix leaves of them
HANDLE = re.compile(r"[^\W_]+(?:-[^\W_]+)*")


def make_slug(text: str) -> str:
    """`tg:12345` becomes `tg-12345`: letters, digits, and single dashes for all between them."""
    kept = "".join(c if c.isalnum() else "-" for c in text)
    ascii_lower = "".join(c.lower() if c.isascii() else c for c in kept)
    return re.sub("-+", "-", ascii_lower).strip("-")


def make_log_name(pair: Pair, attempt: int = 1) -> str:
    """The readable part is for people; the hash is of the exact pair, so it tells all apart.

    `attempt` counts up past a log that bears this name and belongs to another pair after all.
    """
    exact = f"{len(pair.agent)}:{pair.agent}{pair.sender}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(exact, digest_size=5).hexdigest()
    # A sender may be long; only its beginning is read by people.
    slugs = [make_slug(text[: 4 * SLUG_LENGTH]) for text in pair]
    parts = [readable[:SLUG_LENGTH].strip("-") for readable in slugs]
    name = "-".join([part for part in parts if part] + [digest])
    return name if attempt == 1 else f"{name}-{attempt}"


def is_handle(text: str) -> bool:
    """Whether `text` could be a name of ours. What is not can be no path either."""
    if len(text) > NAME_BYTES or HANDLE.fullmatch(text) is None:
        return False
    return len(text.encode()) <= NAME_BYTES
