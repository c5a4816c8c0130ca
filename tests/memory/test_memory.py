"""Memory: its operations, names, search and files."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crabtalk.memory import (
    MAX_ALIASES,
    MAX_CONTENT,
    MAX_NAME,
    AddEntry,
    EntryKind,
    EntryKindError,
    Memory,
    MemoryEntry,
    MemoryInUseError,
    MemoryLimitError,
    MemoryOperation,
    MemoryStoreError,
    NameTakenError,
    RemoveEntry,
    RenameEntry,
    SetAliases,
    UnknownEntryError,
    UpdateEntry,
)
from crabtalk.memory.crmem import decode_memory, encode_memory
from tests.memory.memory_samples import (
    ENTRIES,
    OPS,
    journal_path,
    list_files,
    open_memory,
    read_entries,
    read_fixed_time,
)

NOW = int(read_fixed_time())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "crab.crmem"


@pytest.fixture
def memory(path: Path) -> Memory:
    return open_memory(path)


# ── Operations ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.ops.add")
def test_add_creates_an_entry(memory: Memory) -> None:
    added = memory.apply(AddEntry("deploy", "prod rollout", ("ship",)))
    assert added == MemoryEntry(1, NOW, EntryKind.NOTE, "deploy", "prod rollout", ("ship",))
    assert memory.get("deploy") == added
    assert memory.entries() == [added]


@pytest.mark.req("memory.ops.update")
@pytest.mark.req("memory.kind.immutable")
def test_update_rewrites_content_and_aliases_and_nothing_else(path: Path) -> None:
    now = iter([100.0, 200.0, 300.0])
    memory = Memory.open(path, now=lambda: next(now))
    memory.apply(AddEntry("deploy", "old", ("ship",)))
    updated = memory.apply(UpdateEntry("deploy", "new", ("go",)))
    assert updated == MemoryEntry(1, 100, EntryKind.NOTE, "deploy", "new", ("go",))
    assert memory.get("ship") is None
    assert memory.apply(UpdateEntry("deploy", "newer")).aliases == ("go",)


@pytest.mark.req("memory.ops.rename")
def test_rename_changes_the_name_and_frees_the_old_one(memory: Memory) -> None:
    memory.apply(AddEntry("coffee", "two sugars", ("cup",)))
    assert memory.apply(RenameEntry("coffee", "tea")).name == "tea"
    assert memory.get("coffee") is None
    assert memory.apply(RenameEntry("tea", "cup")).aliases == ()
    memory.apply(AddEntry("coffee", "black"))
    assert [entry.name for entry in memory.entries()] == ["cup", "coffee"]


@pytest.mark.req("memory.ops.alias")
def test_alias_replaces_the_aliases(memory: Memory) -> None:
    memory.apply(AddEntry("deploy", "prod", ("ship", "go")))
    assert memory.apply(SetAliases("deploy", ("go", "release"))).aliases == ("go", "release")
    assert memory.get("ship") is None
    assert memory.get("release") == memory.get("go") == memory.get("deploy")


@pytest.mark.req("memory.ops.remove")
def test_remove_deletes_the_entry_and_its_aliases(memory: Memory) -> None:
    added = memory.apply(AddEntry("deploy", "prod", ("ship",)))
    assert memory.apply(RemoveEntry("ship")) == added
    assert memory.entries() == []
    assert memory.get("deploy") is memory.get("ship") is None
    assert memory.search("prod") == []


@pytest.mark.req("memory.names.resolve")
def test_a_name_wins_over_an_alias(path: Path) -> None:
    path.parent.mkdir()
    first = MemoryEntry(1, 1, EntryKind.NOTE, "other", "one", ("ship",))
    second = MemoryEntry(2, 1, EntryKind.NOTE, "ship", "two")
    path.write_bytes(encode_memory([first, second], 3))
    with open_memory(path) as memory:
        assert memory.get("ship") == second
        memory.apply(RemoveEntry("ship"))
        assert memory.get("ship") == first


@pytest.mark.req("memory.names.unique")
@pytest.mark.parametrize(
    "op",
    [
        AddEntry("deploy", ""),
        AddEntry("ship", ""),
        AddEntry("new", "", ("deploy",)),
        AddEntry("new", "", ("ship",)),
        RenameEntry("coffee", "deploy"),
        RenameEntry("coffee", "ship"),
        SetAliases("coffee", ("deploy",)),
        SetAliases("coffee", ("ship",)),
        UpdateEntry("coffee", "", ("ship",)),
    ],
)
def test_a_name_or_alias_identifies_one_entry(memory: Memory, op: MemoryOperation) -> None:
    memory.apply(AddEntry("deploy", "prod", ("ship",)))
    memory.apply(AddEntry("coffee", "two sugars"))
    before = memory.entries()
    with pytest.raises(NameTakenError, match="update that one or choose another name"):
        memory.apply(op)
    assert memory.entries() == before


def test_an_alias_that_repeats_a_name_is_dropped(memory: Memory) -> None:
    assert memory.apply(AddEntry("deploy", "", ("ship", "deploy", "ship"))).aliases == ("ship",)


@pytest.mark.parametrize(
    "op", [UpdateEntry("x", ""), RenameEntry("x", "y"), SetAliases("x", ()), RemoveEntry("x")]
)
def test_an_entry_that_does_not_exist_cannot_be_changed(
    memory: Memory, op: MemoryOperation
) -> None:
    with pytest.raises(UnknownEntryError, match="no entry is called 'x'; search for it"):
        memory.apply(op)


@pytest.mark.req("memory.kind.archives")
@pytest.mark.parametrize("op", [UpdateEntry("past", "rewritten"), RenameEntry("past", "other")])
def test_an_archive_is_neither_rewritten_nor_renamed(memory: Memory, op: MemoryOperation) -> None:
    archive = memory.apply(AddEntry("past", "They met.", kind=EntryKind.ARCHIVE))
    with pytest.raises(EntryKindError, match="'past' is an archive"):
        memory.apply(op)
    assert memory.get("past") == archive


@pytest.mark.req("memory.kind.guard")
@pytest.mark.parametrize(
    "op",
    [
        UpdateEntry("past", "", kind=EntryKind.NOTE),
        RenameEntry("past", "y", kind=EntryKind.NOTE),
        SetAliases("past", ("y",), kind=EntryKind.NOTE),
        RemoveEntry("past", kind=EntryKind.NOTE),
    ],
)
def test_an_operation_for_notes_leaves_archives_alone(memory: Memory, op: MemoryOperation) -> None:
    archive = memory.apply(AddEntry("past", "They met.", kind=EntryKind.ARCHIVE))
    with pytest.raises(EntryKindError, match="'past' is an archive, not a note"):
        memory.apply(op)
    assert memory.entries() == [archive]


@pytest.mark.req("memory.kind.archives")
def test_an_archive_can_be_removed_on_purpose(memory: Memory) -> None:
    memory.apply(AddEntry("past", "They met.", kind=EntryKind.ARCHIVE))
    memory.apply(SetAliases("past", ("history",)))
    memory.apply(RemoveEntry("history"))
    assert memory.entries() == []


@pytest.mark.req("memory.crmem.topics")
def test_topics_are_kept_but_never_created(path: Path) -> None:
    path.parent.mkdir()
    topic = MemoryEntry(1, 1, EntryKind.TOPIC, "crabs", "They walk sideways.")
    path.write_bytes(encode_memory([topic], 2))
    with open_memory(path) as memory:
        with pytest.raises(EntryKindError, match="add a note instead"):
            memory.apply(AddEntry("lobsters", "", kind=EntryKind.TOPIC))
        assert memory.search("sideways")[0].entry == topic
        memory.apply(AddEntry("coffee", "two sugars"))
    assert decode_memory(path.read_bytes()).entries[0] == topic


@pytest.mark.req("memory.archive.again")
def test_archiving_again_changes_nothing(memory: Memory) -> None:
    first = memory.archive("crab-user-1", "They met.", 100)
    size = memory.statistics().journal_bytes
    assert memory.archive("crab-user-1", "They met.", 200) is first
    assert memory.statistics().journal_bytes == size
    again = memory.archive("crab-user-1", "They met again.", 300)
    assert again == MemoryEntry(1, 300, EntryKind.ARCHIVE, "crab-user-1", "They met again.")
    assert memory.entries() == [again]


@pytest.mark.req("memory.archive.again")
def test_an_archive_never_takes_the_name_of_a_note(memory: Memory) -> None:
    note = memory.apply(AddEntry("crab-user-1", "mine", ("crab-user-2",)))
    for name in ("crab-user-1", "crab-user-2"):
        with pytest.raises(NameTakenError):
            memory.archive(name, "They met.")
    assert memory.entries() == [note]


@pytest.mark.req("memory.limits")
@pytest.mark.parametrize(
    "op",
    [
        AddEntry("", "x"),
        AddEntry(" ", "x"),
        AddEntry("x", "x", ("",)),
        AddEntry("é" * MAX_NAME, "x"),
        AddEntry("x", "é" * MAX_CONTENT),
        AddEntry("x", "x", tuple(map(str, range(MAX_ALIASES + 1)))),
        AddEntry("x", "\ud800"),
        AddEntry("\udfff", "x"),
    ],
)
def test_an_entry_over_a_limit_is_refused(memory: Memory, op: MemoryOperation) -> None:
    with pytest.raises(MemoryLimitError):
        memory.apply(op)
    assert memory.entries() == []


@pytest.mark.req("memory.limits")
def test_the_largest_entry_is_stored(path: Path) -> None:
    largest = AddEntry("n" * MAX_NAME, "x" * MAX_CONTENT, tuple(map(str, range(MAX_ALIASES))))
    with open_memory(path) as memory:
        added = memory.apply(largest)
    assert read_entries(path) == [added]


# ── Files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.file.missing")
def test_a_missing_file_is_an_empty_memory_until_the_first_write(path: Path) -> None:
    with open_memory(path) as memory:
        assert memory.entries() == []
        assert not path.exists()
        memory.apply(AddEntry("coffee", "two sugars"))
        assert decode_memory(path.read_bytes()).entries == memory.entries()


@pytest.mark.req("memory.file.missing")
def test_opening_and_closing_leaves_nothing_behind(path: Path) -> None:
    open_memory(path).close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.req("memory.closed.one_file")
def test_a_closed_memory_is_one_file_of_the_format(path: Path) -> None:
    with open_memory(path) as memory:
        for op in OPS:
            memory.apply(op)
        entries = memory.entries()
    assert list_files(path) == {path.name}
    assert decode_memory(path.read_bytes()).entries == entries
    with open_memory(path) as memory:
        assert memory.entries() == entries


@pytest.mark.req("memory.crmem.layout")
def test_a_file_of_another_program_is_opened_and_left_unchanged(path: Path) -> None:
    path.parent.mkdir()
    data = encode_memory(ENTRIES, 9)
    path.write_bytes(data)
    with open_memory(path) as memory:
        assert memory.entries() == list(ENTRIES)
        assert memory.search("rollout")[0].entry == ENTRIES[0]
    assert path.read_bytes() == data


@pytest.mark.req("memory.ids.monotonic")
def test_an_id_is_never_used_again(path: Path) -> None:
    with open_memory(path) as memory:
        memory.apply(AddEntry("a", ""))
        memory.apply(AddEntry("b", ""))
        memory.apply(RemoveEntry("b"))
    with open_memory(path) as memory:
        assert memory.apply(AddEntry("b", "")).id == 3
        memory.apply(RemoveEntry("b"))
    with open_memory(path) as memory:
        assert memory.apply(AddEntry("b", "")).id == 4


@pytest.mark.req("memory.durable")
def test_a_write_is_in_the_files_when_it_returns(path: Path) -> None:
    memory = Memory.open(path)
    for op in OPS:
        memory.apply(op)
        assert read_entries(path) == memory.entries()


@pytest.mark.req("memory.write.cost")
def test_a_write_appends_an_entry_to_the_journal_and_rewrites_no_file(path: Path) -> None:
    with open_memory(path) as memory:
        for number in range(2000):
            memory.apply(AddEntry(f"note {number}", "x" * 1000))
        memory.checkpoint()
        before = path.stat()
        memory.apply(AddEntry("one more", "y" * 200))
        assert memory.statistics().journal_bytes < 1000
        assert os.path.samestat(path.stat(), before)
        # A checkpoint comes only when the journal is half as long as the snapshot.
        assert memory.statistics().checkpoints < 16


@pytest.mark.req("memory.file.private")
def test_other_users_may_not_read_a_memory(path: Path) -> None:
    old = os.umask(0)
    try:
        with open_memory(path) as memory:
            memory.apply(AddEntry("coffee", "two sugars"))
            memory.apply(AddEntry("tea", "none"))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(old)
    assert modes == {f"crab.crmem{end}": 0o600 for end in ("", ".journal", ".sums")}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.req("memory.file.private")
@pytest.mark.parametrize("name", ["crab.crmem", "crab.crmem.journal"])
def test_a_link_is_not_followed(path: Path, tmp_path: Path, name: str) -> None:
    path.parent.mkdir()
    (tmp_path / "elsewhere").write_bytes(encode_memory(ENTRIES, 9))
    (path.parent / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MemoryStoreError, match="plain file of yours"):
        Memory.open(path)
    with pytest.raises(MemoryStoreError, match="plain file of yours"):
        Memory.open_read_only(path)


@pytest.mark.req("memory.foreign.duplicates")
def test_a_name_that_a_file_uses_twice_belongs_to_the_lower_id(path: Path) -> None:
    path.parent.mkdir()
    twins = [
        MemoryEntry(1, 1, EntryKind.NOTE, "twin", "first", ("both",)),
        MemoryEntry(2, 1, EntryKind.NOTE, "twin", "second", ("both", "both", "twin")),
    ]
    path.write_bytes(encode_memory(twins, 3))
    with open_memory(path) as memory:
        assert memory.get("twin") == memory.get("both") == twins[0]
        memory.apply(AddEntry("coffee", "two sugars"))
    assert decode_memory(path.read_bytes()).entries[:2] == twins
    with open_memory(path) as memory:
        first = memory.apply(UpdateEntry("twin", "still the first"))
        assert memory.get("twin") == memory.get("both") == first
        assert first.id == 1
        memory.apply(RemoveEntry("twin"))
        assert memory.get("twin") == memory.get("both") == twins[1]
    assert decode_memory(path.read_bytes()).entries[0] == twins[1]


# ── Locking ─────────────────────────────────────────────────────────────────────────────────────

HOLD = """
import sys
from crabtalk.memory import AddEntry, Memory
memory = Memory.open(sys.argv[1])
memory.apply(AddEntry("theirs", "held"))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.req("memory.lock.one_writer")
@pytest.mark.req("memory.read_only")
def test_one_process_writes_and_others_read(path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(MemoryStoreError, match=r"close it there, or open it to read only"):
            Memory.open(path)
        before = {file: file.read_bytes() for file in path.parent.iterdir()}
        reader = Memory.open_read_only(path)
        assert reader.search("held")[0].entry.name == "theirs"
        with pytest.raises(MemoryStoreError, match="open to read only; open it to write"):
            reader.apply(RemoveEntry("theirs"))
        with pytest.raises(MemoryStoreError, match="open to read only; open it to write"):
            reader.load(path.parent)
        reader.close()
        assert {file: file.read_bytes() for file in path.parent.iterdir()} == before
        child.kill()
    with open_memory(path) as memory:
        assert memory.get("theirs") is not None


@pytest.mark.req("memory.lock.one_writer")
def test_two_parts_of_one_process_do_not_both_write(path: Path) -> None:
    first = open_memory(path)
    with pytest.raises(MemoryStoreError, match="being written"):
        open_memory(path)
    first.close()
    first.close()
    with pytest.raises(MemoryStoreError, match="is closed"):
        first.apply(AddEntry("late", ""))
    open_memory(path).close()


@pytest.mark.req("memory.read_only")
def test_opening_a_missing_memory_read_only_creates_nothing(path: Path) -> None:
    assert Memory.open_read_only(path).entries() == []
    assert not path.parent.exists()


@pytest.mark.req("memory.read_only")
def test_a_reader_sees_every_write_during_checkpoints(path: Path) -> None:
    wrong: list[int] = []
    written = threading.Event()

    def write() -> None:
        with open_memory(path) as memory:
            for number in range(300):
                memory.apply(AddEntry(f"note {number}", ""))
                if number % 3 == 0:
                    memory.checkpoint()
        written.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not written.is_set():
        count = len(Memory.open_read_only(path).entries())
        if count < seen:
            wrong.append(count)
        seen = count
    writer.join()
    assert wrong == []
    assert len(read_entries(path)) == 300


@pytest.mark.req("memory.read_only")
def test_a_reader_retries_when_a_checkpoint_happens_during_its_read(path: Path) -> None:
    """The journal is a named pipe here, so that the checkpoint falls between two reads."""
    path.parent.mkdir()
    path.write_bytes(encode_memory(ENTRIES[:1], 9))
    os.mkfifo(journal_path(path))
    results: list[list[MemoryEntry]] = []
    reader = threading.Thread(target=lambda: results.append(read_entries(path)), daemon=True)
    reader.start()
    with journal_path(path).open("wb"):  # returns when the reader opens the journal
        path.write_bytes(encode_memory(ENTRIES, 9))
        journal_path(path).unlink()
    reader.join(10)
    assert results == [list(ENTRIES)]


@pytest.mark.req("memory.lock.one_writer")
def test_writers_that_take_turns_lose_nothing(path: Path) -> None:
    """Each removes the journal when it is done, while others try to lock it."""
    written: list[str] = []

    def write(writer_number: int) -> None:
        number = 0
        while number < 60:
            try:
                with open_memory(path) as memory:
                    written.append(memory.apply(AddEntry(f"{writer_number} {number}", "")).name)
                    number += 1
            except MemoryInUseError:
                continue

    writers = [
        threading.Thread(target=write, args=(writer_number,), daemon=True)
        for writer_number in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(20)
    assert sorted(written) == sorted(entry.name for entry in read_entries(path))
    assert len(written) == 240


@pytest.mark.req("memory.search.meanwhile")
def test_a_search_does_not_wait_for_the_disk(path: Path) -> None:
    """Writers hold one lock while they wait for the disk; readers never take it."""
    with open_memory(path) as memory:
        memory.apply(AddEntry("coffee", "two sugars"))
        with memory._write_lock:
            assert memory.search("sugars")[0].entry.name == "coffee"
            assert memory.get("coffee") is not None
            assert memory.entries()
            assert memory.statistics().notes == 1


# ── Search ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.search.terms")
def test_an_entry_is_found_by_content_name_and_aliases(memory: Memory) -> None:
    memory.apply(AddEntry("deploy", "prod rollout", ("ship", "出荷")))
    memory.apply(AddEntry("coffee", "two sugars"))
    for query in ("rollout", "deploy", "SHIP", "出荷"):
        assert [hit.entry.name for hit in memory.search(query)] == ["deploy"]
    memory.apply(UpdateEntry("deploy", "staging", ("go",)))
    for query in ("rollout", "ship", "出荷"):
        assert memory.search(query) == []
    memory.apply(RenameEntry("deploy", "launch"))
    assert memory.search("deploy") == []
    assert [hit.entry.name for hit in memory.search("launch staging")] == ["launch"]


@pytest.mark.req("memory.search.both_kinds")
def test_notes_and_archives_are_ranked_together(memory: Memory) -> None:
    memory.apply(AddEntry("note", "crabs walk sideways over sand and stones"))
    memory.archive("crab-user-1", "crabs, crabs, crabs")
    hits = memory.search("crabs")
    assert [hit.entry.kind for hit in hits] == [EntryKind.ARCHIVE, EntryKind.NOTE]
    assert hits[0].score > hits[1].score > 0


@pytest.mark.req("memory.search.both_kinds")
def test_the_caller_chooses_the_number_of_hits(memory: Memory) -> None:
    for number in range(9):
        memory.apply(AddEntry(f"note {number}", "crab " * (number + 1)))
    assert len(memory.search("crab")) == 5
    assert len(memory.search("crab", 100)) == 9
    assert memory.search("crab", 0) == []
    assert memory.search("", 5) == memory.search("the", 5) == []


def test_statistics_count_entries_terms_and_bytes(memory: Memory) -> None:
    memory.apply(AddEntry("coffee", "two sugars"))
    memory.archive("crab-user-1", "They met.")
    statistics = memory.statistics()
    assert (statistics.notes, statistics.archives, statistics.topics) == (1, 1, 0)
    assert statistics.terms == len({"coffee", "two", "sugars", "crab", "user", "met"})
    assert statistics.snapshot_bytes == memory.path.stat().st_size
    assert statistics.journal_bytes == journal_path(memory.path).stat().st_size > 0
    assert statistics.checkpoints == 1


ALONE = """
import sys
from crabtalk.memory import *
print(*(name for name in sys.modules if name.split(".")[0] in ("asyncio", "crabtalk")))
"""


@pytest.mark.req("memory.alone")
def test_the_package_needs_no_other_package() -> None:
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    packages = {".".join(name.split(".")[:2]) for name in run.stdout.split()}
    assert packages == {"crabtalk", "crabtalk.lazy_imports", "crabtalk.memory"}
