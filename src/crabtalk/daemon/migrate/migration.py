"""Migration: all that one side keeps, copied to the other: a home and a database, either way.

What the other side has already is compared first, so that nothing is written over, and what was
interrupted can be run again. In the end both are read again, all of it. The source stays as it is.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from crabtalk.storage import ConversationMeta, MarkerRecord, Pair, Record

# Lines that are held at once, in bytes; one that is larger comes alone.
MAX_CHUNK_BYTES = 4 * 1024 * 1024
MAX_CHUNK_ENTRIES = 10_000  # and so many at most
# Things of a kind that are written before the next word of how far it is.
BATCH_SIZE = 200
# Of what differs, so many are named.
MAX_DIFFERENCES_SHOWN = 5
CONVERSATIONS, ENTRIES = "conversations", "entries"
KIND_NAMES = {
    "agents": "the agent",
    "memories": "the memory",
    "subscriptions": "the subscription",
    CONVERSATIONS: "the conversation",
}


class MigrationError(Exception):
    """Why it cannot be done, and what to do about it."""


class MigrationEntry(NamedTuple):
    """An entry as a log has it, without its line feed, and what it says."""

    data: bytes
    record: Record


class ItemDigest(NamedTuple):
    """Of one thing; what it consists of, if it does, is counted."""

    value: bytes
    entry_count: int = 0
    entries_hash: bytes = b""


class ConversationHeader(msgspec.Struct, frozen=True):
    """All about one but its entries."""

    handle: str
    pair: Pair
    meta: ConversationMeta
    entry_count: int  # of entries
    size: int  # of their lines, in bytes
    marker: int | None  # which of them is the last marker, counted from 1
    entries_hash: bytes

    @property
    def digest(self) -> ItemDigest:
        meta = msgspec.structs.replace(self.meta, summary="")  # an entry has it
        told = msgspec.msgpack.encode((self.handle, self.pair, meta, self.marker))
        return ItemDigest(hash_bytes(told), self.entry_count, self.entries_hash)


class EntryAccumulator:
    """What lines in order amount to."""

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
    """Those of one kind, on one side. Each has a name there that it has on the other side too."""

    async def names(self) -> list[str]:
        """Sorted. The others are asked about what this named when it was last called."""
        ...

    async def digests(self, names: Sequence[str]) -> list[ItemDigest]: ...


class ByteItems(MigrationItems, Protocol):
    """Things that are bytes and nothing else."""

    async def read(self, name: str) -> bytes: ...

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None: ...


class ConversationItems(MigrationItems, Protocol):
    """Conversations, whose names are their handles. One is there whole or not at all."""

    async def read_headers(self, names: Sequence[str]) -> list[ConversationHeader]: ...

    def read_chunks(self, names: Sequence[str]) -> AsyncIterator[list[tuple[str, MigrationEntry]]]:
        """The lines of one after the other, each with its name."""
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
    """What there is of a kind on both sides, and a hash of all of it in order."""

    kind: str
    source: int
    target: int
    source_hash: str
    target_hash: str

    @property
    def is_same(self) -> bool:
        return (self.source, self.source_hash) == (self.target, self.target_hash)


ProgressCallback = Callable[[str, int, int], None]  # what is done, how many, of how many


async def copy_and_verify(
    source: MigrationSide, target: MigrationSide, progress: ProgressCallback
) -> list[MigrationOutcome]:
    """Raises MigrationError, and has written nothing then; StorageError and StoreError too.

    Cancelled, what was written by then is there, each thing whole.
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
    """What an earlier attempt wrote is as in the source; anything else is somebody's."""
    found: list[str] = []
    for kind, theirs in list_items_by_kind(target).items():
        ours = list_items_by_kind(source)[kind]
        there = await theirs.names()
        here = set(await ours.names()) if there else set()
        found += [
            f"{KIND_NAMES[kind]} {n}, which {source.name} has not" for n in there if n not in here
        ]
        both = [name for name in there if name in here]
        for done, names in split_batches(both):
            progress(f"comparing {kind}", done, len(both))
            pairs = zip(names, await ours.digests(names), await theirs.digests(names), strict=True)
            found += [
                f"{KIND_NAMES[kind]} {name}, which is another in {source.name}"
                for name, one, other in pairs
                if one != other
            ]
            if len(found) > MAX_DIFFERENCES_SHOWN:
                break
    if found:
        more = ", and more" if len(found) > MAX_DIFFERENCES_SHOWN else ""
        raise MigrationError(
            f"{target.name} is not empty: it has {'; '.join(found[:MAX_DIFFERENCES_SHOWN])}{more}; "
            "nothing was written: remove that, or choose an empty one"
        )


async def list_missing(source: MigrationItems, target: MigrationItems) -> list[str]:
    there = set(await target.names())
    return [name for name in await source.names() if name not in there]


async def verify_copy(
    source: MigrationSide, target: MigrationSide, progress: ProgressCallback
) -> list[MigrationOutcome]:
    found: list[MigrationOutcome] = []
    for kind, ours in list_items_by_kind(source).items():
        word = f"verifying {kind}"
        here = await compute_totals(ours, word, progress)
        there = await compute_totals(list_items_by_kind(target)[kind], word, progress)
        found.append(
            MigrationOutcome(
                kind, here.item_count, there.item_count, here.items_hash, there.items_hash
            )
        )
        if kind == CONVERSATIONS:
            hashes = (here.entries_hash, there.entries_hash)
            found.append(MigrationOutcome(ENTRIES, here.entry_count, there.entry_count, *hashes))
    return found


class SideTotals(NamedTuple):
    item_count: int
    items_hash: str
    entry_count: int
    entries_hash: str


async def compute_totals(
    things: MigrationItems, word: str, progress: ProgressCallback
) -> SideTotals:
    itself, of_entries = blake2b(digest_size=16), blake2b(digest_size=16)
    entries = 0
    names = await things.names()
    for done, batch in split_batches(names):
        progress(word, done, len(names))
        for name, digest in zip(batch, await things.digests(batch), strict=True):
            itself.update(hash_bytes(name.encode()) + digest.value)
            of_entries.update(digest.entries_hash)
            entries += digest.entry_count
    return SideTotals(len(names), itself.hexdigest(), entries, of_entries.hexdigest())


def hash_bytes(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def split_batches(names: Sequence[str]) -> Iterable[tuple[int, Sequence[str]]]:
    """With how many come before each."""
    return ((done, names[done : done + BATCH_SIZE]) for done in range(0, len(names), BATCH_SIZE))


def make_chunk_reader(
    lines: Iterable[tuple[str, MigrationEntry]],
) -> Callable[[], list[tuple[str, MigrationEntry]]]:
    """As many as may be held at once, each time it is called; none at the end."""
    waiting = iter(lines)

    def following() -> list[tuple[str, MigrationEntry]]:
        found: list[tuple[str, MigrationEntry]] = []
        size = 0
        for name, line in islice(waiting, MAX_CHUNK_ENTRIES):
            found.append((name, line))
            size += len(line.data)
            if size >= MAX_CHUNK_BYTES:
                break
        return found

    return following
