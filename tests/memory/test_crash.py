"""Crashes at any byte and between any two steps: acknowledged changes are there, once.

Changes that were not acknowledged are there completely or not at all.
"""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crabtalk.memory import AddEntry, Memory, MemoryEntry
from crabtalk.memory.crmem import encode_memory
from crabtalk.memory.journal_file import PutEntry, SnapshotReference, encode_record
from crabtalk.memory.snapshot_file import identify_snapshot
from tests.memory.memory_samples import OPS, journal_path, list_files, open_memory, read_entries

State = list[MemoryEntry]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "crab.crmem"


def apply_all_ops(path: Path) -> tuple[list[State], list[int]]:
    """Apply all operations; return the entries and the size of the journal after each."""
    memory = open_memory(path)
    memory.apply(AddEntry("first", "the file comes with it"))
    states, sizes = [memory.entries()], [0]
    for op in OPS:
        memory.apply(op)
        states.append(memory.entries())
        sizes.append(journal_path(path).stat().st_size)
    # Not closed, as after a crash. The lock is released with the file.
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    return states, sizes


@pytest.mark.req("memory.crash.every_byte")
def test_a_crash_at_any_byte_of_the_journal_keeps_all_acknowledged_changes(
    path: Path, tmp_path: Path
) -> None:
    states, sizes = apply_all_ops(path)
    data = journal_path(path).read_bytes()
    other = tmp_path / "other" / "crab.crmem"
    other.parent.mkdir()
    for cut in range(len(data) + 1):
        shutil.copy(path, other)
        journal_path(other).write_bytes(data[:cut])
        expected = states[max(number for number, size in enumerate(sizes) if size <= cut)]
        assert read_entries(other) == expected
        with open_memory(other) as memory:
            assert memory.entries() == expected
            memory.apply(AddEntry("after", "the crash"))
            expected = memory.entries()
        assert read_entries(other) == expected
        assert list_files(other) == {"crab.crmem"}


@pytest.mark.req("memory.crash.every_byte")
def test_a_record_that_was_cut_does_not_reappear(path: Path) -> None:
    states, sizes = apply_all_ops(path)
    journal = journal_path(path)
    journal.write_bytes(journal.read_bytes()[: sizes[-1] - 3])
    memory = open_memory(path)
    assert memory.entries() == states[-2]
    assert journal.stat().st_size == sizes[-2]
    memory.apply(AddEntry("x", ""))
    assert read_entries(path) == memory.entries()


@pytest.mark.req("memory.crash.fold")
@pytest.mark.parametrize("step", ["temporary", "temporary torn", "named", "replaced", "emptied"])
def test_a_crash_at_any_step_of_a_checkpoint_applies_nothing_twice(path: Path, step: str) -> None:
    states, _ = apply_all_ops(path)
    memory = open_memory(path)
    table = memory._table
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    data = encode_memory(table, table.next_id)
    temporary = path.with_name("crab.crmem.tmp")
    temporary.write_bytes(data[: len(data) // 2] if step == "temporary torn" else data)
    if step in ("named", "replaced", "emptied"):
        with journal_path(path).open("ab") as file:
            file.write(encode_record(identify_snapshot(data)))
    if step in ("replaced", "emptied"):
        temporary.replace(path)
    if step == "emptied":
        journal_path(path).write_bytes(b"")
    assert read_entries(path) == states[-1]
    with open_memory(path) as memory:
        assert memory.entries() == states[-1]
        assert not temporary.exists()
        memory.apply(AddEntry("after", "the crash"))
        expected = memory.entries()
        assert read_entries(path) == expected
    assert read_entries(path) == expected


@pytest.mark.req("memory.crash.fold")
def test_a_crash_after_an_unfinished_checkpoint_loses_nothing(path: Path) -> None:
    """The journal names a snapshot that was never written, and continues after that line."""
    apply_all_ops(path)
    with journal_path(path).open("ab") as file:
        file.write(encode_record(SnapshotReference(1, 2)))
    memory = open_memory(path)
    memory.apply(AddEntry("after", "the crash"))
    expected = memory.entries()
    assert read_entries(path) == expected
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    with open_memory(path) as memory:
        assert memory.entries() == expected


@pytest.mark.req("memory.crash.fold")
def test_changes_after_a_checkpoint_follow_the_new_snapshot(path: Path) -> None:
    memory = open_memory(path)
    memory.apply(AddEntry("coffee", "two sugars"))
    memory.checkpoint()
    memory.apply(AddEntry("tea", "none"))
    base, put = journal_path(path).read_bytes().splitlines(keepends=True)
    assert base == encode_record(identify_snapshot(path.read_bytes()))
    tea = memory.get("tea")
    assert tea is not None
    assert put == encode_record(PutEntry(tea))


BUSY = """
import sys
from crabtalk.memory import AddEntry, SetAliases, Memory, RemoveEntry, UpdateEntry

memory = Memory.open(sys.argv[1])
number = 0
while True:
    number += 1
    memory.apply(AddEntry(f"note {number}", "x" * (number * 37 % 3000), (f"alias {number}",)))
    if number % 3 == 0:
        memory.apply(UpdateEntry(f"note {number}", "updated"))
    if number % 4 == 0:
        memory.apply(RemoveEntry(f"alias {number - 1}"))
    if number % 10 == 0:
        memory.checkpoint()
    print(number, flush=True)
"""


@pytest.mark.req("memory.durable")
def test_a_killed_process_loses_no_acknowledged_change(path: Path) -> None:
    for minimum in (1, 7, 40, 41):
        shutil.rmtree(path.parent, ignore_errors=True)
        with subprocess.Popen(
            [sys.executable, "-c", BUSY, str(path)], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            number = 0
            while number < minimum:
                number = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            lines = child.stdout.read().split(b"\n")
            number = int(lines[-2]) if len(lines) > 1 else number
        with Memory.open(path) as memory:
            names = {entry.name for entry in memory.entries()}
            removed = {f"note {n - 1}" for n in range(4, number + 1, 4)}
            acknowledged = {f"note {n}" for n in range(1, number + 1)}
            # The round that was interrupted may have removed the last one.
            last = {f"note {number}"} if (number + 1) % 4 == 0 else set()
            assert acknowledged - removed - last <= names
            assert not names & removed
            assert names <= acknowledged | {f"note {number + 1}"}
            for n in range(3, number + 1, 3):
                entry = memory.get(f"note {n}")
                assert entry is None or entry.content == "updated"
