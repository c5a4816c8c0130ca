"""EntryTable: the entries of a memory in RAM, by id, name and alias, and their search index.

It does not check changes: they were checked before they get here.
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
        # Another program's file may use a name twice: the lower id has it until that entry is
        # removed.
        self._names: dict[str, tuple[int, ...]] = {}
        self._aliases: dict[str, tuple[int, ...]] = {}
        # How many notes each author has, without the agent's own.
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
        """The entry with that name, else the one with that alias."""
        owners = self._names.get(name) or self._aliases.get(name)
        return self._entries[owners[0]] if owners else None

    def find_owner(self, name: str, *, except_id: int) -> MemoryEntry | None:
        """An entry other than `except_id` with this name or alias."""
        for number in (*self._names.get(name, ()), *self._aliases.get(name, ())):
            if number != except_id:
                return self._entries[number]
        return None

    def put(self, entry: MemoryEntry, terms: list[str]) -> None:
        """Add an entry whose previous version was dropped. `terms` are its terms."""
        self._insert(entry)
        self.index.add(entry.id, terms, get_label(entry))
        self.next_id = max(self.next_id, entry.id + 1)

    def drop(self, entry: MemoryEntry, terms: list[str]) -> None:
        """Remove an entry. `terms` are those it was put with."""
        del self._entries[entry.id]
        self.index.remove(entry.id, terms)
        self._count_author(entry, -1)
        remove_owner(self._names, entry.name, entry.id)
        for alias in entry.aliases:
            remove_owner(self._aliases, alias, entry.id)

    def clear(self) -> None:
        """Release all data piece by piece.

        Left to the interpreter it is a single step, and with 100,000 entries no other thread runs
        for 50 ms.
        """
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
            hits = self.index.search(query, limit)
        elif (labels := view.find_labels()) is not None:
            hits = self.index.search(query, limit, view.build_label_filter(), labels)
        else:
            hits = self.index.search(query, limit, view.build_label_filter())
        return [(self._entries[number], score) for number, score in hits]

    def count_notes(self, author: str) -> int:
        """The number of notes of an author other than the agent."""
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
    """The search terms of an entry: from its content, name and aliases, but not its author."""
    names = (entry.name, *entry.aliases)
    if entry.name.startswith(AUTHOR_MARK):
        names = tuple(map(strip_author_prefix, names))
    return tokenize_text("\n".join((entry.content, *names)))


# Tuples, because the garbage collector skips those that hold only numbers, but visits every list:
# with 100,000 entries that blocked all threads for 20 ms.


def add_owner(owners: dict[str, tuple[int, ...]], name: str, number: int) -> None:
    owners[name] = tuple(sorted((*owners.get(name, ()), number)))


def remove_owner(owners: dict[str, tuple[int, ...]], name: str, number: int) -> None:
    remaining = tuple(owner for owner in owners[name] if owner != number)
    if remaining:
        owners[name] = remaining
    else:
        del owners[name]
