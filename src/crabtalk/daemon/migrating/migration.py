"""Migration: all that one side keeps, copied to the other: a home and a database, either way.

What the other side has already is compared first, so that nothing is written over, and what was
interrupted can be run again. In the end both are read again, all of it. The source stays as it is.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from crabtalk.storage import MarkerRecord, Meta, Pair, Record

# Lines that are held at once, in bytes; one that is larger comes alone.
PIECE = 4 * 1024 * 1024
ROWS = 10_000  # and so many at most
# Things of a kind that are written before the next word of how far it is.
BATCH = 200
# Of what differs, so many are named.
NAMED = 5
CONVERSATIONS, ENTRIES = "conversations", "entries"
ONE = {
    "agents": "the agent",
    "memories": "the memory",
    "subscriptions": "the subscription",
    CONVERSATIONS: "the conversation",
}


class MigrationError(Exception):
    """Why it cannot be done, and what to do about it."""


class Line(NamedTuple):
    """An entry as a log has it, without its line feed, and what it says."""

    data: bytes
    record: Record


class Digest(NamedTuple):
    """Of one thing; what it consists of, if it does, is counted."""

    itself: bytes
    entries: int = 0
    of_entries: bytes = b""


class Conversation(msgspec.Struct, frozen=True):
    """All about one but its entries."""

    handle: str
    pair: Pair
    meta: Meta
    count: int  # of entries
    size: int  # of their lines, in bytes
    marker: int | None  # which of them is the last marker, counted from 1
    of_entries: bytes

    @property
    def digest(self) -> Digest:
        meta = msgspec.structs.replace(self.meta, summary="")  # an entry has it
        told = msgspec.msgpack.encode((self.handle, self.pair, meta, self.marker))
        return Digest(digest_of(told), self.count, self.of_entries)


class Fold:
    """What lines in order amount to."""

    def __init__(self, pair: Pair) -> None:
        self.meta = Meta(*pair)
        self.count = self.size = 0
        self.marker: int | None = None
        self._hash = blake2b(digest_size=16)

    def add(self, line: Line) -> None:
        self.count += 1
        self.size += len(line.data)
        self._hash.update(len(line.data).to_bytes(8, "big"))
        self._hash.update(line.data)
        self.meta = self.meta.patched(line.record)
        if isinstance(line.record, MarkerRecord):
            self.marker = self.count

    @property
    def of_entries(self) -> bytes:
        return self._hash.digest()


class Things(Protocol):
    """Those of one kind, on one side. Each has a name there that it has on the other side too."""

    async def names(self) -> list[str]:
        """Sorted. The others are asked about what this named when it was last called."""
        ...

    async def digests(self, names: Sequence[str]) -> list[Digest]: ...


class Texts(Things, Protocol):
    """Things that are bytes and nothing else."""

    async def read(self, name: str) -> bytes: ...

    async def add(self, things: Sequence[tuple[str, bytes]]) -> None: ...


class Logs(Things, Protocol):
    """Conversations, whose names are their handles. One is there whole or not at all."""

    async def conversations(self, names: Sequence[str]) -> list[Conversation]: ...

    def pieces(self, names: Sequence[str]) -> AsyncIterator[list[tuple[str, Line]]]:
        """The lines of one after the other, each with its name."""
        ...

    async def add(self, names: Sequence[str], source: "Logs") -> None: ...


class Side(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def texts(self) -> Mapping[str, Texts]: ...

    @property
    def logs(self) -> Logs: ...


class Outcome(NamedTuple):
    """What there is of a kind on both sides, and a hash of all of it in order."""

    kind: str
    source: int
    target: int
    source_hash: str
    target_hash: str

    @property
    def is_same(self) -> bool:
        return (self.source, self.source_hash) == (self.target, self.target_hash)


Progress = Callable[[str, int, int], None]  # what is done, how many, of how many


async def migrate(source: Side, target: Side, progress: Progress) -> list[Outcome]:
    """Raises MigrationError, and has written nothing then; StorageError and StoreError too.

    Cancelled, what was written by then is there, each thing whole.
    """
    await refuse_others(source, target, progress)
    for kind, texts in source.texts.items():
        missing = await missing_of(texts, target.texts[kind])
        for done, names in batches(missing):
            progress(f"copying {kind}", done, len(missing))
            await target.texts[kind].add([(name, await texts.read(name)) for name in names])
    missing = await missing_of(source.logs, target.logs)
    for done, names in batches(missing):
        progress(f"copying {CONVERSATIONS}", done, len(missing))
        await target.logs.add(names, source.logs)
    return await verified(source, target, progress)


def kinds(side: Side) -> dict[str, Things]:
    return {**side.texts, CONVERSATIONS: side.logs}


async def refuse_others(source: Side, target: Side, progress: Progress) -> None:
    """What an earlier attempt wrote is as in the source; anything else is somebody's."""
    found: list[str] = []
    for kind, theirs in kinds(target).items():
        ours = kinds(source)[kind]
        there = await theirs.names()
        here = set(await ours.names()) if there else set()
        found += [f"{ONE[kind]} {n}, which {source.name} has not" for n in there if n not in here]
        both = [name for name in there if name in here]
        for done, names in batches(both):
            progress(f"comparing {kind}", done, len(both))
            pairs = zip(names, await ours.digests(names), await theirs.digests(names), strict=True)
            found += [
                f"{ONE[kind]} {name}, which is another in {source.name}"
                for name, one, other in pairs
                if one != other
            ]
            if len(found) > NAMED:
                break
    if found:
        more = ", and more" if len(found) > NAMED else ""
        raise MigrationError(
            f"{target.name} is not empty: it has {'; '.join(found[:NAMED])}{more}; nothing was "
            "written: remove that, or choose an empty one"
        )


