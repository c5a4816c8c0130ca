"""Memories to try commands on: kept by a daemon, or in a file; and books as people write them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from apps.tui.tests.peer import Peer, entry, serving
from crabtalk.memory import Entry, Kind, Memory
from crabtalk.protocol import wire

ENTRIES = (
    entry(1, "deploy", "Tag, build,\n\n  then ship it.\n", aliases=["ship", "release"]),
    entry(2, "tides", "High water at noon.", created_at=0),
    entry(3, "crab-user-1", "We spoke of tides.\nAnd of the moon.", kind="archive"),
    entry(4, "海", "海の水は高い", kind="topic"),
    entry(5, "a/b: c", ""),
)


class Kept:
    """A memory that commands are tried on, and the words that lead to it."""

    def __init__(self, words: tuple[str | Path, ...], file: Path, peer: Peer | None) -> None:
        self.words = words
        self._file = file
        self._peer = peer

    def now(self) -> list[tuple[str, Kind, str, tuple[str, ...], int]]:
        """What is in it, but for numbers."""
        if self._peer is None:
            found = Memory.read(self._file).entries()
        else:
            found = [as_entry(given) for given in self._peer.entries]
        return sorted((e.name, e.kind, e.content, e.aliases, e.created_at) for e in found)


@asynccontextmanager
async def kept(where: str, tmp_path: Path, *entries: wire.MemoryEntry) -> AsyncIterator[Kept]:
    file, home = tmp_path / "crab.crmem", tmp_path / "home"
    if where == "file":
        with Memory.open(file, flush=False) as memory:
            memory.replace(map(as_entry, entries))
        yield Kept(("--file", file), file, None)
    else:
        peer = Peer(*entries)
        async with serving(peer, home):
            yield Kept(("--home", home, "crab"), file, peer)


def as_entry(given: wire.MemoryEntry) -> Entry:
    kind = Kind[given.kind.upper()]
    return Entry(
        given.number, given.created_at, kind, given.name, given.content, tuple(given.aliases)
    )


everywhere = pytest.mark.parametrize("where", ["daemon", "file"])


def written(book: Path, **notes: str) -> Path:
    """A book that a person wrote."""
    (book / "notes").mkdir(parents=True)
    for name, content in notes.items():
        (book / "notes" / f"{name}.md").write_text(content)
    return book
