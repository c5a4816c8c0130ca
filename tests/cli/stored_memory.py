"""Memories to run commands on, stored by a daemon or in a file, and pages written by people."""

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
    """A memory to run commands on, and the command-line words that name it."""

    def __init__(
        self, words: tuple[str | Path, ...], file: Path, peer: CannedDaemon | None
    ) -> None:
        self.words = words
        self._file = file
        self._daemon = peer

    def read_entries(self) -> list[tuple[str, EntryKind, str, tuple[str, ...], int]]:
        """Read all entries, without their numbers."""
        if self._daemon is None:
            entries = Memory.open_read_only(self._file).entries()
        else:
            entries = [decode_entry(entry) for entry in self._daemon.entries]
        return sorted((e.name, e.kind, e.content, e.aliases, e.created_at) for e in entries)


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


def decode_entry(entry: wire.MemoryEntry) -> MemoryEntry:
    kind = EntryKind[entry.kind.upper()]
    return MemoryEntry(
        entry.number, entry.created_at, kind, entry.name, entry.content, tuple(entry.aliases)
    )


in_daemon_and_file = pytest.mark.parametrize("where", ["daemon", "file"])


def write_pages(book: Path, **notes: str) -> Path:
    """Write pages as a person would."""
    (book / "notes").mkdir(parents=True)
    for name, content in notes.items():
        (book / "notes" / f"{name}.md").write_text(content)
    return book
