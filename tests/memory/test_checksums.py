"""Checksums of memories: outside changes to a snapshot are reported, and it is still read.

CRMEM files stay readable for every reader of the format.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from crabtalk.memory import (
    AddEntry,
    Memory,
    MemoryEntry,
    PutEntry,
    RemoveEntry,
    UpdateEntry,
    verify_memory,
)
from crabtalk.memory.checksums import check_snapshot, encode_checksums, hash_snapshot
from crabtalk.memory.crmem import decode_memory, encode_memory
from crabtalk.memory.journal_file import encode_record, parse_journal
from crabtalk.memory.recovery import recover_memory
from crabtalk.memory.snapshot_file import identify_snapshot
from tests.memory.memory_samples import ENTRIES, draw_entries, journal_path, open_memory
from tests.memory.test_crash import apply_all_ops

SNAPSHOT = encode_memory(ENTRIES, 9)
SUMS = encode_checksums(ENTRIES, hash_snapshot(SNAPSHOT))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A memory that crabtalk wrote and closed."""
    path = tmp_path / "memory" / "crab.crmem"
    Memory.create(path, SNAPSHOT)
    return path


def checksums_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sums")


def list_faults(path: Path) -> list[tuple[str, str]]:
    return [(damage.fault, damage.name) for damage in verify_memory(path)]


@pytest.mark.req("checksums.memory.beside")
def test_the_snapshot_is_plain_crmem_and_its_checksums_are_beside_it(path: Path) -> None:
    assert path.read_bytes() == SNAPSHOT
    assert checksums_path(path).read_bytes() == SUMS
    assert checksums_path(path).stat().st_mode & 0o777 == 0o600
    with open_memory(path) as memory:
        memory.apply(AddEntry("new", "life"))
        assert memory.problem == ""
    assert decode_memory(path.read_bytes()).entries == Memory.open_read_only(path).entries()
    assert list_faults(path) == []


@pytest.mark.req("checksums.memory.beside")
def test_a_file_without_checksums_is_an_old_one_and_not_damaged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checksums_path(path).unlink()
    assert list_faults(path) == []
    with open_memory(path) as memory:
        assert memory.entries() == list(ENTRIES)
        assert memory.problem == ""
        memory.apply(AddEntry("new", "life"))
    assert checksums_path(path).exists()
    assert list_faults(path) == []
    assert caplog.records == []


@pytest.mark.req("checksums.memory.flip")
@given(at=st.integers(0, len(SNAPSHOT) - 1), flip=st.integers(1, 255))
def test_a_flipped_byte_of_the_snapshot_is_found_and_its_entry_named(at: int, flip: int) -> None:
    data = bytearray(SNAPSHOT)
    data[at] ^= flip
    recovery = recover_memory(bytes(data), b"", SUMS)
    assert recovery.damage
    trusted = [
        entry for number, entry in recovery.entries.items() if number not in recovery.suspects
    ]
    assert all(entry in ENTRIES for entry in trusted)


@pytest.mark.req("checksums.memory.flip")
@given(at=st.integers(0, len(SUMS) - 1), flip=st.integers(1, 255))
def test_a_flipped_byte_of_the_checksums_is_found_and_blames_no_entry(at: int, flip: int) -> None:
    sums = bytearray(SUMS)
    sums[at] ^= flip
    check = check_snapshot(SNAPSHOT, ENTRIES, bytes(sums))
    assert [damage.fault for damage in check.damage] == ["sums"]
    assert check.suspects == {}


@pytest.mark.req("checksums.memory.flip")
@given(draw_entries(), st.data())
def test_exactly_the_entries_that_differ_are_named(
    entries: list[MemoryEntry], data: st.DataObject
) -> None:
    sums = encode_checksums(entries, hash_snapshot(encode_memory(entries, 99)))
    changed = {e.id for e in entries if data.draw(st.booleans())}
    removed = {e.id for e in entries if e.id not in changed and data.draw(st.booleans())}
    now = [
        replace(entry, content=f"{entry.content}!") if entry.id in changed else entry
        for entry in entries
        if entry.id not in removed
    ]
    check = check_snapshot(encode_memory(now, 99), now, sums)
    assert {damage.id for damage in check.damage if damage.fault == "changed"} == changed
    assert {damage.id for damage in check.damage if damage.fault == "missing"} == removed
    assert check.suspects.keys() == changed | removed