async def missing_of(source: Things, target: Things) -> list[str]:
    there = set(await target.names())
    return [name for name in await source.names() if name not in there]


async def verified(source: Side, target: Side, progress: Progress) -> list[Outcome]:
    found: list[Outcome] = []
    for kind, ours in kinds(source).items():
        word = f"verifying {kind}"
        here = await summed(ours, word, progress)
        there = await summed(kinds(target)[kind], word, progress)
        found.append(Outcome(kind, here.things, there.things, here.itself, there.itself))
        if kind == CONVERSATIONS:
            hashes = (here.of_entries, there.of_entries)
            found.append(Outcome(ENTRIES, here.entries, there.entries, *hashes))
    return found


class Sum(NamedTuple):
    things: int
    itself: str
    entries: int
    of_entries: str


async def summed(things: Things, word: str, progress: Progress) -> Sum:
    itself, of_entries = blake2b(digest_size=16), blake2b(digest_size=16)
    entries = 0
    names = await things.names()
    for done, batch in batches(names):
        progress(word, done, len(names))
        for name, digest in zip(batch, await things.digests(batch), strict=True):
            itself.update(digest_of(name.encode()) + digest.itself)
            of_entries.update(digest.of_entries)
            entries += digest.entries
    return Sum(len(names), itself.hexdigest(), entries, of_entries.hexdigest())


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def batches(names: Sequence[str]) -> Iterable[tuple[int, Sequence[str]]]:
    """With how many come before each."""
    return ((done, names[done : done + BATCH]) for done in range(0, len(names), BATCH))


def pieces_of(lines: Iterable[tuple[str, Line]]) -> Callable[[], list[tuple[str, Line]]]:
    """As many as may be held at once, each time it is called; none at the end."""
    waiting = iter(lines)

    def following() -> list[tuple[str, Line]]:
        found: list[tuple[str, Line]] = []
        size = 0
        for name, line in islice(waiting, ROWS):
            found.append((name, line))
            size += len(line.data)
            if size >= PIECE:
                break
        return found

    return following
