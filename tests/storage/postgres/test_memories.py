"""Memories in a database: several daemons write them, and each sees the changes of all."""

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crabtalk.hooks import MemoryPool
from crabtalk.memory import (
    AddEntry,
    EntryKind,
    EntryKindError,
    Memory,
    MemoryEntry,
    MemoryOperation,
    MemoryStoreError,
    MemoryUnavailableError,
    NameTakenError,
    RemoveEntry,
    RenameEntry,
    UnknownEntryError,
    UpdateEntry,
)
from crabtalk.memory.crmem import decode_memory, encode_memory
from crabtalk.storage.errors import StorageUnavailableError
from crabtalk.storage.postgres import memory_backend, memory_entries
from crabtalk.storage.postgres.database import PostgresDatabase
from crabtalk.storage.postgres.memory_backend import PostgresMemoryBackend
from crabtalk.storage.postgres.memory_store import (
    NAMES_OF,
    RENAME_MANY,
    RENAME_ONE,
    PostgresMemoryStore,
)
from tests.memory.memory_samples import ENTRIES, read_fixed_time
from tests.memory.store_drivers import PostgresStoreDriver, create_tables, open_postgres_stores
from tests.memory.test_state_machine import OPS, MemoryModel
from tests.postgres import PostgresServer


@asynccontextmanager
async def open_daemons(url: str, count: int = 2) -> AsyncIterator[list[PostgresMemoryStore]]:
    """The memory stores of `count` daemons, each with its own connections."""
    databases = [PostgresDatabase(url) for _ in range(count)]
    await create_tables(databases[0])
    try:
        yield [PostgresMemoryStore(database, now=read_fixed_time) for database in databases]
    finally:
        for database in databases:
            await database.close()


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(url, pool=1)
    try:
        yield database
    finally:
        await database.close()


async def apply_ops(memory: Memory, *ops: MemoryOperation) -> None:
    for op in ops:
        await asyncio.to_thread(memory.apply, op)


def list_names(memory: Memory) -> list[str]:
    return [entry.name for entry in memory.entries()]


# ── Several daemons ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.fleet.news")
async def test_a_daemon_gets_changes_of_others_before_it_uses_a_memory(postgres_url: str) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine, theirs = await here.open("crab"), await there.open("crab")
        await apply_ops(mine, AddEntry("coffee", "two sugars", ("cup",)), AddEntry("tea", "none"))
        assert theirs.entries() == []
        await there.catch_up(theirs)
        assert theirs.entries() == mine.entries()
        await apply_ops(
            mine, RenameEntry("coffee", "mocha"), RemoveEntry("tea"), AddEntry("milk", "oat")
        )
        await there.catch_up(theirs)
        assert theirs.entries() == mine.entries()
        assert theirs.get("coffee") is None
        assert theirs.get("cup") == mine.get("mocha")
        assert theirs.search("oat sugars none") == mine.search("oat sugars none")


@pytest.mark.req("memory.fleet.write")
async def test_a_write_first_applies_changes_of_others(postgres_url: str) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine, theirs = await here.open("crab"), await there.open("crab")
        await apply_ops(mine, AddEntry("one", "first"))
        await apply_ops(theirs, AddEntry("two", "second"))  # it does not know of the first yet
        assert [(entry.id, entry.name) for entry in theirs.entries()] == [(1, "one"), (2, "two")]
        await apply_ops(mine, UpdateEntry("one", "changed"))
        assert list_names(mine) == ["one", "two"]


@pytest.mark.req("memory.fleet.write")
@pytest.mark.parametrize(
    ("first", "second", "refusal"),
    [
        (AddEntry("new", ""), AddEntry("new", ""), NameTakenError),
        (AddEntry("other", "", ("new",)), RenameEntry("note", "new"), NameTakenError),
        (RemoveEntry("note"), UpdateEntry("note", "changed"), UnknownEntryError),
        (RenameEntry("note", "new"), RemoveEntry("note"), UnknownEntryError),
    ],
    ids=["a name twice", "an alias", "changed and gone", "renamed"],
)
async def test_a_write_is_checked_against_the_current_entries(
    postgres_url: str,
    first: MemoryOperation,
    second: MemoryOperation,
    refusal: type[MemoryStoreError],
) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine = await here.open("crab")
        await apply_ops(mine, AddEntry("note", "kept"))
        theirs = await there.open("crab")
        await apply_ops(mine, first)
        with pytest.raises(refusal):
            await apply_ops(theirs, second)
        assert theirs.entries() == mine.entries()
        assert await there.export_memory("crab") == mine.encode()


