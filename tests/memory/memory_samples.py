"""Entries and files that the tests of the entry store share."""

from pathlib import Path

from hypothesis import strategies as st

from crabtalk.memory import (
    AddEntry,
    EntryKind,
    Memory,
    MemoryEntry,
    MemoryOperation,
    RemoveEntry,
    RenameEntry,
    SetAliases,
    UpdateEntry,
)

VECTOR = bytes.fromhex(
    "43524d454d000100000000000000000003000000000000000100000002000000000000000"
    "0f1536500000000000000000300000064657007000000736869702069740100000002000000676f"
)

ENTRIES = (
    MemoryEntry(1, 100, EntryKind.NOTE, "deploy", "prod rollout steps", ("ship", "release")),
    MemoryEntry(2, 200, EntryKind.ARCHIVE, "crab-user-1", "They met, and spoke of naïveté."),
    MemoryEntry(5, 300, EntryKind.NOTE, "日記", "今日は雨でした"),
)

# One of each kind, each changing the result of an earlier one.
OPS: tuple[MemoryOperation, ...] = (
    AddEntry("deploy", "prod rollout steps", ("ship", "release")),
    AddEntry("coffee", "two sugars"),
    UpdateEntry("deploy", "staging first, then prod", ("ship",)),
    RenameEntry("coffee", "tea"),
    SetAliases("tea", ("cup", "日記")),
    AddEntry("crab-user-1", "They met.", kind=EntryKind.ARCHIVE),
    RemoveEntry("ship"),
    AddEntry("deploy", "begun anew"),
)

TEXT = st.text(max_size=20)
NAMES = st.text(min_size=1, max_size=12).filter(str.strip)


@st.composite
def draw_entries(draw: st.DrawFn) -> list[MemoryEntry]:
    """Entries of every kind, sorted by id, with distinct names and aliases."""
    names = draw(st.lists(NAMES, max_size=12, unique=True))
    entries: list[MemoryEntry] = []
    while names:
        name = names.pop()
        aliases = tuple(names.pop() for _ in range(min(len(names), draw(st.integers(0, 2)))))
        created_at = draw(st.integers(0, 2**64 - 1) | st.integers(0, 2**32))
        kind = draw(st.sampled_from(EntryKind))
        entries.append(MemoryEntry(len(entries) + 1, created_at, kind, name, draw(TEXT), aliases))
    return entries


def read_fixed_time() -> float:
    return 1_700_000_000.5


def open_memory(path: Path) -> Memory:
    return Memory.open(path, flush=False, now=read_fixed_time)


def journal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")


def list_files(path: Path) -> set[str]:
    """The names of all files in a memory's directory except its checksums."""
    return {file.name for file in path.parent.iterdir() if file.suffix != ".sums"}


def read_entries(path: Path) -> list[MemoryEntry]:
    """The entries that the next reader gets; writes nothing."""
    return Memory.open_read_only(path).entries()
