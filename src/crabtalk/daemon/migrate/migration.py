"""Copies all stored data from one side to the other: a home and a database, in either direction.

It first compares what the target already has, so that nothing is overwritten and an interrupted
migration can be run again. At the end it reads both sides again, completely. The source is not
changed.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from crabtalk.storage import ConversationMeta, MarkerRecord, Pair, Record

# Bytes of entries in one chunk; a larger entry has a chunk of its own.
MAX_CHUNK_BYTES = 4 * 1024 * 1024
MAX_CHUNK_ENTRIES = 10_000  # in one chunk
# Items that are copied between two updates of the progress.
BATCH_SIZE = 200
# Differences to list in an error.
MAX_DIFFERENCES_SHOWN = 5
CONVERSATIONS, ENTRIES = "conversations", "entries"
KIND_NAMES = {
    "agents": "the agent",
    "memories": "the memory",
    "subscriptions": "the subscription",
    CONVERSATIONS: "the conversation",
}


class MigrationError(Exception):
    """Says why a migration is not possible, and what to do about it."""


class MigrationEntry(NamedTuple):
    """A log entry: its line without the line feed, and the parsed record."""

    data: bytes
    record: Record


class ItemDigest(NamedTuple):
    """The hash of one item; for conversations also the number and hash of its entries."""

    value: bytes
    entry_count: int = 0
    entries_hash: bytes = b""


class ConversationHeader(msgspec.Struct, frozen=True):
    """All data about a conversation except its entries."""

    handle: str
    pair: Pair
    meta: ConversationMeta
    entry_count: int
    size: int  # of the entries, in bytes
    marker: int | None  # position of the last marker among the entries, from 1
    entries_hash: bytes

    @property
    def digest(self) -> ItemDigest:
        meta = msgspec.structs.replace(self.meta, summary="")  # it is in an entry
        data = msgspec.msgpack.encode((self.handle, self.pair, meta, self.marker))
        return ItemDigest(hash_bytes(data), self.entry_count, self.entries_hash)


class EntryAccumulator:
    """Computes the metadata, count, size and hash of entries in order."""

    def __init__(self, pair: Pair) -> None:
        self.meta = ConversationMeta(*pair)
        self.count = self.size = 0
        self.marker: int | None = None
        self._hash = blake2b(digest_size=16)

    def add(self, line: MigrationEntry) -> None:
        self.count += 1
        self.size += len(line.data)
        self._hash.update(len(line.data).to_bytes(8, "big"))
        self._hash.update(line.data)
        self.meta = self.meta.apply_record(line.record)
        if isinstance(line.record, MarkerRecord):
            self.marker = self.count

    @property
    def entries_hash(self) -> bytes:
        return self._hash.digest()


class MigrationItems(Protocol):
    """The items of one kind on one side. An item has the same name on both sides."""

    async def names(self) -> list[str]:
        """Sorted. The other methods take names that the last call of this one returned."""
        ...

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]: ...


class ByteItems(MigrationItems, Protocol):
    """Items that are plain bytes."""

    async def read(self, name: str) -> bytes: ...

    async def add(self, items: Sequence[tuple[str, bytes]]) -> None: ...


class ConversationItems(MigrationItems, Protocol):
    """Conversations, named by their handles. Each is copied completely or not at all."""

    async def read_headers(self, names: Sequence[str]) -> list[ConversationHeader]: ...

    def read_chunks(self, names: Sequence[str]) -> AsyncIterator[list[tuple[str, MigrationEntry]]]:
        """The entries of one conversation after the other, each with the conversation's name."""
        ...

    async def add(self, names: Sequence[str], source: "ConversationItems") -> None: ...


