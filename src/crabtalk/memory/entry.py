"""MemoryEntry: one note, archive or topic of a memory, and its size limits."""

from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

from .errors import MemoryLimitError

MAX_NAME = 1024
MAX_CONTENT = 1024 * 1024
MAX_ALIASES = 64
MAX_ENTRIES = 100_000
# Notes of one author other than the agent, and of all of them: the rest is reserved for the owner.
MAX_AUTHOR_NOTES = 1_000
MAX_AUTHORED_NOTES = 50_000
# Begins the stored name of a note that has an author, and ends the author's part: see `authors`.
AUTHOR_MARK = "\x1e"


class EntryKind(IntEnum):
    """A note is written on purpose, an archive by compaction.

    Topics that other programs wrote are kept, but never created here.
    """

    NOTE = 0
    ARCHIVE = 1
    TOPIC = 2


class MemoryEntry(Struct, frozen=True, array_like=True, gc=False):
    """`created_at` is in seconds since 1970. `name` and every alias identify the entry."""

    id: int
    created_at: int
    kind: EntryKind
    name: str
    content: str
    aliases: tuple[str, ...] = ()


def check_limits(name: str, content: str, aliases: Iterable[str]) -> None:
    """Raises MemoryLimitError for an entry over a limit."""
    if count_bytes(content) > MAX_CONTENT:
        raise MemoryLimitError(
            f"the content of {quote_name(name)} is larger than {MAX_CONTENT} bytes; "
            "keep less of it, or split it"
        )
    names = [name, *aliases]
    if len(names) > MAX_ALIASES + 1:
        raise MemoryLimitError(
            f"{quote_name(name)} has more than {MAX_ALIASES} aliases; keep the best"
        )
    for entry_name in names:
        if not strip_author_prefix(entry_name).strip():
            raise MemoryLimitError(
                "a name or an alias is empty; give one that says what it is about"
            )
        if count_bytes(entry_name) > MAX_NAME:
            raise MemoryLimitError(
                f"the name {quote_name(entry_name)} is longer than {MAX_NAME} bytes; shorten it"
            )


def count_bytes(text: str) -> int:
    """The size of a text in the file."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise MemoryLimitError(
            f"{quote_name(text)} has half of a character in it; send it as valid UTF-8"
        ) from None


def quote_name(name: str) -> str:
    """Quote a name for a sentence, cut to a bounded length."""
    name = strip_author_prefix(name)
    return ascii(name[:60] + "…") if len(name) > 60 else repr(name)


def strip_author_prefix(name: str) -> str:
    """Return a name or alias as its author gave it, without the author."""
    if not name.startswith(AUTHOR_MARK):
        return name
    _, mark, rest = name[1:].partition(AUTHOR_MARK)
    return rest if mark else name