@pytest.mark.req("checksums.memory.named")
def test_a_damaged_entry_is_reported_until_it_is_rewritten(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_bytes(SNAPSHOT.replace(b"rollout", b"rolloot"))
    assert list_faults(path) == [("changed", "deploy")]
    with open_memory(path) as memory:
        assert memory.get("deploy") is not None
        assert "entry 'deploy' is not what was written" in memory.problem
        assert "changed outside crabtalk" in memory.problem
        assert memory.problem.endswith("stop the daemon and remove crab.crmem.sums")
        memory.apply(AddEntry("new", "life"))  # closing rewrites the snapshot
    assert caplog.messages == [Memory.open_read_only(path).problem]
    # A checkpoint does not hide the damage.
    assert list_faults(path) == [("changed", "deploy")]
    with open_memory(path) as memory:
        assert "'deploy'" in memory.problem
        memory.apply(UpdateEntry("deploy", "prod rollout steps"))
        assert memory.problem == ""
    assert list_faults(path) == []
    assert open_memory(path).problem == ""


@pytest.mark.req("checksums.memory.named")
def test_an_entry_that_is_forgotten_or_in_the_journal_is_not_blamed(path: Path) -> None:
    path.write_bytes(SNAPSHOT.replace(b"rollout", b"rolloot"))
    memory = open_memory(path)
    memory.apply(RemoveEntry("deploy"))
    assert memory.problem == ""
    memory._backend.close(remove=False)  # type: ignore[union-attr]
    assert list_faults(path) == []
    open_memory(path).close()
    assert list_faults(path) == []


@pytest.mark.req("checksums.memory.outside")
def test_a_file_written_by_another_program_is_read_and_reported_as_changed_outside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fresh = MemoryEntry(9, 400, ENTRIES[0].kind, "theirs", "of another program")
    theirs = [replace(ENTRIES[0], content="edited"), ENTRIES[1], fresh]
    path.write_bytes(encode_memory(theirs, 10))
    assert list_faults(path) == [("changed", "deploy"), ("added", "theirs"), ("missing", "")]
    with open_memory(path) as memory:
        assert memory.entries() == theirs
        assert "crab.crmem was changed outside crabtalk" in memory.problem
        memory.apply(AddEntry("new", "life"))
    expected = [("changed", "deploy"), ("changed", "theirs"), ("missing", "")]
    assert sorted(list_faults(path)) == expected
    assert not list(path.parent.glob("*.damaged-*"))
    # Removing the checksums accepts the file.
    checksums_path(path).unlink()
    caplog.clear()
    with open_memory(path) as memory:
        assert memory.problem == ""
        memory.apply(AddEntry("newer", "life"))
    assert list_faults(path) == []
    assert caplog.records == []


@pytest.mark.req("checksums.memory.outside")
def test_loading_a_book_accepts_all_its_entries(path: Path) -> None:
    path.write_bytes(SNAPSHOT.replace(b"rollout", b"rolloot"))
    with open_memory(path) as memory:
        memory.replace(memory.entries())
        assert memory.problem == ""
    assert list_faults(path) == []


@pytest.mark.req("checksums.memory.outside")
def test_a_removed_file_is_an_empty_memory(path: Path) -> None:
    path.unlink()
    with open_memory(path) as memory:
        assert (memory.entries(), memory.problem) == ([], "")
        memory.apply(AddEntry("new", "life"))
    assert list_faults(path) == []


@pytest.mark.req("checksums.memory.crash")
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_crash_between_checksums_and_snapshot_blames_nothing(
    path: Path, is_replaced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with open_memory(path) as memory:
        memory.apply(AddEntry("new", "life"))
        entries = memory.entries()
    new, new_sums = path.read_bytes(), checksums_path(path).read_bytes()
    # The journal names the next snapshot, its checksums are in place, and then the power fails.
    path.write_bytes(new if is_replaced else SNAPSHOT)
    changes = encode_record(PutEntry(entries[-1]))
    journal_path(path).write_bytes(
        encode_record(identify_snapshot(SNAPSHOT)) + changes + encode_record(identify_snapshot(new))
    )
    checksums_path(path).write_bytes(new_sums)
    assert list_faults(path) == []
    with open_memory(path) as memory:
        assert memory.entries() == entries
        assert memory.problem == ""
    assert caplog.records == []


@pytest.mark.req("checksums.memory.crash")
def test_a_snapshot_that_could_not_be_replaced_fits_the_checksums_of_the_next(
    path: Path,
) -> None:
    """Twice in a row: the checksums still name the snapshot that is there."""
    memory = open_memory(path)
    for number in range(2):
        memory.apply(AddEntry(f"new {number}", "life"))
        old_snapshot = path.read_bytes()
        memory.checkpoint()
        path.write_bytes(old_snapshot)
        assert [d.fault for d in verify_memory(path) if d.fault != "journal"] == []
        memory.checkpoint()
    memory.close()
    assert list_faults(path) == []


@pytest.mark.req("checksums.memory.journal")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_of_the_journal_never_changes_an_entry(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("memory") / "crab.crmem"
    states, _ = apply_all_ops(path)
    lines = bytearray(journal_path(path).read_bytes())
    whole = parse_journal(bytes(lines)).records
    lines[data.draw(st.integers(0, len(lines) - 1))] ^= data.draw(st.integers(1, 255))
    readable = parse_journal(bytes(lines)).records
    assert all(record in whole for record in readable)
    # If a removal is lost, an entry added later under the same name gets the removed one's id.
    known = [replace(entry, id=0) for state in states for entry in state]
    recovered = recover_memory(path.read_bytes(), bytes(lines)).entries.values()
    assert all(replace(entry, id=0) in known for entry in recovered)


def test_many_faults_are_described_in_one_bounded_sentence(path: Path) -> None:
    many = [MemoryEntry(n, 1, ENTRIES[0].kind, f"n{n}", "") for n in range(1, 40)]
    path.write_bytes(encode_memory(many, 99))
    problem = Memory.open_read_only(path).problem
    assert "; and " in problem
    assert len(problem) < 600
