"""What an op changes: decided from the table alone, before anything is written or changed."""

from collections.abc import Iterable

from msgspec.structs import replace

from .crmem import MAX_ID
from .entry import MAX_ENTRIES, Entry, Kind, check, shown
from .errors import KindError, LimitError, NameTakenError, UnknownEntryError
from .journal import Change, Drop, Put
from .ops import Add, Alias, Op, Remove, Rename
from .table import Table


def change_of(op: Op, table: Table, now: int) -> Change:
    """Raises what the op is refused with."""
    if isinstance(op, Add):
        if op.kind is Kind.TOPIC:
            raise KindError("topics are kept but no longer made; add a note instead")
        return added(op.name, op.content, op.aliases, op.kind, table, now)
    entry = named(op.name, table, op.kind)
    if isinstance(op, Remove):
        return Drop(entry.id, entry.name)
    name, content, aliases = entry.name, entry.content, entry.aliases
    if isinstance(op, Rename):
        refuse_archive(entry, "keeps its name, since conversations refer to it; give it an alias")
        name = op.new_name
    elif isinstance(op, Alias):
        aliases = op.aliases
    else:
        refuse_archive(entry, "is not rewritten; write a note instead")
        content = op.content
        aliases = entry.aliases if op.aliases is None else op.aliases
    return Put(whole(entry.id, entry.created_at, entry.kind, name, content, aliases, table))


def added(
    name: str, content: str, aliases: tuple[str, ...], kind: Kind, table: Table, created_at: int
) -> Put:
    if len(table) >= MAX_ENTRIES:
        raise LimitError(f"this memory has {MAX_ENTRIES} entries; remove some first")
    if table.next_id >= MAX_ID:
        raise LimitError("this memory has used up its ids; dump it and load it to begin anew")
    return Put(whole(table.next_id, created_at, kind, name, content, aliases, table))


def archived(name: str, content: str, created_at: int, table: Table) -> Put | Entry:
    """Archives come from compaction, and one that a crash cut short is repeated: the archive of
    that name is replaced then. One that is there already, as it should be, is returned."""
    known = table.get(name)
    if known is None or known.name != name or known.kind is not Kind.ARCHIVE:
        return added(name, content, (), Kind.ARCHIVE, table, created_at)
    if known.content == content:
        return known
    return Put(whole(known.id, created_at, known.kind, name, content, known.aliases, table))


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


def whole(
    number: int,
    created_at: int,
    kind: Kind,
    name: str,
    content: str,
    aliases: tuple[str, ...],
    table: Table,
) -> Entry:
    """The entry, when it may be: within bounds, and called what nobody else is called."""
    # An alias that says nothing new is dropped; models repeat themselves.
    aliases = tuple(alias for alias in dict.fromkeys(aliases) if alias != name)
    check(name, content, aliases)
    for each in (name, *aliases):
        owner = table.owner(each, but=number)
        if owner is not None:
            raise NameTakenError(
                f"{shown(each)} already leads to {phrase(owner.kind)} called {shown(owner.name)}; "
                "update that one or choose another name"
            )
    return Entry(number, created_at, kind, name, content, aliases)


def phrase(kind: Kind) -> str:
    return "an archive" if kind is Kind.ARCHIVE else f"a {kind.name.lower()}"