@pytest.mark.req("memory.fleet.write")
async def test_an_operation_on_a_note_is_refused_if_it_became_an_archive(
    postgres_url: str,
) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine = await here.open("crab")
        await apply_ops(mine, AddEntry("past", "a note"))
        theirs = await there.open("crab")
        await apply_ops(mine, RemoveEntry("past"))
        await asyncio.to_thread(mine.archive, "past", "They met.", 5)
        for op in (RemoveEntry("past", kind=EntryKind.NOTE), UpdateEntry("past", "rewritten")):
            with pytest.raises(EntryKindError):
                await apply_ops(theirs, op)
        assert (
            theirs.entries()
            == mine.entries()
            == [MemoryEntry(2, 5, EntryKind.ARCHIVE, "past", "They met.")]
        )


@pytest.mark.req("memory.fleet.write")
async def test_daemons_that_create_a_memory_at_once_create_one(postgres_url: str) -> None:
    async with open_daemons(postgres_url, 3) as fleet:
        opened = [await memories.open("crab") for memories in fleet]
        await asyncio.gather(
            *(apply_ops(memory, AddEntry(f"n{n}", "")) for n, memory in enumerate(opened))
        )
        for memories, memory in zip(fleet, opened, strict=True):
            await memories.catch_up(memory)
            assert sorted(list_names(memory)) == ["n0", "n1", "n2"]
            assert [entry.id for entry in memory.entries()] == [1, 2, 3]


@pytest.mark.req("memory.fleet.race")
async def test_daemons_that_race_lose_nothing_and_end_with_the_same_entries(
    postgres_url: str,
) -> None:
    """A name that both add goes to one of them. A writer can find an entry as soon as its write has
    succeeded."""
    rounds = 100
    stored: list[set[str]] = [set(), set()]
    checks = 0
    async with open_daemons(postgres_url) as fleet:
        opened = [await memories.open("crab") for memories in fleet]

        async def write(daemon_index: int) -> None:
            random_source = random.Random(daemon_index)
            memory = opened[daemon_index]
            for number in range(rounds):
                await apply_ops(
                    memory,
                    AddEntry(f"of {daemon_index}, {number}", "tide " * random_source.randint(1, 5)),
                )
                stored[daemon_index].add(f"of {daemon_index}, {number}")
                try:
                    await apply_ops(memory, AddEntry(f"shared {number}", str(daemon_index)))
                    stored[daemon_index].add(f"shared {number}")
                except NameTakenError:
                    pass
                if number % 7 == 6:
                    removed = f"of {daemon_index}, {number - random_source.randrange(3)}"
                    if removed in stored[daemon_index]:
                        stored[daemon_index].remove(removed)
                        await apply_ops(memory, RemoveEntry(removed))

        async def check_entries(daemon_index: int) -> None:
            """Check the memory while this and the other daemon write it."""
            nonlocal checks
            while not writers.done():
                expected = stored[0] | stored[1]
                await fleet[daemon_index].catch_up(opened[daemon_index])
                # A missing name was removed meanwhile: writers first take it out of `stored`.
                missing = expected - set(list_names(opened[daemon_index]))
                assert not missing & (stored[0] | stored[1])
                checks += 1

        writers = asyncio.gather(write(0), write(1))
        await asyncio.gather(check_entries(0), check_entries(1))
        await writers
        assert checks > 20
        assert not stored[0] & stored[1]
        assert {f"shared {number}" for number in range(rounds)} <= stored[0] | stored[1]
        for memories, memory in zip(fleet, opened, strict=True):
            await memories.catch_up(memory)
            assert sorted(list_names(memory)) == sorted(stored[0] | stored[1])
            for daemon_index in (0, 1):
                for name in stored[daemon_index]:
                    entry = memory.get(name)
                    assert entry is not None
                    assert not name.startswith("shared") or entry.content == str(daemon_index)
        assert opened[0].encode() == opened[1].encode() == await fleet[0].export_memory("crab")
        assert opened[0].search("tide", 50) == opened[1].search("tide", 50)


