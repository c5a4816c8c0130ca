"""Entries and files that the tests of the entry store share."""

from pathlib import Path

from hypothesis import strategies as st

from crabtalk.memory import Add, Alias, Entry, Kind, Memory, Op, Remove, Rename, Update

VECTOR = bytes.fromhex(
    "43524d454d000100000000000000000003000000000000000100000002000000000000000"
    "0f1536500000000000000000300000064657007000000736869702069740100000002000000676f"
)

ENTRIES = (
    Entry(1, 100, Kind.NOTE, "deploy", "prod rollout steps", ("ship", "release")),
    Entry(2, 200, Kind.ARCHIVE, "crab-user-1", "They met, and spoke of naïveté."),
    Entry(5, 300, Kind.NOTE, "日記", "今日は雨でした"),
)

# One of each, each changing what another left.
OPS: tuple[Op, ...] = (
    Add("deploy", "prod rollout steps", ("ship", "release")),
    Add("coffee", "two sugars"),
    Update("deploy", "staging first, then prod", ("ship",)),
    Rename("coffee", "tea"),
    Alias("tea", ("cup", "日記")),
    Add("crab-user-1", "They met.", kind=Kind.ARCHIVE),
    Remove("ship"),
    Add("deploy", "begun anew"),
)

TEXT = st.text(max_size=20)
NAMES = st.text(min_size=1, max_size=12).filter(str.strip)


@st.composite
def entries_of(draw: st.DrawFn) -> list[Entry]:
    """Entries of every kind, by id, with names and aliases of their own."""
    names = draw(st.lists(NAMES, max_size=12, unique=True))
    found: list[Entry] = []
    while names:
        name = names.pop()
        aliases = tuple(names.pop() for _ in range(min(len(names), draw(st.integers(0, 2)))))
        created_at = draw(st.integers(0, 2**64 - 1) | st.integers(0, 2**32))
        kind = draw(st.sampled_from(Kind))
        found.append(Entry(len(found) + 1, created_at, kind, name, draw(TEXT), aliases))
    return found


def clock() -> float:
    return 1_700_000_000.5


def opened(path: Path) -> Memory:
    return Memory.open(path, flush=False, now=clock)


def journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")


def files_beside(path: Path) -> set[str]:
    """The names of all files in a memory's directory but those of its checksums."""
    return {file.name for file in path.parent.iterdir() if file.suffix != ".sums"}


def kept(path: Path) -> list[Entry]:
    """What whoever opens it next finds, without writing anything."""
    return Memory.read(path).entries()
