"""Recovery: rebuilds the entries of a memory from its snapshot and journal, damaged or not.

No I/O: bytes in, entries and findings out. The traces of a crash do not count as damage.
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
    """`journal_end` is where the journal continues; `is_torn` means that a write was cut off there.

    A file with faults must be backed up, and both files when `is_mismatched`.
    """

    entries: dict[int, MemoryEntry]
    next_id: int
    base: SnapshotReference
    journal_end: int
    is_torn: bool = False
    is_mismatched: bool = False
    snapshot_faults: list[str] = field(default_factory=list)
    journal_faults: list[str] = field(default_factory=list)
    # Differences from the checksums, and the entries that are therefore not trusted.
    damage: list[MemoryDamage] = field(default_factory=list)
    suspects: dict[int, MemoryEntry | None] = field(default_factory=dict)


def recover_memory(snapshot: bytes, lines: bytes, sums: bytes = b"") -> MemoryRecovery:
    contents = crmem.salvage_memory(snapshot) if snapshot else crmem.CrmemContents()
    journal = journal_file.parse_journal(lines)
    base = identify_snapshot(snapshot)
    changes, is_known = select_changes(journal, base)
    faults = (
        [f"{journal.damaged_lines} of its lines could not be read"] if journal.damaged_lines else []
    )
    if not is_known:
        faults.append("it follows another snapshot")
    recovery = MemoryRecovery(
        entries={entry.id: entry for entry in contents.entries},
        next_id=contents.next_id,
        base=base,
        journal_end=journal.end,
        is_torn=journal.end < len(lines) and not journal.damaged_lines,
        is_mismatched=not is_known,
        snapshot_faults=contents.faults,
        journal_faults=faults,
    )
    check = check_snapshot(snapshot, contents.entries, sums)
    replay_changes(recovery, changes)
    # Entries that were rewritten since the snapshot are fine.
    recovery.suspects = {
        number: entry
        for number, entry in check.suspects.items()
        if recovery.entries.get(number) == entry
    }
    recovery.damage = [
        item for item in check.damage if item.id is None or item.id in recovery.suspects
    ]
    return recovery


def select_changes(
    lines: journal_file.JournalLines, base: SnapshotReference
) -> tuple[list[EntryChange], bool]:
    """The changes that the snapshot does not have yet, and whether the journal names the snapshot.

    When no line names it, one of the two files was exchanged. Then all changes are taken: changes
    that the snapshot already has do no harm.
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
            removed = entries.get(change.id)
            if removed is not None and removed.name == change.name:
                del entries[change.id]
                if names.get(change.name) == change.id:
                    del names[change.name]
            continue
        entry = change.entry
        number = choose_id(entry, recovery, names)
        previous = entries.get(number)
        if previous is not None and names.get(previous.name) == number:
            del names[previous.name]
        entries[number] = entry if number == entry.id else replace(entry, id=number)
        names.setdefault(entry.name, number)
        recovery.next_id = max(recovery.next_id, number + 1)


def choose_id(entry: MemoryEntry, recovery: MemoryRecovery, names: dict[str, int]) -> int:
    """Choose the id of an entry: its own, unless an exchanged snapshot uses it for another."""
    existing = recovery.entries.get(entry.id)
    if (
        existing is not None
        and entry.name != existing.name
        and entry.created_at != existing.created_at
    ):
        return names.get(entry.name, recovery.next_id)
    if existing is None:
        return names.get(entry.name, entry.id)
    return entry.id