@pytest.mark.req("memory.fleet.race")
async def test_many_threads_of_one_daemon_lose_nothing_either(postgres_url: str) -> None:
    async with open_daemons(postgres_url, 1) as (memories,):
        memory = await memories.open("crab")
        await asyncio.gather(
            *(apply_ops(memory, AddEntry(f"n{number}", "")) for number in range(60))
        )
        assert sorted(list_names(memory)) == sorted(f"n{number}" for number in range(60))
        assert await memories.export_memory("crab") == memory.encode()


@pytest.mark.req("memory.fleet.race")
async def test_late_remote_changes_do_not_undo_newer_ones(postgres_url: str) -> None:
    """A write that is faster than they are already applies the same changes."""
    async with open_daemons(postgres_url) as (here, there):
        mine, theirs = await here.open("crab"), await there.open("crab")
        await apply_ops(theirs, AddEntry("note", "first"), AddEntry("other", ""))
        backend = mine._backend
        assert isinstance(backend, PostgresMemoryBackend)
        late = await backend.fetch_changes()
        assert late is not None
        await apply_ops(mine, AddEntry("own", ""))
        await apply_ops(mine, UpdateEntry("note", "second"), RemoveEntry("other"))
        before = mine.encode()
        await asyncio.to_thread(mine.apply_remote, late.to_remote_changes())
        assert mine.encode() == before == await there.export_memory("crab")
        await apply_ops(mine, AddEntry("next", ""))
        assert await there.export_memory("crab") == mine.encode()


