"""The table: the entries of a memory in RAM, what they are called, and the index over them.

It believes what it is given: whether a change may be made is decided before it comes here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from .authors import MemoryView, get_author, get_label
from .bm25 import BM25Index
from .entry import AUTHOR_MARK, EntryKind, MemoryEntry, strip_author_prefix
from .tokenizer import tokenize_text


class EntryTable:
    def __init__(self, entries: Iterable[MemoryEntry] = (), next_id: int = 1) -> None:
        self._entries: dict[int, MemoryEntry] = {}
        # A file of another program may use a name twice: the lower id has it, until it is gone.
        self._names: dict[str, tuple[int, ...]] = {}
        self._aliases: dict[str, tuple[int, ...]] = {}
        # How many notes each author has, those of the agent's own aside.
        self._notes_by_author: Counter[str] = Counter()
        self.authored_notes = 0
        self.index = BM25Index()
        self.next_id = next_id
        for entry in sorted(entries, key=lambda entry: entry.id):
            self._insert(entry)
            self.index.add(entry.id, tokenize_entry(entry), get_label(entry))

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, number: int) -> MemoryEntry:
        return self._entries[number]

    def __iter__(self) -> Iterator[MemoryEntry]:
        """By id."""
        return iter(sorted(self._entries.values(), key=lambda entry: entry.id))

    def find(self, number: int) -> MemoryEntry | None:
        return self._entries.get(number)

    def get(self, name: str) -> MemoryEntry | None:
        """Whose name it is, else whose alias."""
        owners = self._names.get(name) or self._aliases.get(name)
        return self._entries[owners[0]] if owners else None

    def find_owner(self, name: str, *, but: int) -> MemoryEntry | None:
        """Another entry than `but` that is called this, by name or by alias."""
        for number in (*self._names.get(name, ()), *self._aliases.get(name, ())):
            if number != but:
                return self._entries[number]
        return None

    def put(self, entry: MemoryEntry, found: list[str]) -> None:
        """A new one, or one whose former self was dropped. `found` are its terms."""
        self._insert(entry)
        self.index.add(entry.id, found, get_label(entry))
        self.next_id = max(self.next_id, entry.id + 1)

    def drop(self, entry: MemoryEntry, lost: list[str]) -> None:
        """`lost` are the terms it was put with."""
        del self._entries[entry.id]
        self.index.remove(entry.id, lost)
        self._count_author(entry, -1)
        remove_owner(self._names, entry.name, entry.id)
        for alias in entry.aliases:
            remove_owner(self._aliases, alias, entry.id)

    def clear(self) -> None:
        """Lets go of all it has, piece by piece. Left to the interpreter that is a single step, and
        with 100,000 entries no other thread gets on for 50 ms."""
        for names in (self._names, self._aliases):
            while names:
                names.popitem()
        while self._entries:
            self._entries.popitem()
        self.index.clear()

    def search(
        self, query: list[str], limit: int, view: MemoryView
    ) -> list[tuple[MemoryEntry, float]]:
        if view.authors is None and view.conversations is None:
            found = self.index.search(query, limit)
        elif (labels := view.find_labels()) is not None:
            found = self.index.search(query, limit, view.build_label_filter(), labels)
        else:
            found = self.index.search(query, limit, view.build_label_filter())
        return [(self._entries[number], score) for number, score in found]

    def count_notes(self, author: str) -> int:
        """Of one author, who is not the agent."""
        return self._notes_by_author[author]

    def count_kind(self, kind: EntryKind) -> int:
        return sum(1 for entry in self._entries.values() if entry.kind is kind)

    def _insert(self, entry: MemoryEntry) -> None:
        self._entries[entry.id] = entry
        self._count_author(entry, 1)
        add_owner(self._names, entry.name, entry.id)
        for alias in entry.aliases:
            add_owner(self._aliases, alias, entry.id)

    def _count_author(self, entry: MemoryEntry, change: int) -> None:
        if entry.kind is EntryKind.ARCHIVE or not (author := get_author(entry)):
            return
        self.authored_notes += change
        self._notes_by_author[author] += change
        if not self._notes_by_author[author]:
            del self._notes_by_author[author]


def tokenize_entry(entry: MemoryEntry) -> list[str]:
    """What an entry is found by: its content, its name and its aliases, not its author."""
    names = (entry.name, *entry.aliases)
    if entry.name.startswith(AUTHOR_MARK):
        names = tuple(map(strip_author_prefix, names))
    return tokenize_text("\n".join((entry.content, *names)))


# Tuples, because the collector passes over those that hold numbers, and looks at every list each
# time: with 100,000 entries that held up everybody for 20 ms.


def add_owner(owners: dict[str, tuple[int, ...]], name: str, number: int) -> None:
    owners[name] = tuple(sorted((*owners.get(name, ()), number)))


def remove_owner(owners: dict[str, tuple[int, ...]], name: str, number: int) -> None:
    left = tuple(each for each in owners[name] if each != number)
    if left:
        owners[name] = left
    else:
        del owners[name]
