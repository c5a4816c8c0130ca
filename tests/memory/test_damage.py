"""Damaged files: the memory opens with all that can be read, and the damaged file is backed up."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from crabtalk.memory import AddEntry, Memory, MemoryEntry, RemoveEntry
from crabtalk.memory.crmem import decode_memory, encode_memory
from crabtalk.memory.journal_file import PutEntry, encode_record, parse_journal
from crabtalk.memory.recovery import recover_memory
from crabtalk.memory.snapshot_file import identify_snapshot
from tests.memory.memory_samples import ENTRIES, OPS, journal_path, open_memory, read_entries
from tests.memory.test_crash import apply_all_ops

SNAPSHOT = encode_memory(ENTRIES, 9)
STARTS = [28, len(encode_memory(ENTRIES[:1], 9)), len(encode_memory(ENTRIES[:2], 9)), len(SNAPSHOT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "memory" / "crab.crmem"
    path.parent.mkdir()
    return path


def list_backups(path: Path, name: str = "crab.crmem") -> list[Path]:
    return sorted(path.parent.glob(f"{name}.damaged-*"))


@pytest.mark.req("memory.damage.aside")
def test_a_damaged_file_is_backed_up_and_reported(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = SNAPSHOT[:-3]
    path.write_bytes(data)
    with open_memory(path) as memory:
        assert memory.entries() == list(ENTRIES[:2])
        assert memory.apply(AddEntry("new", "life")).id == 9
    (copy,) = list_backups(path)
    assert copy.name == "crab.crmem.damaged-20231114T221320"
    assert copy.read_bytes() == data
    assert copy.stat().st_mode & 0o777 == 0o600
    assert decode_memory(path.read_bytes()).entries[:2] == list(ENTRIES[:2])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "crab.crmem is damaged (it ends within entry 3 of 3); 2 entries" in record.message


@pytest.mark.req("memory.damage.aside")
def test_a_file_damaged_twice_in_a_second_is_backed_up_twice(path: Path) -> None:
    for data in (SNAPSHOT[:-3], SNAPSHOT[:-4], SNAPSHOT[:-3]):
        path.write_bytes(data)
        open_memory(path).close()
    assert [copy.read_bytes() for copy in list_backups(path)] == [SNAPSHOT[:-3], SNAPSHOT[:-4]]


@pytest.mark.req("memory.damage.aside")
@pytest.mark.parametrize(
    "data", [b"x", b"not a memory at all, but a letter to a friend", b"\0" * 99]
)
def test_a_file_that_is_no_memory_is_backed_up(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with open_memory(path) as memory:
        assert memory.entries() == []
        memory.apply(AddEntry("new", "life"))
    assert [copy.read_bytes() for copy in list_backups(path)] == [data]
    assert [entry.name for entry in read_entries(path)] == ["new"]


@pytest.mark.req("memory.damage.aside")
def test_opening_read_only_backs_up_nothing(path: Path) -> None:
    path.write_bytes(SNAPSHOT[:-3])
    assert read_entries(path) == list(ENTRIES[:2])
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.req("memory.damage.recovered")
@pytest.mark.parametrize("size", range(1, len(SNAPSHOT)))
def test_a_file_cut_anywhere_gives_the_entries_before_the_cut(path: Path, size: int) -> None:
    path.write_bytes(SNAPSHOT[:size])
    whole = [entry for entry, end in zip(ENTRIES, STARTS[1:], strict=True) if end <= size]
    with open_memory(path) as memory:
        assert memory.entries() == whole
    assert [copy.read_bytes() for copy in list_backups(path)] == [SNAPSHOT[:size]]
    assert read_entries(path) == whole


@pytest.mark.req("memory.damage.recovered")
def test_a_changed_byte_costs_one_entry_and_those_after_it_at_most() -> None:
    for at in range(len(SNAPSHOT)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(SNAPSHOT)
            data[at] ^= flip
            recovery = recover_memory(bytes(data), b"")
            before = [entry for entry, end in zip(ENTRIES, STARTS[1:], strict=True) if end <= at]
            entries = list(recovery.entries.values())
            assert entries[: len(before)] == before, at
            assert recovery.next_id > max(recovery.entries, default=0)
            if at < STARTS[0]:
                assert entries == list(ENTRIES), at


@pytest.mark.req("memory.damage.recovered")
def test_the_journal_is_read_even_if_the_snapshot_is_damaged(path: Path) -> None:
    states, _ = apply_all_ops(path)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with open_memory(path) as memory:
        assert [entry for entry in states[-1] if entry.name != "first"] == memory.entries()
    assert [copy.read_bytes() for copy in list_backups(path)] == [data[:-1]]
    path.unlink()


@pytest.mark.req("memory.damage.journal")
def test_a_damaged_line_is_lost_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = open_memory(path)
    for number in range(6):
        memory.apply(AddEntry(f"note {number}", f"{number}\n{number}"))
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    journal = journal_path(path)
    data = journal.read_bytes()
    damaged = data.replace(b"note 3", b"note x")
    journal.write_bytes(damaged)
    with open_memory(path) as memory:
        assert [entry.name for entry in memory.entries()] == [f"note {n}" for n in (0, 1, 2, 4, 5)]
        assert memory.apply(AddEntry("next", "")).id == 7
    assert [copy.read_bytes() for copy in list_backups(path, journal.name)] == [damaged]
    assert "1 of its lines could not be read" in caplog.text


@pytest.mark.req("memory.damage.journal")
def test_a_changed_byte_in_the_journal_costs_one_line(path: Path) -> None:
    states, sizes = apply_all_ops(path)
    snapshot, lines = path.read_bytes(), journal_path(path).read_bytes()
    for at in range(len(lines)):
        for flip in (0x01, 0x80, 0xFF, lines[at] ^ 0x0A):
            data = bytearray(lines)
            data[at] ^= flip
            readable = parse_journal(bytes(data))
            whole = parse_journal(lines).records
            missing = [record for record in whole if record not in readable.records]
            assert len(missing) <= 1, at
            state = states[max(number for number, size in enumerate(sizes) if size <= at)]
            recovered = recover_memory(snapshot, bytes(data)).entries.values()
            # The last change to an entry holds if it came before the damage or after it.
            names = {entry.name for entry in recovered}
            assert {entry.name for entry in state if entry in states[-1]} <= names, at


@pytest.mark.req("memory.damage.journal")
@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_may_be_in_a_journal(noise: bytes, where: int) -> None:
    lines = [encode_record(identify_snapshot(SNAPSHOT)), *(encode_put(entry) for entry in ENTRIES)]
    lines.insert(where, noise + b"\n")
    recovery = recover_memory(SNAPSHOT, b"".join(lines))
    assert list(recovery.entries.values()) == list(ENTRIES)


def encode_put(entry: MemoryEntry) -> bytes:
    return encode_record(PutEntry(entry))


@pytest.mark.req("memory.damage.journal")
def test_an_entry_cannot_imitate_a_line(path: Path) -> None:
    forged = encode_put(replace(ENTRIES[0], name="forged")).decode()
    memory = open_memory(path)
    memory.apply(AddEntry("first", ""))
    memory.apply(AddEntry("letter", f"\n{forged}\n{forged}"))
    memory.apply(AddEntry("last", ""))
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    journal = journal_path(path)
    journal.write_bytes(journal.read_bytes().replace(b'"letter"', b'"l3tt3r"'))
    with open_memory(path) as memory:
        assert [entry.name for entry in memory.entries()] == ["first", "last"]


@pytest.mark.req("memory.damage.exchanged")
def test_a_journal_of_another_snapshot_loses_nothing_of_either(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states, _ = apply_all_ops(path)
    backup = [
        replace(ENTRIES[0], id=1, name="first", content="from a backup", aliases=()),
        replace(ENTRIES[2], id=2, name="only in the backup"),
    ]
    path.write_bytes(encode_memory(backup, 3))
    with open_memory(path) as memory:
        contents = {entry.name: entry.content for entry in memory.entries()}
    expected = {entry.name: entry.content for entry in states[-1]}
    assert contents == expected | {entry.name: entry.content for entry in backup}
    assert len(list_backups(path)) == len(list_backups(path, "crab.crmem.journal")) == 1
    assert "it follows another snapshot" in caplog.text


@pytest.mark.req("memory.damage.exchanged")
def test_a_journal_without_a_snapshot_is_still_read(path: Path) -> None:
    states, _ = apply_all_ops(path)
    path.unlink()
    assert read_entries(path) == [entry for entry in states[-1] if entry.name != "first"]


@pytest.mark.req("memory.damage.recovered")
def test_a_damaged_memory_can_be_used_as_before(path: Path) -> None:
    path.write_bytes(SNAPSHOT[:-3])
    with Memory.open(path) as memory:
        for op in OPS[1:2]:
            memory.apply(op)
        memory.apply(RemoveEntry("coffee"))
        assert memory.search("rollout")[0].entry == ENTRIES[0]
    assert read_entries(path) == list(ENTRIES[:2])
