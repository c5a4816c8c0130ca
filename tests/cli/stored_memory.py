"""Memories to try commands on: kept by a daemon, or in a file; and books as people write them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.memory import EntryKind, Memory, MemoryEntry
from crabtalk.protocol import wire
from tests.cli.canned_daemon import CannedDaemon, make_entry, serve_daemon

ENTRIES = (
    make_entry(1, "deploy", "Tag, build,\n\n  then ship it.\n", aliases=["ship", "release"]),
    make_entry(2, "tides", "High water at noon.", created_at=0),
    make_entry(3, "crab-user-1", "We spoke of tides.\nAnd of the moon.", kind="archive"),
    make_entry(4, "海", "海の水は高い", kind="topic"),
    make_entry(5, "a/b: c", ""),
)


class StoredMemory:
    """A memory that commands are tried on, and the words that lead to it."""

    def __init__(
        self, words: tuple[str | Path, ...], file: Path, peer: CannedDaemon | None
    ) -> None:
        self.words = words
        self._file = file
        self._daemon = peer

    def read_entries(self) -> list[tuple[str, EntryKind, str, tuple[str, ...], int]]:
        """What is in it, but for numbers."""
        if self._daemon is None:
            found = Memory.open_read_only(self._file).entries()
        else:
            found = [decode_entry(given) for given in self._daemon.entries]
        return sorted((e.name, e.kind, e.content, e.aliases, e.created_at) for e in found)


@asynccontextmanager
async def open_stored_memory(
    where: str, tmp_path: Path, *entries: wire.MemoryEntry
) -> AsyncIterator[StoredMemory]:
    file, home = tmp_path / "crab.crmem", tmp_path / "home"
    if where == "file":
        with Memory.open(file, flush=False) as memory:
            memory.replace(map(decode_entry, entries))
        yield StoredMemory(("--file", file), file, None)
    else:
        peer = CannedDaemon(*entries)
        async with serve_daemon(peer, home):
            yield StoredMemory(("--home", home, "crab"), file, peer)


def decode_entry(given: wire.MemoryEntry) -> MemoryEntry:
    kind = EntryKind[given.kind.upper()]
    return MemoryEntry(
        given.number, given.created_at, kind, given.name, given.content, tuple(given.aliases)
    )


in_daemon_and_file = pytest.mark.parametrize("where", ["daemon", "file"])


def write_pages(book: Path, **notes: str) -> Path:
    """A book that a person wrote."""
    (book / "notes").mkdir(parents=True)
    for name, content in notes.items():
        (book / "notes" / f"{name}.md").write_text(content)
    return book
