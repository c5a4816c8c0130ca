"""MemoryAccess: which notes and archives a sender may see, and whose notes it writes.

The owner is one person, whichever sender they use, and the agent's own notes belong to the owner.
Every other sender has its own notes. Names are looked up only among one person's notes: two people
can use the same name, and neither learns that the other does.
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
    """`namespaces` are the authors whose notes are searched for a name, in this order. New notes
    belong to the first."""

    view: MemoryView
    namespaces: tuple[str, ...]

    def find(self, memory: "Memory", name: str) -> MemoryEntry | None:
        """Return the stored entry of that name or alias."""
        for author in self.namespaces:
            try:
                entry = memory.get(qualify_name(author, name))
            except MemoryLimitError:  # too long to be the name of a note
                continue
            if entry is not None and self.view.includes(entry):
                return entry
        entry = memory.get(name)
        is_archive = entry is not None and entry.kind is EntryKind.ARCHIVE
        return entry if is_archive and entry is not None and self.view.includes(entry) else None

    def to_visible(self, entry: MemoryEntry) -> MemoryEntry:
        """Return an entry under this person's name for it. Notes of other authors keep their stored
        names."""
        return strip_author(entry) if get_author(entry) == self.namespaces[0] else entry

    def to_stored(self, entry: MemoryEntry) -> MemoryEntry:
        """The reverse of to_visible. Raises MemoryLimitError for a name outside this person's
        view."""
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
    """Return what the sender of a pair may see and change in the memory of its agent."""
    agent, sender = pair.agent, pair.sender or DEFAULT_SENDER
    conversations = None if sees_all_archives else (make_log_name(Pair(agent, sender)),)
    if owners.is_owner(sender):
        # A sender that became an owner later may have notes under its own name.
        named = sorted(owners.named | ({owners.account} if owners.account else set()))
        namespaces = (AGENT_AUTHOR, *map(encode_author, named))
    else:
        namespaces = (encode_author(sender),)
    if scope == "author":
        return MemoryAccess(MemoryView(namespaces, conversations), namespaces)
    # All senders who can use this memory share all notes.
    shared = (AGENT_AUTHOR, *(author for author in namespaces if author != AGENT_AUTHOR))
    return MemoryAccess(MemoryView(None, conversations), shared)


def write_note(
    memory: "Memory",
    access: MemoryAccess,
    name: str,
    content: str,
    aliases: tuple[str, ...] | None,
) -> None:
    """Add a note, or replace the content of the person's own note of that name. Blocks. Raises
    MemoryStoreError."""
    from crabtalk.memory import AddEntry, UpdateEntry  # late, as the store itself

    known = access.find(memory, name)
    author = access.namespaces[0] if known is None else get_author(known)
    stored_aliases = None if aliases is None else qualify_names(author, aliases)
    if known is None:
        memory.apply(AddEntry(qualify_name(author, name), content, stored_aliases or ()))
    else:
        memory.apply(UpdateEntry(known.name, content, stored_aliases, kind=EntryKind.NOTE))


def forget_note(memory: "Memory", access: MemoryAccess, name: str) -> bool:
    """Remove the person's own note. Returns False if there is none, even if another person has a
    note of that name. Blocks. Raises MemoryStoreError."""
    from crabtalk.memory import RemoveEntry

    known = access.find(memory, name)
    if known is None:
        return False
    memory.apply(RemoveEntry(known.name, kind=EntryKind.NOTE))
    return True
