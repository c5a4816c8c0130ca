"""Plans the change an operation makes, from the table alone, before anything is written."""

from collections.abc import Iterable

from msgspec.structs import replace

from .authors import get_author
from .crmem import MAX_ID
from .entry import (
    MAX_AUTHOR_NOTES,
    MAX_AUTHORED_NOTES,
    MAX_ENTRIES,
    EntryKind,
    MemoryEntry,
    check_limits,
    quote_name,
)
from .errors import EntryKindError, MemoryLimitError, NameTakenError, UnknownEntryError
from .journal_file import DropEntry, EntryChange, PutEntry
from .operations import AddEntry, MemoryOperation, RemoveEntry, RenameEntry, SetAliases
from .table import EntryTable


def plan_change(operation: MemoryOperation, table: EntryTable, now: int) -> EntryChange:
    """Plan an operation. Raises the error that it is refused with."""
    if isinstance(operation, AddEntry):
        if operation.kind is EntryKind.TOPIC:
            raise EntryKindError("topics are kept but no longer made; add a note instead")
        return plan_addition(
            MemoryEntry(
                0, now, operation.kind, operation.name, operation.content, operation.aliases
            ),
            table,
        )
    entry = find_named(operation.name, table, operation.kind)
    if isinstance(operation, RemoveEntry):
        return DropEntry(entry.id, entry.name)
    if isinstance(operation, RenameEntry):
        refuse_archive(entry, "keeps its name, since conversations refer to it; give it an alias")
        return PutEntry(check_entry(replace(entry, name=operation.new_name), table))
    if isinstance(operation, SetAliases):
        return PutEntry(check_entry(replace(entry, aliases=operation.aliases), table))
    refuse_archive(entry, "is not rewritten; write a note instead")
    aliases = entry.aliases if operation.aliases is None else operation.aliases
    return PutEntry(check_entry(replace(entry, content=operation.content, aliases=aliases), table))


def plan_archive(
    name: str, content: str, created_at: int, table: EntryTable
) -> PutEntry | MemoryEntry:
    """Plan an archive, which compaction writes. Returns the existing one if it is the same.

    After a crash compaction is repeated, so an existing archive of that name is replaced.
    """
    known = table.get(name)
    if known is None or known.name != name or known.kind is not EntryKind.ARCHIVE:
        return plan_addition(MemoryEntry(0, created_at, EntryKind.ARCHIVE, name, content), table)
    if known.content == content:
        return known
    return PutEntry(check_entry(replace(known, content=content, created_at=created_at), table))


def plan_addition(entry: MemoryEntry, table: EntryTable) -> PutEntry:
    if len(table) >= MAX_ENTRIES:
        raise MemoryLimitError(f"this memory has {MAX_ENTRIES} entries; remove some first")
    if table.next_id >= MAX_ID:
        raise MemoryLimitError("this memory has used up its ids; dump it and load it to begin anew")
    if entry.kind is not EntryKind.ARCHIVE and (author := get_author(entry)):
        check_author_quota(author, table)
    return PutEntry(check_entry(replace(entry, id=table.next_id), table))


def check_author_quota(author: str, table: EntryTable) -> None:
    """Keep senders other than the owner from filling the memory, and each from using it all."""
    if table.count_notes(author) >= MAX_AUTHOR_NOTES:
        raise MemoryLimitError(f"you have {MAX_AUTHOR_NOTES} notes here; forget some first")
    if table.authored_notes >= MAX_AUTHORED_NOTES:
        raise MemoryLimitError(
            f"this memory has {MAX_AUTHORED_NOTES} notes that are not its owner's; ask the owner "
            "to remove some"
        )


def renumber_entries(entries: Iterable[MemoryEntry]) -> list[MemoryEntry]:
    """Number entries from 1 on, as the only ones of a memory."""
    numbered = [replace(entry, id=number) for number, entry in enumerate(entries, 1)]
    if len(numbered) > MAX_ENTRIES:
        raise MemoryLimitError(f"there are more than {MAX_ENTRIES} entries; keep fewer")
    taken: set[str] = set()
    for entry in numbered:
        check_limits(entry.name, entry.content, entry.aliases)
        for name in (entry.name, *entry.aliases):
            if name in taken:
                raise NameTakenError(f"{quote_name(name)} is there twice; give one another name")
            taken.add(name)
    return numbered


def find_named(name: str, table: EntryTable, kind: EntryKind | None) -> MemoryEntry:
    entry = table.get(name)
    if entry is None:
        raise UnknownEntryError(
            f"no entry is called {quote_name(name)}; search for it, or add it first"
        )
    if kind is not None and entry.kind is not kind:
        raise EntryKindError(
            f"{quote_name(entry.name)} is {describe_kind(entry.kind)}, not {describe_kind(kind)}, "
            "and stays as it is; use another name"
        )
    return entry


def refuse_archive(entry: MemoryEntry, why: str) -> None:
    if entry.kind is EntryKind.ARCHIVE:
        raise EntryKindError(f"{quote_name(entry.name)} is an archive and {why}")


def check_entry(entry: MemoryEntry, table: EntryTable) -> MemoryEntry:
    """Check limits and names of an entry. New names must not belong to another entry."""
    # An alias that repeats a name is dropped; models repeat themselves.
    aliases = tuple(alias for alias in dict.fromkeys(entry.aliases) if alias != entry.name)
    check_limits(entry.name, entry.content, aliases)
    before = table.find(entry.id)
    old_names = () if before is None else (before.name, *before.aliases)
    for name in (entry.name, *aliases):
        owner = table.find_owner(name, except_id=entry.id)
        if owner is not None and name not in old_names:
            raise NameTakenError(
                f"{quote_name(name)} already leads to {describe_kind(owner.kind)} "
                f"called {quote_name(owner.name)}; update that one or choose another name"
            )
    return replace(entry, aliases=aliases)


def describe_kind(kind: EntryKind) -> str:
    return "an archive" if kind is EntryKind.ARCHIVE else f"a {kind.name.lower()}"
