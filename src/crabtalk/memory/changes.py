"""What an op changes: decided from the table alone, before anything is written or changed."""

from collections.abc import Iterable

from msgspec.structs import replace

from .authors import author_of
from .crmem import MAX_ID
from .entry import (
    MAX_AUTHOR_NOTES,
    MAX_AUTHORED_NOTES,
    MAX_ENTRIES,
    Entry,
    Kind,
    check,
    shown,
)
from .errors import KindError, LimitError, NameTakenError, UnknownEntryError
from .journal import Change, Drop, Put
from .ops import Add, Alias, Op, Remove, Rename
from .table import Table


def change_of(op: Op, table: Table, now: int) -> Change:
    """Raises what the op is refused with."""
    if isinstance(op, Add):
        if op.kind is Kind.TOPIC:
            raise KindError("topics are kept but no longer made; add a note instead")
        return added(Entry(0, now, op.kind, op.name, op.content, op.aliases), table)
    entry = named(op.name, table, op.kind)
    if isinstance(op, Remove):
        return Drop(entry.id, entry.name)
    if isinstance(op, Rename):
        refuse_archive(entry, "keeps its name, since conversations refer to it; give it an alias")
        return Put(checked(replace(entry, name=op.new_name), table))
    if isinstance(op, Alias):
        return Put(checked(replace(entry, aliases=op.aliases), table))
    refuse_archive(entry, "is not rewritten; write a note instead")
    aliases = entry.aliases if op.aliases is None else op.aliases
    return Put(checked(replace(entry, content=op.content, aliases=aliases), table))


def archived(name: str, content: str, created_at: int, table: Table) -> Put | Entry:
    """Archives come from compaction, and one that a crash cut short is repeated: the archive of
    that name is replaced then. One that is there already, as it should be, is returned."""
    known = table.get(name)
    if known is None or known.name != name or known.kind is not Kind.ARCHIVE:
        return added(Entry(0, created_at, Kind.ARCHIVE, name, content), table)
    if known.content == content:
        return known
    return Put(checked(replace(known, content=content, created_at=created_at), table))


def added(entry: Entry, table: Table) -> Put:
    if len(table) >= MAX_ENTRIES:
        raise LimitError(f"this memory has {MAX_ENTRIES} entries; remove some first")
    if table.next_id >= MAX_ID:
        raise LimitError("this memory has used up its ids; dump it and load it to begin anew")
    if entry.kind is not Kind.ARCHIVE and (author := author_of(entry)):
        check_room(author, table)
    return Put(checked(replace(entry, id=table.next_id), table))


def check_room(author: str, table: Table) -> None:
    """Others than the owner never fill the memory, and none of them the part that they share."""
    if table.count_notes(author) >= MAX_AUTHOR_NOTES:
        raise LimitError(f"you have {MAX_AUTHOR_NOTES} notes here; forget some first")
    if table.authored >= MAX_AUTHORED_NOTES:
        raise LimitError(
            f"this memory has {MAX_AUTHORED_NOTES} notes that are not its owner's; ask the owner "
            "to remove some"
        )


def renumbered(entries: Iterable[Entry]) -> list[Entry]:
    """Entries as the only ones of a memory, their ids from 1 on."""
    fresh = [replace(entry, id=number) for number, entry in enumerate(entries, 1)]
    if len(fresh) > MAX_ENTRIES:
        raise LimitError(f"there are more than {MAX_ENTRIES} entries; keep fewer")
    taken: set[str] = set()
    for entry in fresh:
        check(entry.name, entry.content, entry.aliases)
        for name in (entry.name, *entry.aliases):
            if name in taken:
                raise NameTakenError(f"{shown(name)} is there twice; give one another name")
            taken.add(name)
    return fresh


def named(name: str, table: Table, kind: Kind | None) -> Entry:
    entry = table.get(name)
    if entry is None:
        raise UnknownEntryError(f"no entry is called {shown(name)}; search for it, or add it first")
    if kind is not None and entry.kind is not kind:
        raise KindError(
            f"{shown(entry.name)} is {phrase(entry.kind)}, not {phrase(kind)}, and stays as it is; "
            "use another name"
        )
    return entry


def refuse_archive(entry: Entry, why: str) -> None:
    if entry.kind is Kind.ARCHIVE:
        raise KindError(f"{shown(entry.name)} is an archive and {why}")


def checked(entry: Entry, table: Table) -> Entry:
    """The entry, when it may be: within bounds, and called nothing new that another is called."""
    # An alias that says nothing new is dropped; models repeat themselves.
    aliases = tuple(alias for alias in dict.fromkeys(entry.aliases) if alias != entry.name)
    check(entry.name, entry.content, aliases)
    before = table.find(entry.id)
    had = () if before is None else (before.name, *before.aliases)
    for name in (entry.name, *aliases):
        owner = table.owner(name, but=entry.id)
        if owner is not None and name not in had:
            raise NameTakenError(
                f"{shown(name)} already leads to {phrase(owner.kind)} called {shown(owner.name)}; "
                "update that one or choose another name"
            )
    return replace(entry, aliases=aliases)


def phrase(kind: Kind) -> str:
    return "an archive" if kind is Kind.ARCHIVE else f"a {kind.name.lower()}"
