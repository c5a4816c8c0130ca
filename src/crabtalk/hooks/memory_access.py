"""Memory access: which notes and archives a sender may see, and whose notes it writes.

The owner is one person, whatever sender they use, and the agent's own notes are the owner's. Every
other sender has notes of its own. Names are looked up within a person's notes only, so a name that
another person uses is free, and nobody learns whether it is used.
"""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from crabtalk.memory import (
    AGENT,
    Entry,
    Kind,
    LimitError,
    View,
    author_label,
    author_of,
    qualify_name,
    qualify_names,
    with_author,
    without_author,
)
from crabtalk.policy import Owners
from crabtalk.runtime import DEFAULT_SENDER
from crabtalk.storage import Pair, log_name

if TYPE_CHECKING:
    from crabtalk.memory import Memory

Scope = Literal["author", "agent", "sender"]


class MemoryAccess(Struct, frozen=True):
    """`namespaces` are the authors among whose notes a name is looked up, in this order. New notes
    go to the first."""

    view: View
    namespaces: tuple[str, ...]

    def find(self, memory: "Memory", name: str) -> Entry | None:
        """The entry of that name or alias, as it is stored."""
        for author in self.namespaces:
            try:
                entry = memory.get(qualify_name(author, name))
            except LimitError:  # nobody's note can be called that
                continue
            if entry is not None and self.view.includes(entry):
                return entry
        entry = memory.get(name)
        is_archive = entry is not None and entry.kind is Kind.ARCHIVE
        return entry if is_archive and entry is not None and self.view.includes(entry) else None

    def show(self, entry: Entry) -> Entry:
        """An entry as this person names it. Notes of further authors keep their stored names."""
        return without_author(entry) if author_of(entry) == self.namespaces[0] else entry

    def store(self, entry: Entry) -> Entry:
        """The reverse of `show`. Raises LimitError for a name that is not this person's to give."""
        if self.namespaces[0] == AGENT and author_of(entry):
            stored = entry
        else:
            stored = with_author(entry, self.namespaces[0])
        if not self.view.includes(stored):
            raise LimitError(
                f"{entry.name[:80]!r} is not among the entries of this sender; leave it out"
            )
        return stored


def grant_access(
    scope: Scope, owners: Owners, pair: Pair, *, sees_all_archives: bool
) -> MemoryAccess:
    """What the sender of a pair may see and change of the memory of its agent."""
    agent, sender = pair.agent, pair.sender or DEFAULT_SENDER
    conversations = None if sees_all_archives else (log_name(Pair(agent, sender)),)
    if owners.is_owner(sender):
        # Notes of somebody who was made an owner later are the owner's as well.
        named = sorted(owners.named | ({owners.account} if owners.account else set()))
        namespaces = (AGENT, *map(author_label, named))
    else:
        namespaces = (author_label(sender),)
    if scope == "author":
        return MemoryAccess(View(namespaces, conversations), namespaces)
    # All notes are for everybody who gets to see this memory.
    shared = (AGENT, *(author for author in namespaces if author != AGENT))
    return MemoryAccess(View(None, conversations), shared)


def write_note(
    memory: "Memory",
    access: MemoryAccess,
    name: str,
    content: str,
    aliases: tuple[str, ...] | None,
) -> None:
    """Adds a note, or replaces the content of the person's own note of that name. Blocks. Raises
    StoreError."""
    from crabtalk.memory import Add, Update  # late, as the store itself

    known = access.find(memory, name)
    author = access.namespaces[0] if known is None else author_of(known)
    stored_aliases = None if aliases is None else qualify_names(author, aliases)
    if known is None:
        memory.apply(Add(qualify_name(author, name), content, stored_aliases or ()))
    else:
        memory.apply(Update(known.name, content, stored_aliases, kind=Kind.NOTE))


def forget_note(memory: "Memory", access: MemoryAccess, name: str) -> bool:
    """Removes the person's own note. False if there is none, whatever others have. Blocks. Raises
    StoreError."""
    from crabtalk.memory import Remove

    known = access.find(memory, name)
    if known is None:
        return False
    memory.apply(Remove(known.name, kind=Kind.NOTE))
    return True