# ── Pruned journals ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.fleet.reload")
async def test_a_daemon_that_missed_more_than_the_journal_has_reads_the_whole_memory(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement in ("FIRST_PUT", "NEXT_PUT", "NEXT_DROP"):
        text = getattr(memory_backend, statement)
        pruned = text.replace(f"% {memory_backend.PRUNED_EVERY} = 0", "% 2 = 0")
        pruned = pruned.replace(f"l.seq - {memory_backend.MAX_JOURNAL_ROWS}", "l.seq - 4")
        assert pruned.count("% 2 = 0") == pruned.count("l.seq - 4") == 1
        monkeypatch.setattr(memory_backend, statement, pruned)
    async with open_daemons(postgres_url, 3) as (here, there, far):
        mine, theirs, behind = [await store.open("crab") for store in (here, there, far)]
        for number in range(20):
            await apply_ops(mine, AddEntry(f"n{number}", ""), UpdateEntry("n0", str(number)))
            if number % 3 == 0:
                await apply_ops(
                    mine, RemoveEntry(f"n{number}") if number else UpdateEntry("n0", "kept")
                )
            await there.catch_up(theirs)
            assert theirs.entries() == mine.entries()
        count = await fetch_number(postgres_url, "SELECT count(*) FROM memory_journal")
        assert 4 <= count <= 6
        await far.catch_up(behind)
        assert behind.entries() == mine.entries()
        assert behind.encode() == mine.encode()
        late = await there.open("crab")
        await apply_ops(mine, *(AddEntry(f"m{number}", "") for number in range(10)))
        with pytest.raises(NameTakenError):
            await apply_ops(late, AddEntry("m0", ""))
        assert late.entries() == mine.entries()


async def fetch_number(url: str, statement: str) -> int:
    async with open_database(url) as database:
        ((number,),) = await database.fetch(statement)
        return int(number)


@pytest.mark.req("memory.fleet.reload")
async def test_a_memory_that_was_replaced_is_replaced_everywhere(postgres_url: str) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine, theirs = await here.open("crab"), await there.open("crab")
        await apply_ops(mine, AddEntry("old", ""), AddEntry("older", ""))
        await there.catch_up(theirs)
        await asyncio.to_thread(mine.replace, ENTRIES)
        await apply_ops(mine, AddEntry("after", ""))
        await there.catch_up(theirs)
        assert theirs.entries() == mine.entries()
        await asyncio.to_thread(theirs.replace, [])  # although it has not caught up
        await apply_ops(mine, AddEntry("anew", ""))
        assert [(entry.id, entry.name) for entry in mine.entries()] == [(1, "anew")]


@pytest.mark.req("memory.fleet.reload")
async def test_a_memory_of_several_slices_is_stored_completely_or_not_at_all(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_entries, "MAX_SLICE_BYTES", 1000)
    entries = [MemoryEntry(0, n, EntryKind.NOTE, f"n{n}", "x" * 90, (f"a{n}",)) for n in range(300)]
    async with open_daemons(postgres_url) as (here, there):
        mine = await here.open("crab")
        await asyncio.to_thread(mine.replace, entries)
        assert (await there.open("crab")).entries() == mine.entries()
        before = mine.encode()
        too_late = 10**21  # more than the column holds, in the last of many slices
        worse = [*entries, MemoryEntry(0, too_late, EntryKind.NOTE, "last", "")]
        with pytest.raises(MemoryStoreError):
            await asyncio.to_thread(mine.replace, worse)
        assert mine.encode() == before == await there.export_memory("crab")


# ── Unreachable databases ───────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.fleet.away")
async def test_an_unreachable_database_is_reported_and_changes_nothing(
    private_postgres: PostgresServer,
) -> None:
    async with open_daemons(private_postgres.url, 1) as (memories,):
        memory = await memories.open("crab")
        await apply_ops(memory, AddEntry("coffee", "two sugars"))
        before = memory.entries(), memory.search("sugars"), memory.statistics()
        private_postgres.stop("immediate")
        for op in (AddEntry("tea", ""), UpdateEntry("coffee", "none"), RemoveEntry("coffee")):
            with pytest.raises(MemoryUnavailableError, match="cannot be used now") as caught:
                await apply_ops(memory, op)
            assert caught.value.code == 503
        with pytest.raises(MemoryUnavailableError, match="try again in a moment"):
            await asyncio.to_thread(memory.replace, [])
        with pytest.raises(MemoryUnavailableError):
            await memories.catch_up(memory)
        with pytest.raises(MemoryUnavailableError):
            await memories.open("other")
        assert (memory.entries(), memory.search("sugars"), memory.statistics()) == before
        private_postgres.start()
        await catch_up_when_back(memories, memory)
        await apply_ops(memory, AddEntry("tea", "none"))
        assert list_names(memory) == ["coffee", "tea"]
        assert await memories.export_memory("crab") == memory.encode()


async def catch_up_when_back(memories: PostgresMemoryStore, memory: Memory) -> None:
    """Retry until the database can be reached again."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await memories.catch_up(memory)
            except MemoryUnavailableError:
                await asyncio.sleep(0.02)


@pytest.mark.req("memory.fleet.away")
async def test_a_write_to_a_stalled_database_times_out(
    private_postgres: PostgresServer,
) -> None:
    async with open_database(private_postgres.url) as database:
        await create_tables(database)
        memories = PostgresMemoryStore(database, wait=0.3, now=read_fixed_time)
        memory = await memories.open("crab")
        await apply_ops(memory, AddEntry("coffee", "two sugars"))
        before = memory.entries()
        private_postgres.stall()
        try:
            with pytest.raises(MemoryUnavailableError, match="whether it was kept shows"):
                await apply_ops(memory, AddEntry("tea", ""))
            assert memory.entries() == before
        finally:
            private_postgres.resume()
        # After catching up, RAM has the same entries as the database.
        await catch_up_when_back(memories, memory)
        await apply_ops(memory, AddEntry("milk", ""))
        assert await memories.export_memory("crab") == memory.encode()
        assert {"coffee", "milk"} <= set(list_names(memory))


@pytest.mark.req("memory.fleet.away")
async def test_a_write_whose_answer_was_lost_is_found_later(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost after the database has written, but before it answers."""
    async with open_daemons(postgres_url, 1) as (memories,):
        memory = await memories.open("crab")
        await apply_ops(memory, AddEntry("coffee", ""))
        change = PostgresDatabase.change

        async def change_without_answer(
            database: PostgresDatabase, statement: str, *values: object
        ) -> object:
            await change(database, statement, *values)
            raise StorageUnavailableError("the connection was lost")

        monkeypatch.setattr(PostgresDatabase, "change", change_without_answer)
        with pytest.raises(MemoryUnavailableError, match="the connection was lost"):
            await apply_ops(memory, AddEntry("tea", "once"))
        assert list_names(memory) == ["coffee"]
        monkeypatch.undo()
        with pytest.raises(NameTakenError):  # trying again does not do it twice
            await apply_ops(memory, AddEntry("tea", "once"))
        assert list_names(memory) == ["coffee", "tea"]


@pytest.mark.req("memory.fleet.threads")
async def test_writing_on_the_loop_is_an_error_rather_than_a_deadlock(postgres_url: str) -> None:
    async with open_daemons(postgres_url, 1) as (memories,):
        memory = await memories.open("crab")
        with pytest.raises(RuntimeError, match="written from a thread"):
            memory.apply(AddEntry("tea", ""))
        with pytest.raises(RuntimeError, match="written from a thread"):
            memory.replace([])
        await apply_ops(memory, AddEntry("tea", ""))
        assert list_names(memory) == ["tea"]


def test_a_write_after_the_loop_has_ended_is_an_error(postgres_url: str) -> None:
    with open_postgres_stores(postgres_url, 1) as (store,):
        memory = store.open()
    with pytest.raises(MemoryUnavailableError, match="it is closed"):
        memory.apply(AddEntry("tea", ""))
    assert memory.entries() == []


# ── Names ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.fleet.rename")
async def test_a_rename_keeps_existing_memories_of_the_new_name(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_daemons(postgres_url, 1) as (memories,):
        for name in ("a", "a/one", "a/two", "a0", "ab", "b/one", "c"):
            await memories.import_memory(
                name, encode_memory([MemoryEntry(1, 1, EntryKind.NOTE, name, "")], 2)
            )
        with caplog.at_level(logging.WARNING):
            await memories.rename("a", "b")
        assert await memories.list_names() == ["a/one", "a/two", "a0", "ab", "b", "b/one", "c"]
        assert "b remembers something already; a/one stays as it is" in caplog.text
        await memories.rename("a", "d")
        await memories.rename("b", "c")
        assert await memories.list_names() == ["a0", "ab", "b", "c", "c/one", "d/one", "d/two"]
        for new_name, old_name in {"b": "a", "c": "c", "c/one": "b/one", "d/two": "a/two"}.items():
            assert decode_memory(await memories.export_memory(new_name)).entries[0].name == old_name


@pytest.mark.req("memory.fleet.rename")
async def test_an_open_renamed_memory_is_not_confused_with_a_new_one_of_its_name(
    postgres_url: str,
) -> None:
    async with open_daemons(postgres_url) as (here, there):
        first = await here.open("crab")
        await apply_ops(first, AddEntry("old", "of the first"), AddEntry("older", ""))
        theirs, target = await there.open("crab"), await there.open("crayfish")
        await here.rename("crab", "crayfish")
        await there.catch_up(target)
        assert list_names(target) == ["old", "older"]
        second = await here.open("crab")
        await apply_ops(second, AddEntry("new", "of the second"), AddEntry("newer", ""))
        await there.catch_up(theirs)
        assert theirs.entries() == second.entries()
        await apply_ops(first, AddEntry("newest", ""))  # without catching up first
        assert list_names(first) == ["new", "newer", "newest"]
        assert list_names(target) == ["old", "older"]


@pytest.mark.req("memory.fleet.rename")
async def test_a_memory_that_was_renamed_and_back_needs_no_reload(postgres_url: str) -> None:
    async with open_daemons(postgres_url) as (here, there):
        mine = await here.open("crab")
        await apply_ops(mine, AddEntry("a", ""))
        theirs = await there.open("crab")
        await here.rename("crab", "crayfish")
        await there.catch_up(theirs)
        assert theirs.entries() == []
        await here.rename("crayfish", "crab")
        await apply_ops(theirs, AddEntry("b", ""))
        assert list_names(theirs) == ["a", "b"]


# ── Pools and plans ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.fleet.news")
async def test_each_use_of_a_memory_has_the_changes_of_all_daemons(postgres_url: str) -> None:
    async with open_daemons(postgres_url) as fleet:
        here, there = MemoryPool(fleet[0], most=2), MemoryPool(fleet[1])
        for number in range(6):
            writer, reader = (here, there) if number % 2 else (there, here)
            for sender in ("", "user", "tg:1"):
                async with writer.acquire("crab", sender) as memory:
                    await apply_ops(memory, AddEntry(f"n{number}", sender))
                async with reader.acquire("crab", sender) as memory:
                    assert list_names(memory) == [f"n{n}" for n in range(number + 1)]
                    assert {entry.content for entry in memory.entries()} == {sender}
        assert here.statistics() == {"open": 2, "used": 0}
        assert there.statistics() == {"open": 3, "used": 0}
        await here.rename("crab", "crayfish")
        async with there.acquire("crayfish") as memory:
            assert len(memory.entries()) == 6
        async with there.acquire("crab") as memory:
            assert memory.entries() == []
        await here.close()
        await there.close()


@pytest.mark.one_loop
@pytest.mark.req("memory.fleet.cost")
async def test_no_statement_scans_whole_tables(postgres_url: str) -> None:
    async with open_daemons(postgres_url, 1), open_database(postgres_url) as database:
        async with database.transaction() as connection:
            await connection.execute(
                "INSERT INTO memories (name, seq, next_id) "
                "SELECT 'n' || n, 20, 21 FROM generate_series(1, 2000) n;"
                "INSERT INTO memory_entries SELECT m.id, n, 1, 0, 'name', 'text', '{}' "
                "FROM memories m, generate_series(1, 20) n;"
                "INSERT INTO memory_journal SELECT m.id, n, n "
                "FROM memories m, generate_series(1, 20) n;"
            )
        await database.change("ANALYZE")
        entry = [7, 1, 0, b"name", b"text", [b"alias"]]
        statements: list[tuple[str, list[object]]] = [
            (memory_backend.SINCE, ["n5", 5, 18]),
            (memory_entries.SELECT_ALL, ["n5"]),
            (memory_backend.NEXT_PUT, ["n5", 8, *entry, 5, 20]),
            (memory_backend.NEXT_DROP, ["n5", 0, 7, 5, 21]),
            (RENAME_ONE, ["n5", "m"]),
            (RENAME_MANY, ["n5", "m"]),
            (NAMES_OF, ["m"]),
        ]
        for statement, values in statements:
            plan = await database.change(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}", *values)
            text = "\n".join(row[0] for row in plan)
            assert "Index" in text
            assert "Seq Scan" not in text, text


@pytest.mark.one_loop
@pytest.mark.req("memory.fleet.cost")
async def test_a_plan_made_for_a_small_memory_is_good_for_a_large_one(postgres_url: str) -> None:
    """Connections keep their plans, so a plan for one entry must be cheap for thousands."""
    statements = {
        memory_backend.SINCE: "'crab', 1, {seq}",
        memory_backend.NEXT_PUT: "'crab', 8, 7, 1, 0, 'n', 't', '{{}}', 1, {seq}",
        memory_backend.NEXT_DROP: "'crab', 0, 7, 1, {seq}",
    }
    async with (
        open_daemons(postgres_url, 1) as (memories,),
        open_database(postgres_url) as database,
    ):
        await memories.import_memory("crab", encode_memory(ENTRIES[:1], 2))
        async with database.transaction() as connection:
            for table in ("memories", "memory_entries", "memory_journal"):
                # The plans must not depend on statistics from autovacuum.
                await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        async with database.transaction() as connection:
            for number, (statement, values) in enumerate(statements.items()):
                await connection.execute(f"PREPARE s{number} AS {statement}")
                for _ in range(10):
                    await connection.execute(f"EXECUTE s{number}({values.format(seq=99)})")
            await connection.execute(
                "INSERT INTO memory_entries SELECT 1, n, 1, 0, 'name', 'text', '{}' "
                "FROM generate_series(2, 5000) n"
            )
            for number, values in enumerate(statements.values()):
                plan = await connection.fetch(
                    f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE s{number}({values.format(seq=1)})"
                )
                text = "\n".join(row[0] for row in plan)
                touched = [float(count) for count in re.findall(r"actual rows=([\d.]+)", text)]
                assert touched, text
                assert max(touched) < 10, text
                # The next statement needs the memory at this seq.
                await connection.execute("UPDATE memories SET seq = 1")
                await connection.execute("DELETE FROM memory_journal WHERE seq > 1")


# ── State machine ───────────────────────────────────────────────────────────────────────────────


class FleetMachine(RuleBasedStateMachine):
    """Two daemons that write with or without the changes of the other."""

    stores: list[PostgresStoreDriver]
    machines_created = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).machines_created += 1
        self.name = f"crab/{self.machines_created}"
        self.opened = [store.open(self.name) for store in self.stores]
        self.model = MemoryModel()

    @rule(op=OPS, daemon_index=st.integers(0, 1), is_current=st.booleans())
    def apply(self, op: MemoryOperation, daemon_index: int, is_current: bool) -> None:
        memory = self.opened[daemon_index]
        if is_current:
            self.stores[daemon_index].catch_up(memory)
        is_stale = memory.entries() != list(self.model.entries.values())
        refusal = self.model.expected_error(op)
        raised: type[MemoryStoreError] | None = None
        try:
            memory.apply(op)
        except MemoryStoreError as error:
            raised = type(error)
        # A stale memory may refuse too much, but never accepts an invalid operation.
        assert raised is refusal or (raised is not None and is_stale)
        if raised is not None:
            return
        self.model.apply(op)
        assert memory.entries() == list(self.model.entries.values())

    @rule(daemon_index=st.integers(0, 1))
    def replace(self, daemon_index: int) -> None:
        self.stores[daemon_index].catch_up(self.opened[daemon_index])
        self.opened[daemon_index].replace(self.opened[daemon_index].entries())
        entries = list(self.model.entries.values())
        self.model.entries = {
            number: MemoryEntry(number, entry.created_at, entry.kind, *entry_texts(entry))
            for number, entry in enumerate(entries, 1)
        }
        self.model.next_id = len(entries) + 1

    @rule(daemon_index=st.integers(0, 1))
    def reopen(self, daemon_index: int) -> None:
        self.opened[daemon_index].close()
        self.opened[daemon_index] = self.stores[daemon_index].open(self.name)
        assert self.opened[daemon_index].entries() == list(self.model.entries.values())

    @rule(daemon_index=st.integers(0, 1))
    def catch_up(self, daemon_index: int) -> None:
        memory = self.opened[daemon_index]
        self.stores[daemon_index].catch_up(memory)
        assert memory.entries() == list(self.model.entries.values())
        for name in ("ash", "birch", "cedar", "elm", "日記", "näme"):
            assert memory.get(name) == self.model.find(name)
        fresh = self.stores[daemon_index].open(self.name)
        for query in ("ash birch", "日", "name", "elm cedar"):
            assert memory.search(query, 9) == fresh.search(query, 9)

    @invariant()
    def the_database_has_what_the_model_has(self) -> None:
        if self.name not in self.stores[0].names():
            assert not self.model.entries
            return
        stored = decode_memory(self.stores[0].export_memory(self.name))
        assert stored.entries == list(self.model.entries.values())
        assert stored.next_id == self.model.next_id


def entry_texts(entry: MemoryEntry) -> tuple[str, str, tuple[str, ...]]:
    return entry.name, entry.content, entry.aliases


def run_machine(url: str, examples: int, steps: int) -> None:
    with open_postgres_stores(url, 2) as stores:
        machine = type("Machine", (FleetMachine,), {"stores": stores})
        run_state_machine_as_test(
            machine, settings=settings(max_examples=examples, stateful_step_count=steps)
        )


@pytest.mark.req("memory.fleet.model")
def test_a_shared_memory_works_like_a_dictionary(postgres_url: str) -> None:
    run_machine(postgres_url, 15, 20)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.req("memory.fleet.model")
def test_a_shared_memory_works_like_a_dictionary_for_long(postgres_url: str) -> None:
    run_machine(postgres_url, 300, 50)
