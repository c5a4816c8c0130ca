"""What a memory does alike in files and in a database."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from crabtalk.memory import (
    MAX_CONTENT,
    AddEntry,
    BadCrmemError,
    EntryKind,
    EntryKindError,
    Memory,
    MemoryEntry,
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
from tests.memory.memory_samples import ENTRIES, OPS, VECTOR, draw_entries, read_fixed_time
from tests.memory.store_drivers import FileStoreDriver, StoreDriver, open_postgres_stores

NOW = int(read_fixed_time())
STORES = ("files", "postgres")
SLOW_FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreDriver]:
    if request.param == "files":
        yield FileStoreDriver(tmp_path / "memory")
        return
    with open_postgres_stores(request.getfixturevalue("postgres_url"), 1) as stores:
        yield stores[0]


@pytest.fixture
def memory(store: StoreDriver) -> Iterator[Memory]:
    with store.open() as memory:
        yield memory


@pytest.mark.req("memory.stores")
def test_each_operation_does_the_same(store: StoreDriver, tmp_path: Path) -> None:
    elsewhere = FileStoreDriver(tmp_path / "elsewhere").open()
    with store.open() as memory:
        for op in OPS:
            assert memory.apply(op) == elsewhere.apply(op)
            assert memory.entries() == elsewhere.entries()
        before = memory.entries()
    elsewhere.close()
    with store.open() as again:
        assert again.entries() == before


@pytest.mark.req("memory.stores")
@pytest.mark.parametrize(
    ("op", "refusal"),
    [
        (AddEntry("deploy", ""), NameTakenError),
        (AddEntry("new", "", ("ship",)), NameTakenError),
        (RenameEntry("coffee", "ship"), NameTakenError),
        (SetAliases("coffee", ("deploy",)), NameTakenError),
        (UpdateEntry("coffee", "", ("ship",)), NameTakenError),
        (UpdateEntry("past", "rewritten"), EntryKindError),
        (RenameEntry("past", "other"), EntryKindError),
        (RemoveEntry("past", kind=EntryKind.NOTE), EntryKindError),
        (AddEntry("topic", "", kind=EntryKind.TOPIC), EntryKindError),
        (RemoveEntry("tea"), UnknownEntryError),
        (AddEntry("large", "x" * (MAX_CONTENT + 1)), MemoryLimitError),
        (AddEntry("half", "\ud800"), MemoryLimitError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, tuple) else value.__name__,
)
def test_a_refused_operation_changes_nothing(
    store: StoreDriver, memory: Memory, op: MemoryOperation, refusal: type[MemoryStoreError]
) -> None:
    memory.apply(AddEntry("deploy", "prod", ("ship",)))
    memory.apply(AddEntry("coffee", "two sugars"))
    memory.archive("past", "They met.", 5)
    before, exported = memory.entries(), store.export_memory()
    with pytest.raises(refusal):
        memory.apply(op)
    assert memory.entries() == before
    assert store.export_memory() == exported == memory.encode()


@pytest.mark.req("memory.stores")
def test_archiving_again_changes_nothing_and_archiving_anew_replaces(memory: Memory) -> None:
    first = memory.archive("crab-user-1", "They met.", 5)
    assert memory.archive("crab-user-1", "They met.", 9) == first
    replaced = memory.archive("crab-user-1", "They met again.", 9)
    assert replaced == MemoryEntry(1, 9, EntryKind.ARCHIVE, "crab-user-1", "They met again.")
    memory.apply(AddEntry("note", ""))
    with pytest.raises(NameTakenError):
        memory.archive("note", "They parted.")


@pytest.mark.req("memory.stores")
def test_an_id_is_never_assigned_again(store: StoreDriver) -> None:
    with store.open() as memory:
        for name in ("a", "b"):
            memory.apply(AddEntry(name, ""))
        memory.apply(RemoveEntry("b"))
    with store.open() as memory:
        assert memory.apply(AddEntry("c", "")).id == 3


@pytest.mark.req("memory.stores")
def test_a_missing_memory_is_empty_and_is_created_by_its_first_write(
    store: StoreDriver,
) -> None:
    with store.open() as memory:
        assert not memory.entries()
        assert not memory.search("anything")
        with pytest.raises(UnknownEntryError):
            memory.apply(RemoveEntry("x"))
        with pytest.raises(UnknownEntryError, match="no memory called"):
            store.export_memory()
        memory.apply(AddEntry("x", ""))
    assert store.names() == ["crab"]


@pytest.mark.req("memory.stores.text")
@pytest.mark.parametrize("text", ["\0", "a\0b", "日記\n", "\x7f\x1b[0m", "\\0 \\x00", "\U0010ffff"])
def test_any_text_is_stored(store: StoreDriver, text: str) -> None:
    with store.open() as memory:
        stored = memory.apply(AddEntry(f"name {text}.", text, (f"alias {text}.",)))
    with store.open() as memory:
        assert memory.entries() == [stored]
        assert memory.get(f"alias {text}.") == stored == memory.get(f"name {text}.")
        assert stored.content == text


@pytest.mark.req("memory.stores")
def test_replacing_renumbers_and_keeps_every_kind(store: StoreDriver) -> None:
    topic = MemoryEntry(9, 2**64 - 1, EntryKind.TOPIC, "tides", "twice a day", ("ebb", "flood"))
    with store.open() as memory:
        memory.apply(AddEntry("old", ""))
        memory.replace([*ENTRIES, topic])
        before = memory.entries()
        assert [(entry.id, entry.name) for entry in before] == [
            (1, "deploy"),
            (2, "crab-user-1"),
            (3, "日記"),
            (4, "tides"),
        ]
        assert (before[3].created_at, before[3].kind) == (2**64 - 1, EntryKind.TOPIC)
        with pytest.raises(NameTakenError):
            memory.replace([*ENTRIES, *ENTRIES])
        assert memory.entries() == before
    with store.open() as memory:
        assert memory.entries() == before
        assert memory.apply(AddEntry("next", "")).id == 5


@pytest.mark.req("memory.stores")
def test_a_memory_is_dumped_and_loaded(store: StoreDriver, tmp_path: Path) -> None:
    with store.open() as memory:
        for op in OPS:
            memory.apply(op)
        memory.dump(tmp_path / "book")
        names = {entry.name for entry in memory.entries()}
        memory.apply(AddEntry("later", ""))
        memory.load(tmp_path / "book")
        assert {entry.name for entry in memory.entries()} == names


@pytest.mark.req("memory.stores.order")
def test_searches_and_lists_have_the_same_order_in_every_store(
    store: StoreDriver, tmp_path: Path
) -> None:
    """Whatever was written in between, and also for a new reader."""
    dice = random.Random(5)
    words = [f"w{number}" for number in range(30)]
    elsewhere = FileStoreDriver(tmp_path / "elsewhere").open()
    memory = store.open()
    for number in range(150):
        op: MemoryOperation = AddEntry(f"n{number}", " ".join(dice.choices(words, k=6)))
        if number % 5 == 4:
            op = RemoveEntry(dice.choice(memory.entries()).name)
        elif number % 3 == 2:
            op = UpdateEntry(dice.choice(memory.entries()).name, " ".join(dice.choices(words, k=6)))
        assert memory.apply(op) == elsewhere.apply(op)
    memory.close()
    with store.open() as again:
        for current in (memory, again):
            assert current.entries() == elsewhere.entries()
            for _ in range(50):
                query = " ".join(dice.choices(words, k=3))
                assert current.search(query, 20) == elsewhere.search(query, 20)
    elsewhere.close()


# ── Whole memories ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.stores.whole")
def test_the_bytes_of_a_file_are_imported_and_exported_unchanged(store: StoreDriver) -> None:
    data = encode_memory(ENTRIES, 17)
    store.import_memory("crab", data)
    store.import_memory("crab/user", VECTOR)
    assert store.names() == ["crab", "crab/user"]
    assert store.export_memory("crab") == data
    assert store.export_memory("crab/user") == encode_memory(
        decode_memory(VECTOR).entries, decode_memory(VECTOR).next_id
    )
    with store.open() as memory:
        assert memory.entries() == list(ENTRIES)
        assert memory.apply(AddEntry("next", "")).id == 17


@pytest.mark.req("memory.stores.whole")
@settings(max_examples=15, suppress_health_check=SLOW_FIXTURE)
@given(entries=draw_entries())
def test_any_memory_moves_from_one_store_to_the_other_and_back(
    store: StoreDriver, tmp_path_factory: pytest.TempPathFactory, entries: list[MemoryEntry]
) -> None:
    data = encode_memory(entries, len(entries) + 3)
    name = f"crab/{len(store.names())}"
    store.import_memory(name, data)
    assert store.export_memory(name) == data
    files = FileStoreDriver(tmp_path_factory.mktemp("files"))
    files.import_memory(name, store.export_memory(name))
    assert files.export_memory(name) == data


@pytest.mark.req("memory.stores.whole")
def test_names_that_another_program_used_twice_are_kept(store: StoreDriver) -> None:
    twins = [MemoryEntry(number, 1, EntryKind.NOTE, "twin", str(number)) for number in (1, 2)]
    store.import_memory("crab", encode_memory(twins, 3))
    with store.open() as memory:
        assert memory.entries() == twins
        assert memory.apply(RemoveEntry("twin")) == twins[0]
        assert memory.get("twin") == twins[1]


@pytest.mark.req("memory.stores.whole")
def test_an_import_neither_overwrites_a_memory_nor_accepts_damaged_data(
    store: StoreDriver,
) -> None:
    store.import_memory("crab", VECTOR)
    with pytest.raises(NameTakenError, match="already"):
        store.import_memory("crab", encode_memory(ENTRIES, 17))
    with pytest.raises(BadCrmemError):
        store.import_memory("other", VECTOR[:-1])
    assert store.names() == ["crab"]
    assert store.export_memory() == VECTOR
