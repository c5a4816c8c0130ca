"""The guarantees of the Storage protocol; each test runs on every backend."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crabtalk.model.messages import Message
from crabtalk.storage import (
    ConversationMeta,
    EventRecord,
    FileStorage,
    MarkerRecord,
    MemoryStorage,
    MessageRecord,
    MetaRecord,
    Pair,
    Record,
    Storage,
    StorageError,
    StoredConversation,
    make_log_name,
)
from crabtalk.storage.postgres import PostgresStorage
from tests.postgres import create_schema
from tests.storage.backends import BACKENDS, open_backend
from tests.storage.sample_records import (
    AT,
    PAIR,
    log_path,
    make_every_kind,
    make_marker,
    make_message,
    make_opening,
)

T = TypeVar("T")
OTHER = Pair("crab", "user")


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Storage]:
    async with open_backend(request.param, home, request) as backend:
        yield backend


async def load_stored(storage: Storage, pair: Pair = PAIR) -> StoredConversation:
    stored = await storage.load_and_repair(pair)
    assert stored is not None
    return stored


@pytest.mark.req("storage.both")
async def test_appended_records_come_back_in_order(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening()], create=True)
    for number in range(10):
        await storage.append(PAIR, [make_message(2 * number), make_message(2 * number + 1)])
    stored = await load_stored(storage)
    assert stored.messages == tuple(map(make_message, range(20)))
    assert stored.meta == ConversationMeta(*PAIR, created_at=AT, updated_at=AT, message_count=20)
    assert stored.marker is None
    assert await storage.read_conversation(PAIR) == stored


async def test_every_kind_of_record_can_be_stored(storage: Storage) -> None:
    await storage.append(PAIR, make_every_kind(), create=True)
    stored = await load_stored(storage)
    assert [record.id for record in stored.messages] == [3, 4]
    assert stored.marker == make_marker(3)
    assert stored.meta == ConversationMeta(*PAIR, AT, "Two files", AT, 5, "They talked.")


async def test_a_missing_conversation_is_none(storage: Storage) -> None:
    await storage.append(OTHER, [make_opening(OTHER)], create=True)
    assert await storage.load_and_repair(PAIR) is None
    assert await storage.read_conversation(PAIR) is None
    assert await storage.read_meta(PAIR) is None
    assert await storage.read_page(PAIR, 0, 10) is None
    assert await storage.list_archives(PAIR) is None
    assert await storage.resolve_handle(make_log_name(PAIR)) is None
    assert not await storage.delete_conversation(PAIR)
    with pytest.raises(StorageError, match="gone"):
        await storage.append(PAIR, [make_message(0)])
    assert await storage.load_and_repair(PAIR) is None


async def test_an_existing_conversation_cannot_be_created_again(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(title="first"), make_message(0)], create=True)
    with pytest.raises(StorageError):
        await storage.append(PAIR, [make_opening(title="second")], create=True)
    stored = await load_stored(storage)
    assert stored.meta.title == "first"
    assert stored.messages == (make_message(0),)


async def test_of_many_concurrent_creates_one_succeeds(storage: Storage) -> None:
    results = await asyncio.gather(
        *[storage.append(PAIR, [make_opening(title=str(n))], create=True) for n in range(20)],
        return_exceptions=True,
    )
    done = [number for number, result in enumerate(results) if result is None]
    assert len(done) == 1
    assert all(result is None or isinstance(result, StorageError) for result in results)
    assert (await load_stored(storage)).meta.title == str(done[0])


async def test_appends_to_many_at_once_keep_the_order_of_each(storage: Storage) -> None:
    pairs = [Pair("crab", f"user {n}") for n in range(50)]
    await asyncio.gather(*[storage.append(p, [make_opening(p)], create=True) for p in pairs])
    await asyncio.gather(*[storage.append(p, [make_message(n)]) for n in range(4) for p in pairs])
    for pair in pairs:
        assert (await load_stored(storage, pair)).messages == tuple(map(make_message, range(4)))


async def test_a_title_with_a_nul_and_a_mode_can_be_kept_together(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening()], create=True)
    await storage.append(PAIR, [MetaRecord(title='a\0 "mode":"plan"', mode="auto")])
    stored = await load_stored(storage)
    assert (stored.meta.title, stored.meta.mode) == ('a\0 "mode":"plan"', "auto")
    ((_, meta),) = await storage.list_conversations()
    assert (meta.title, meta.mode) == ('a\0 "mode":"plan"', "auto")


async def test_half_a_surrogate_pair_does_not_fail_an_append(storage: Storage) -> None:
    message = Message("assistant", "half \ud83e", reasoning="\udd80", opaque={"\ud83e": "\ud83e"})
    half = msgspec.structs.replace(make_marker(1), summary="so \ud83e far")
    await storage.append(PAIR, [make_opening(), MessageRecord(0, AT, message)], create=True)
    await storage.append(PAIR, [MetaRecord(title="\ud83e"), half, make_message(1, "\udd80 x")])
    stored = await load_stored(storage)
    assert stored.meta.message_count == 2
    assert stored.messages[0].message.text.endswith(" x")
    assert stored.marker is not None
    assert stored.marker.summary.endswith(" far")
    page = await storage.read_page(PAIR, 0, 10)
    assert page is not None
    assert page.messages[0].message.text.startswith("half ")
    found = await storage.list_archives(PAIR)
    assert found is not None
    assert len(found) == 1


async def test_a_patch_changes_only_its_own_fields(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening(title="a"), make_message(0)], create=True)
    await storage.append(PAIR, [MetaRecord(title="b")])
    await storage.append(PAIR, [MetaRecord()])
    expected = ConversationMeta(*PAIR, AT, "b", AT, 1)
    assert (await load_stored(storage)).meta == expected
    assert await storage.read_meta(PAIR) == expected
    assert await storage.list_conversations() == [(make_log_name(PAIR), expected)]
    await storage.append(PAIR, [MetaRecord(title="c")])
    [(_, meta)] = await storage.list_conversations()
    assert meta.title == "c"


@pytest.mark.req("storage.replay_from_marker")
async def test_a_load_starts_at_the_last_marker_and_pages_have_all_messages(
    storage: Storage,
) -> None:
    await storage.append(
        PAIR, [make_opening(), make_message(0), make_message(1), make_marker(2, "one")], create=True
    )
    stored = await load_stored(storage)
    assert (stored.messages, stored.marker) == ((), make_marker(2, "one"))
    assert stored.meta.message_count == 2
    await storage.append(
        PAIR, [make_message(2), make_marker(3, "two"), EventRecord("done", AT), make_message(3)]
    )
    stored = await load_stored(storage)
    assert (stored.messages, stored.marker) == ((make_message(3),), make_marker(3, "two"))
    assert stored.meta.summary == "two"
    page = await storage.read_page(PAIR, 0, 10)
    assert page is not None
    assert page.messages == tuple(map(make_message, range(4)))
    found = await storage.list_archives(PAIR)
    assert found is not None
    assert [(a.first_id, a.end_id, a.summary) for a in found] == [(0, 2, "one"), (2, 3, "two")]


@pytest.mark.req("storage.page")
async def test_pages_have_every_message_exactly_once(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening()], create=True)
    everything = [make_message(number, "x" * (number * 37 % 400)) for number in range(3000)]
    for start in range(0, 3000, 500):
        await storage.append(PAIR, everything[start : start + 500])
        await storage.append(PAIR, [make_marker(start + 500), EventRecord("done", AT)])
        await storage.append(PAIR, [(await load_stored(storage)).meta.make_snapshot()])
    found: list[MessageRecord] = []
    offset: int | None = 0
    while offset is not None:
        page = await storage.read_page(PAIR, offset, 7)
        assert page is not None
        assert page.total == 3000
        assert len(page.messages) == 7 or page.next_offset is None
        found += page.messages
        offset = page.next_offset
    assert found == everything


async def test_listings_match_agent_and_sender_exactly(storage: Storage) -> None:
    pairs = [Pair(agent, sender) for agent in ("a", "A", "a b") for sender in ("x", "x:1", "x-1")]
    for pair in pairs:
        await storage.append(pair, [make_opening(pair, title=str(pair))], create=True)

    async def listed(agent: str = "", sender: str = "") -> set[Pair]:
        found = await storage.list_conversations(agent, sender)
        for name, meta in found:
            assert await storage.resolve_handle(name) == meta.pair
            assert meta.title == str(meta.pair)
        assert len({name for name, _ in found}) == len(found)
        return {meta.pair for _, meta in found}

    assert await listed() == set(pairs)
    assert await listed("a") == {pair for pair in pairs if pair.agent == "a"}
    assert await listed(sender="x-1") == {pair for pair in pairs if pair.sender == "x-1"}
    assert await listed("a b", "x:1") == {Pair("a b", "x:1")}
    assert await listed("a-b") == set()


async def test_pairs_that_look_alike_share_nothing(storage: Storage) -> None:
    pairs = [
        Pair("a", "b:c"),
        Pair("a:b", "c"),
        Pair("a", "b c"),
        Pair("a", "B C"),
        Pair("ab", "c"),
        Pair("a", "--"),
        Pair("a", "../../b"),
        Pair("a", "蟹" * 300),
    ]
    for pair in pairs:
        await storage.append(pair, [make_opening(pair), make_message(0, str(pair))], create=True)
    for pair in pairs:
        assert (await load_stored(storage, pair)).messages == (make_message(0, str(pair)),)


@pytest.mark.req("storage.delete")
async def test_a_deleted_conversation_is_gone_and_can_be_created_again(storage: Storage) -> None:
    for pair in (PAIR, OTHER):
        await storage.append(pair, [make_opening(pair, title="old"), make_message(0)], create=True)
    assert len(await storage.list_conversations()) == 2
    assert await storage.delete_conversation(PAIR)
    assert not await storage.delete_conversation(PAIR)
    assert await storage.load_and_repair(PAIR) is None
    assert await storage.resolve_handle(make_log_name(PAIR)) is None
    assert [meta.pair for _, meta in await storage.list_conversations()] == [OTHER]
    with pytest.raises(StorageError):
        await storage.append(PAIR, [make_message(1)])
    await storage.append(PAIR, [make_opening(title="new")], create=True)
    stored = await load_stored(storage)
    assert (stored.messages, stored.meta.title) == ((), "new")
    assert (await load_stored(storage, OTHER)).messages == (make_message(0),)
    assert {meta.title for _, meta in await storage.list_conversations()} == {"old", "new"}


@pytest.mark.parametrize("handle", ["", "..", "../x", "/etc/passwd", "a\0", "x" * 5000, "蟹" * 80])
async def test_any_text_can_be_resolved_as_a_handle(storage: Storage, handle: str) -> None:
    await storage.append(PAIR, [make_opening()], create=True)
    assert await storage.resolve_handle(handle) is None
    assert await storage.resolve_handle(make_log_name(PAIR)) == PAIR


async def test_a_key_of_the_configuration_is_set_beside_the_others(storage: Storage) -> None:
    assert await storage.read_config() == {}
    await storage.set_config_value("llm", "model", "m")
    await storage.set_config_value("llm", "stop", ["a", "b"])
    await storage.set_config_value("daemon", "port", 1)
    config = await storage.read_config()
    assert config == {"llm": {"model": "m", "stop": ["a", "b"]}, "daemon": {"port": 1}}
    config["llm"]["model"] = "changed here only"
    assert (await storage.read_config())["llm"]["model"] == "m"
    await storage.set_config_value("llm", "model", "n")
    assert (await storage.read_config())["llm"]["model"] == "n"


async def test_a_closed_storage_accepts_nothing(storage: Storage) -> None:
    await storage.append(PAIR, [make_opening()], create=True)
    await storage.close()
    with pytest.raises(StorageError, match="storage is closed"):
        await storage.append(PAIR, [make_message(0)])
    await storage.close()


# ── Any sequence of operations ──────────────────────────────────────────────────────────────────

PAIRS = [Pair("a", "b:c"), Pair("a:b", "c"), Pair("a", "b c"), Pair("crab", "user")]
ANY_PAIR = st.sampled_from(PAIRS)
SHORT = st.text(max_size=20)


class StorageMachine(RuleBasedStateMachine):
    """Compares a storage with a plain list of the records of each conversation."""

    storage: Storage

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model: dict[Pair, list[Record]] = {}
        self.clock = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def teardown(self) -> None:
        self.run(self.storage.close())
        self.runner.close()

    # The state of the model, computed independently.

    def now(self) -> str:
        self.clock += 1
        return f"{self.clock:08}"

    def messages(self, pair: Pair) -> list[MessageRecord]:
        return [record for record in self.model[pair] if isinstance(record, MessageRecord)]

    def markers(self, pair: Pair) -> list[MarkerRecord]:
        return [record for record in self.model[pair] if isinstance(record, MarkerRecord)]

    def meta(self, pair: Pair) -> ConversationMeta:
        """The meta without the summary, which only a load must return."""
        known: dict[str, Any] = {}
        for record in self.model[pair]:
            match record:
                case MessageRecord():
                    known |= {"message_count": record.id + 1, "updated_at": record.at}
                case MarkerRecord():
                    known["updated_at"] = record.archived_at
                case MetaRecord():
                    fields = msgspec.structs.asdict(record).items()
                    known |= {key: value for key, value in fields if value is not None}
        return ConversationMeta(
            *pair, **{key: known[key] for key in known.keys() - {"agent", "created_by"}}
        )

    def append(self, pair: Pair, records: Sequence[Record]) -> None:
        if pair in self.model:
            self.run(self.storage.append(pair, records))
            self.model[pair] += records
            return
        with pytest.raises(StorageError, match="gone"):
            self.run(self.storage.append(pair, records))

    # Operations on both.

    @rule(pair=ANY_PAIR, title=SHORT)
    def begin(self, pair: Pair, title: str) -> None:
        records = [ConversationMeta(*pair, created_at=self.now(), title=title).make_snapshot()]
        if pair in self.model:
            with pytest.raises(StorageError):
                self.run(self.storage.append(pair, records, create=True))
            return
        self.run(self.storage.append(pair, records, create=True))
        self.model[pair] = [*records]

    @rule(pair=ANY_PAIR, texts=st.lists(SHORT, max_size=4), size=st.sampled_from([0, 40_000]))
    def append_messages(self, pair: Pair, texts: list[str], size: int) -> None:
        first = len(self.messages(pair)) if pair in self.model else 0
        at = self.now()
        self.append(
            pair,
            [
                MessageRecord(number, at, Message("user", text + "x" * size))
                for number, text in enumerate(texts, first)
            ],
        )

    @rule(pair=ANY_PAIR, name=SHORT)
    def append_event(self, pair: Pair, name: str) -> None:
        self.append(pair, [EventRecord(name, self.now(), data={"name": name})])

    @rule(pair=ANY_PAIR, title=st.none() | SHORT, updated=st.booleans())
    def patch(self, pair: Pair, title: str | None, updated: bool) -> None:
        self.append(pair, [MetaRecord(title=title, updated_at=self.now() if updated else None)])

    @rule(pair=ANY_PAIR, summary=SHORT, snapshot=st.booleans())
    def compact(self, pair: Pair, summary: str, snapshot: bool) -> None:
        end = len(self.messages(pair)) if pair in self.model else 0
        self.append(pair, [MarkerRecord(f"n-{end}", self.now(), "t", summary, end)])
        if snapshot and pair in self.model:
            self.append(pair, [self.meta(pair).make_snapshot()])

    @rule(pair=ANY_PAIR)
    def delete(self, pair: Pair) -> None:
        assert self.run(self.storage.delete_conversation(pair)) == (pair in self.model)
        self.model.pop(pair, None)

    # Comparisons of both.

    @rule(pair=ANY_PAIR, repair=st.booleans())
    def load(self, pair: Pair, repair: bool) -> None:
        load = self.storage.load_and_repair if repair else self.storage.read_conversation
        stored = self.run(load(pair))
        if pair not in self.model:
            assert stored is None
            return
        assert stored is not None
        marker = self.markers(pair)[-1] if self.markers(pair) else None
        first = marker.end_id if marker is not None else 0
        summary = marker.summary if marker is not None else ""
        assert stored.marker == marker
        assert list(stored.messages) == self.messages(pair)[first:]
        assert stored.meta == msgspec.structs.replace(self.meta(pair), summary=summary)

    @rule(pair=ANY_PAIR, offset=st.integers(-2, 30), limit=st.integers(0, 10))
    def page(self, pair: Pair, offset: int, limit: int) -> None:
        page = self.run(self.storage.read_page(pair, offset, limit))
        if pair not in self.model:
            assert page is None
            return
        assert page is not None
        everything = self.messages(pair)
        expected = everything[max(0, offset) :][:limit]
        assert list(page.messages) == expected
        assert page.total == len(everything)
        next_id = expected[-1].id + 1 if expected else len(everything)
        assert page.next_offset == (next_id if next_id < len(everything) else None)

    @rule(pair=ANY_PAIR)
    def archives(self, pair: Pair) -> None:
        found = self.run(self.storage.list_archives(pair))
        if pair not in self.model:
            assert found is None
            return
        assert found is not None
        ends = [marker.end_id for marker in self.markers(pair)]
        assert [(a.first_id, a.end_id) for a in found] == list(zip([0, *ends], ends, strict=False))

    @rule(agent=st.sampled_from(["", "a", "a:b", "x"]), sender=st.sampled_from(["", "c", "b c"]))
    def list_conversations(self, agent: str, sender: str) -> None:
        found = self.run(self.storage.list_conversations(agent, sender))
        assert {name: msgspec.structs.replace(meta, summary="") for name, meta in found} == {
            make_log_name(pair): self.meta(pair)
            for pair in self.model
            if agent in ("", pair.agent) and sender in ("", pair.sender)
        }

    @invariant()
    def every_meta_is_known(self) -> None:
        for pair in PAIRS:
            meta = self.run(self.storage.read_meta(pair))
            if pair in self.model:
                assert meta is not None
                assert msgspec.structs.replace(meta, summary="") == self.meta(pair)
            else:
                assert meta is None
            handle = self.run(self.storage.resolve_handle(make_log_name(pair)))
            assert handle == (pair if pair in self.model else None)


class MemoryStorageMachine(StorageMachine):
    def __init__(self) -> None:
        super().__init__()
        self.storage = MemoryStorage()


class FileStorageMachine(StorageMachine):
    """Also restarts the process now and then, within a line or between two."""

    half_lines: ClassVar = st.sampled_from(
        [b"", b"{", b'{"kind":"mes', b'{"kind":"compact","archive_name":"n"', bytes(100)]
    )

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.home = Path(self.directory.name)
        self.storage = FileStorage(self.home, flush=False)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()

    @rule(half=half_lines)
    def reopen(self, half: bytes) -> None:
        self.run(self.storage.close())
        for pair in self.model:
            with log_path(self.home, pair).open("ab") as log:
                log.write(half)
        self.storage = FileStorage(self.home, flush=False)
        for pair in self.model:
            self.load(pair, repair=True)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """An unreadable line does not affect the other lines."""
        pair = data.draw(st.sampled_from(sorted(self.model)))
        with log_path(self.home, pair).open("ab") as log:
            log.write(data.draw(st.sampled_from([b"\0\n", b'{"kind":"compact"}\n', b"\n"])))


class PostgresStorageMachine(StorageMachine):
    """Also continues with another daemon now and then."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.stack = ExitStack()
        self.schema = self.stack.enter_context(create_schema(self.url))
        self.storage = self.run(self.open_storage())

    async def open_storage(self) -> Storage:
        return PostgresStorage(Path(self.directory.name), self.schema)

    def teardown(self) -> None:
        super().teardown()
        self.stack.close()
        self.directory.cleanup()

    @rule()
    def reopen(self) -> None:
        self.run(self.storage.close())
        self.storage = self.run(self.open_storage())


def test_memory_storage_behaves_like_a_dictionary() -> None:
    run_state_machine_as_test(
        MemoryStorageMachine, settings=settings(max_examples=15, stateful_step_count=25)
    )


@pytest.mark.parametrize("count", [15, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_file_storage_behaves_like_a_dictionary_through_cuts_and_restarts(count: int) -> None:
    run_state_machine_as_test(
        FileStorageMachine, settings=settings(max_examples=count, stateful_step_count=25)
    )


@pytest.mark.req("storage.both")
@pytest.mark.parametrize("count", [5, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_a_database_behaves_like_a_dictionary_for_every_daemon(
    postgres_server: str, count: int
) -> None:
    machine = type("Machine", (PostgresStorageMachine,), {"url": postgres_server})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=count, stateful_step_count=25)
    )
