"""Recovery: the entries of a memory, from its snapshot and its journal, whatever happened to them.

Pure: bytes in, entries out, and what to say about it. A crash at any moment is no damage.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from . import crmem, journal_file
from .checksums import MemoryDamage, check_snapshot
from .entry import MemoryEntry
from .journal_file import DropEntry, EntryChange, SnapshotReference
from .snapshot_file import identify_snapshot


@dataclass(slots=True)
class MemoryRecovery:
    """`whole` is where the journal goes on, and `torn` whether a write was cut short there. A file
    with faults is to be set aside, and both when they are not of one memory."""

    entries: dict[int, MemoryEntry]
    next_id: int
    base: SnapshotReference
    journal_end: int
    is_torn: bool = False
    is_mismatched: bool = False
    snapshot_faults: list[str] = field(default_factory=list)
    journal_faults: list[str] = field(default_factory=list)
    # What differs from the checksums, and the entries that are not to be trusted therefore.
    damage: list[MemoryDamage] = field(default_factory=list)
    suspects: dict[int, MemoryEntry | None] = field(default_factory=dict)


def recover_memory(snapshot: bytes, lines: bytes, sums: bytes = b"") -> MemoryRecovery:
    contents = crmem.salvage_memory(snapshot) if snapshot else crmem.CrmemContents()
    found = journal_file.parse_journal(lines)
    base = identify_snapshot(snapshot)
    changes, is_known = select_changes(found, base)
    faults = (
        [f"{found.damaged_lines} of its lines could not be read"] if found.damaged_lines else []
    )
    if not is_known:
        faults.append("it follows another snapshot")
    recovery = MemoryRecovery(
        entries={entry.id: entry for entry in contents.entries},
        next_id=contents.next_id,
        base=base,
        journal_end=found.end,
        is_torn=found.end < len(lines) and not found.damaged_lines,
        is_mismatched=not is_known,
        snapshot_faults=contents.faults,
        journal_faults=faults,
    )
    verdict = check_snapshot(snapshot, contents.entries, sums)
    replay_changes(recovery, changes)
    # Entries that were written again since the snapshot are fine.
    recovery.suspects = {
        number: entry
        for number, entry in verdict.suspects.items()
        if recovery.entries.get(number) == entry
    }
    recovery.damage = [
        one for one in verdict.damage if one.id is None or one.id in recovery.suspects
    ]
    return recovery


def select_changes(
    lines: journal_file.JournalLines, base: SnapshotReference
) -> tuple[list[EntryChange], bool]:
    """The changes that the snapshot does not hold yet, and whether the journal knows it.

    When no line names the snapshot, one of the two was exchanged. All changes are taken then:
    one that the snapshot has already is the same a second time.
    """
    starts = [number for number, record in enumerate(lines.records, 1) if record == base]
    records = lines.records[starts[-1] :] if starts else lines.records
    changes = [record for record in records if not isinstance(record, SnapshotReference)]
    return changes, bool(starts or not changes)


def replay_changes(recovery: MemoryRecovery, changes: list[EntryChange]) -> None:
    entries = recovery.entries
    names: dict[str, int] = {}
    if changes:
        names = {entry.name: entry.id for entry in reversed(entries.values())}
    for change in changes:
        if isinstance(change, DropEntry):
            gone = entries.get(change.id)
            if gone is not None and gone.name == change.name:
                del entries[change.id]
                if names.get(change.name) == change.id:
                    del names[change.name]
            continue
        entry = change.entry
        number = choose_id(entry, recovery, names)
        before = entries.get(number)
        if before is not None and names.get(before.name) == number:
            del names[before.name]
        entries[number] = entry if number == entry.id else replace(entry, id=number)
        names.setdefault(entry.name, number)
        recovery.next_id = max(recovery.next_id, number + 1)


def choose_id(entry: MemoryEntry, recovery: MemoryRecovery, names: dict[str, int]) -> int:
    """The id it goes under: its own, unless an exchanged snapshot has another entry there."""
    there = recovery.entries.get(entry.id)
    if there is not None and entry.name != there.name and entry.created_at != there.created_at:
        return names.get(entry.name, recovery.next_id)
    if there is None:
        return names.get(entry.name, entry.id)
    return entry.id
