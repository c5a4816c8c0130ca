"""Memory access: which notes and archives a sender may see, and whose notes it writes.

The owner is one person, whatever sender they use, and the agent's own notes are the owner's. Every
other sender has notes of its own. Names are looked up within a person's notes only, so a name that
another person uses is free, and nobody learns whether it is used.
"""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crabtalk.memory import (
    AGENT_AUTHOR,
    EntryKind,
    MemoryEntry,
    MemoryLimitError,
    MemoryView,
    add_author,
    encode_author,
    get_author,
    qualify_name,
    qualify_names,
    strip_author,
)
from crabtalk.policy import Owners
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair, make_log_name

if TYPE_CHECKING:
    from crabtalk.memory import Memory

MemoryScope = Literal["author", "agent", "sender"]


class MemoryAccess(Struct, frozen=True):
    """`namespaces` are the authors among whose notes a name is looked up, in this order. New notes
    go to the first."""

    view: MemoryView
    namespaces: tuple[str, ...]

    def find(self, memory: "Memory", name: str) -> MemoryEntry | None:
        """The entry of that name or alias, as it is stored."""
        for author in self.namespaces:
            try:
                entry = memory.get(qualify_name(author, name))
            except MemoryLimitError:  # nobody's note can be called that
                continue
            if entry is not None and self.view.includes(entry):
                return entry
        entry = memory.get(name)
        is_archive = entry is not None and entry.kind is EntryKind.ARCHIVE
        return entry if is_archive and entry is not None and self.view.includes(entry) else None

    def to_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """An entry as this person names it. Notes of further authors keep their stored names."""
        return strip_author(entry) if get_author(entry) == self.namespaces[0] else entry

    def to_stored(self, entry: MemoryEntry) -> MemoryEntry:
        """The reverse of `show`. Raises LimitError for a name that is not this person's to give."""
        if self.namespaces[0] == AGENT_AUTHOR and get_author(entry):
            stored = entry
        else:
            stored = add_author(entry, self.namespaces[0])
        if not self.view.includes(stored):
            raise MemoryLimitError(
                f"{entry.name[:80]!r} is not among the entries of this sender; leave it out"
            )
        return stored


def grant_access(
    scope: MemoryScope, owners: Owners, pair: Pair, *, sees_all_archives: bool
) -> MemoryAccess:
    """What the sender of a pair may see and change of the memory of its agent."""
    agent, sender = pair.agent, pair.sender or DEFAULT_SENDER
    conversations = None if sees_all_archives else (make_log_name(Pair(agent, sender)),)
    if owners.is_owner(sender):
        # Notes of somebody who was made an owner later are the owner's as well.
        named = sorted(owners.named | ({owners.account} if owners.account else set()))
        namespaces = (AGENT_AUTHOR, *map(encode_author, named))
    else:
        namespaces = (encode_author(sender),)
    if scope == "author":
        return MemoryAccess(MemoryView(namespaces, conversations), namespaces)
    # All notes are for everybody who gets to see this memory.
    shared = (AGENT_AUTHOR, *(author for author in namespaces if author != AGENT_AUTHOR))
    return MemoryAccess(MemoryView(None, conversations), shared)


def write_note(
    memory: "Memory",
    access: MemoryAccess,
    name: str,
    content: str,
    aliases: tuple[str, ...] | None,
) -> None:
    """Adds a note, or replaces the content of the person's own note of that name. Blocks. Raises
    StoreError."""
    from crabtalk.memory import AddEntry, UpdateEntry  # late, as the store itself

    known = access.find(memory, name)
    author = access.namespaces[0] if known is None else get_author(known)
    stored_aliases = None if aliases is None else qualify_names(author, aliases)
    if known is None:
        memory.apply(AddEntry(qualify_name(author, name), content, stored_aliases or ()))
    else:
        memory.apply(UpdateEntry(known.name, content, stored_aliases, kind=EntryKind.NOTE))


def forget_note(memory: "Memory", access: MemoryAccess, name: str) -> bool:
    """Removes the person's own note. False if there is none, whatever others have. Blocks. Raises
    StoreError."""
    from crabtalk.memory import RemoveEntry

    known = access.find(memory, name)
    if known is None:
        return False
    memory.apply(RemoveEntry(known.name, kind=EntryKind.NOTE))
    return True
