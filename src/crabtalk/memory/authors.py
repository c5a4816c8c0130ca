"""Authors: who wrote a note, as part of its name, and which entries a person may see.

CRMEM has no field for an author, but any text is a valid name. The stored name of a note by the
sender `tg:7` is U+001E, `tg:7`, U+001E and the note's name; its aliases are stored the same way. A
note without such a prefix is the agent's own: written while its owner spoke, or before authors
existed.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from .entry import AUTHOR_MARK, EntryKind, MemoryEntry, strip_author_prefix
from .errors import MemoryLimitError

# The author of the agent's own notes.
AGENT_AUTHOR = ""
# Bytes of a sender that names may contain. A longer sender is cut and gets a hash of the whole.
MAX_LABEL_BYTES = 256


class MemoryView(Struct, frozen=True):
    """The part of a memory a person may see: notes of authors, archives of conversations.

    None stands for all of them.
    """

    authors: tuple[str, ...] | None = None
    conversations: tuple[str, ...] | None = None

    def includes(self, entry: MemoryEntry) -> bool:
        return self.build_label_filter()(get_label(entry))

    def find_labels(self) -> frozenset[str] | None:
        """The labels of all entries in the view; None when they cannot be listed."""
        if self.authors is None or self.conversations is None:
            return None
        archives = (AUTHOR_MARK + conversation for conversation in self.conversations)
        return frozenset((*self.authors, *archives))

    def build_label_filter(self) -> Callable[[str], bool]:
        """Build a function that says whether entries with a label are in the view."""
        if (labels := self.find_labels()) is not None:
            return labels.__contains__
        authors = None if self.authors is None else frozenset(self.authors)
        archives = (
            None
            if self.conversations is None
            else frozenset(AUTHOR_MARK + conversation for conversation in self.conversations)
        )

        def includes(label: str) -> bool:
            allowed = archives if label[:1] == AUTHOR_MARK else authors
            return allowed is None or label in allowed

        return includes


ALL_ENTRIES = MemoryView()


def encode_author(sender: str) -> str:
    """Encode a sender for use in names.

    The result is reversible unless the sender is very long, empty only for an empty sender, and
    different for different senders.
    """
    label = sender.replace("%", "%25").replace(AUTHOR_MARK, "%1E")
    data = label.encode(errors="surrogatepass")
    if len(data) <= MAX_LABEL_BYTES:
        return label
    # No encoded sender contains %# otherwise, so a cut one never equals another.
    start = data[: MAX_LABEL_BYTES - 64].decode(errors="ignore")
    return f"{start}%#{blake2b(data, digest_size=16).hexdigest()}"


def qualify_name(author: str, name: str) -> str:
    """Return the stored name of an author's note.

    Raises MemoryLimitError for a name that would belong to another author.
    """
    if author:
        return f"{AUTHOR_MARK}{author}{AUTHOR_MARK}{name}"
    if name.startswith(AUTHOR_MARK):
        raise MemoryLimitError(
            "a name or an alias begins with the control character U+001E; leave it out"
        )
    return name


def qualify_names(author: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(qualify_name(author, name) for name in names)


def get_author(entry: MemoryEntry) -> str:
    """The encoded author of an entry."""
    if not entry.name.startswith(AUTHOR_MARK):
        return AGENT_AUTHOR
    author, mark, _ = entry.name[1:].partition(AUTHOR_MARK)
    return author if mark else AGENT_AUTHOR


def get_label(entry: MemoryEntry) -> str:
    """The label that decides who may see an entry: its author, or an archive's conversation.

    An archive's name is its conversation and a number.
    """
    if entry.kind is EntryKind.ARCHIVE:
        return AUTHOR_MARK + entry.name.rpartition("-")[0]
    return get_author(entry)


def strip_author(entry: MemoryEntry) -> MemoryEntry:
    """Return the entry with the names its author gave it."""
    if not get_author(entry):
        return entry
    aliases = tuple(map(strip_author_prefix, entry.aliases))
    return replace(entry, name=strip_author_prefix(entry.name), aliases=aliases)


def add_author(entry: MemoryEntry, author: str) -> MemoryEntry:
    """Return the entry as it is stored. Archives belong to a conversation, not to an author."""
    if entry.kind is EntryKind.ARCHIVE:
        return entry
    name, aliases = qualify_name(author, entry.name), qualify_names(author, entry.aliases)
    return replace(entry, name=name, aliases=aliases)