class MigrationSide(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def items(self) -> Mapping[str, ByteItems]: ...

    @property
    def logs(self) -> ConversationItems: ...


class MigrationOutcome(NamedTuple):
    """The number of items of a kind on both sides, and a hash over all of them in order."""

    kind: str
    source: int
    target: int
    source_hash: str
    target_hash: str

    @property
    def is_same(self) -> bool:
        return (self.source, self.source_hash) == (self.target, self.target_hash)


ProgressCallback = Callable[[str, int, int], None]  # step, number done, total


async def copy_and_verify(
    source: MigrationSide, target: MigrationSide, progress: ProgressCallback
) -> list[MigrationOutcome]:
    """Raises MigrationError before anything is written; also StorageError and MemoryStoreError.

    Cancelled, the items copied so far stay in the target, each complete.
    """
    await refuse_foreign_items(source, target, progress)
    for kind, texts in source.items.items():
        missing = await list_missing(texts, target.items[kind])
        for done, names in split_batches(missing):
            progress(f"copying {kind}", done, len(missing))
            await target.items[kind].add([(name, await texts.read(name)) for name in names])
    missing = await list_missing(source.logs, target.logs)
    for done, names in split_batches(missing):
        progress(f"copying {CONVERSATIONS}", done, len(missing))
        await target.logs.add(names, source.logs)
    return await verify_copy(source, target, progress)


def list_items_by_kind(side: MigrationSide) -> dict[str, MigrationItems]:
    return {**side.items, CONVERSATIONS: side.logs}


async def refuse_foreign_items(
    source: MigrationSide, target: MigrationSide, progress: ProgressCallback
) -> None:
    """Raises MigrationError if the target has items that are not copies of the source's items."""
    differences: list[str] = []
    for kind, target_items in list_items_by_kind(target).items():
        source_items = list_items_by_kind(source)[kind]
        target_names = await target_items.names()
        source_names = set(await source_items.names()) if target_names else set()
        differences += [
            f"{KIND_NAMES[kind]} {n}, which {source.name} has not"
            for n in target_names
            if n not in source_names
        ]
        both = [name for name in target_names if name in source_names]
        for done, names in split_batches(both):
            progress(f"comparing {kind}", done, len(both))
            pairs = zip(
                names,
                await source_items.digests(names),
                await target_items.digests(names),
                strict=True,
            )
            differences += [
                f"{KIND_NAMES[kind]} {name}, which is another in {source.name}"
                for name, source_digest, target_digest in pairs
                if source_digest != target_digest
            ]
            if len(differences) > MAX_DIFFERENCES_SHOWN:
                break
    if differences:
        more = ", and more" if len(differences) > MAX_DIFFERENCES_SHOWN else ""
        raise MigrationError(
            f"{target.name} is not empty: it has {'; '.join(differences[:MAX_DIFFERENCES_SHOWN])}"
            f"{more}; nothing was written: remove that, or choose an empty one"
        )


async def list_missing(source: MigrationItems, target: MigrationItems) -> list[str]:
    target_names = set(await target.names())
    return [name for name in await source.names() if name not in target_names]


async def verify_copy(
    source: MigrationSide, target: MigrationSide, progress: ProgressCallback
) -> list[MigrationOutcome]:
    outcomes: list[MigrationOutcome] = []
    for kind, source_items in list_items_by_kind(source).items():
        step = f"verifying {kind}"
        source_totals = await compute_totals(source_items, step, progress)
        target_totals = await compute_totals(list_items_by_kind(target)[kind], step, progress)
        outcomes.append(
            MigrationOutcome(
                kind,
                source_totals.item_count,
                target_totals.item_count,
                source_totals.items_hash,
                target_totals.items_hash,
            )
        )
        if kind == CONVERSATIONS:
            hashes = (source_totals.entries_hash, target_totals.entries_hash)
            outcomes.append(
                MigrationOutcome(
                    ENTRIES, source_totals.entry_count, target_totals.entry_count, *hashes
                )
            )
    return outcomes


class SideTotals(NamedTuple):
    item_count: int
    items_hash: str
    entry_count: int
    entries_hash: str


async def compute_totals(
    items: MigrationItems, step: str, progress: ProgressCallback
) -> SideTotals:
    items_hash, entries_hash = blake2b(digest_size=16), blake2b(digest_size=16)
    entries = 0
    names = await items.names()
    for done, batch in split_batches(names):
        progress(step, done, len(names))
        for name, digest in zip(batch, await items.digests(batch), strict=True):
            items_hash.update(hash_bytes(name.encode()) + digest.value)
            entries_hash.update(digest.entries_hash)
            entries += digest.entry_count
    return SideTotals(len(names), items_hash.hexdigest(), entries, entries_hash.hexdigest())


def hash_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def split_batches(names: Sequence[str]) -> Iterable[tuple[int, Sequence[str]]]:
    """Batches of names, each with the number of names before it."""
    return ((done, names[done : done + BATCH_SIZE]) for done in range(0, len(names), BATCH_SIZE))


def make_chunk_reader(
    lines: Iterable[tuple[str, MigrationEntry]],
) -> Callable[[], list[tuple[str, MigrationEntry]]]:
    """A function that returns the next chunk of entries; an empty one at the end."""
    remaining = iter(lines)

    def read_chunk() -> list[tuple[str, MigrationEntry]]:
        chunk: list[tuple[str, MigrationEntry]] = []
        size = 0
        for name, line in islice(remaining, MAX_CHUNK_ENTRIES):
            chunk.append((name, line))
            size += len(line.data)
            if size >= MAX_CHUNK_BYTES:
                break
        return chunk

    return read_chunk
