"""Memory compared with a plain dict, through any operations, restarts and crashes."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crabtalk.memory import (
    AddEntry,
    EntryKind,
    EntryKindError,
    Memory,
    MemoryEntry,
    MemoryOperation,
    MemoryStoreError,
    NameTakenError,
    RemoveEntry,
    RenameEntry,
    SetAliases,
    UnknownEntryError,
    UpdateEntry,
)
from crabtalk.memory.crmem import decode_memory
from tests.memory.memory_samples import journal_path, open_memory, read_entries, read_fixed_time

NAMES = st.sampled_from(["ash", "birch", "cedar", "elm", "日記", "näme"])
CONTENTS = st.text(max_size=30)
ALIASES = st.lists(NAMES, max_size=3).map(tuple)
KINDS = st.sampled_from([EntryKind.NOTE, EntryKind.ARCHIVE])
GUARDS = st.none() | st.sampled_from(EntryKind)
OPS = st.one_of(
    st.builds(AddEntry, NAMES, CONTENTS, ALIASES, KINDS),
    st.builds(UpdateEntry, NAMES, CONTENTS, st.none() | ALIASES, GUARDS),
    st.builds(RenameEntry, NAMES, NAMES, GUARDS),
    st.builds(SetAliases, NAMES, ALIASES, GUARDS),
    st.builds(RemoveEntry, NAMES, GUARDS),
)


class MemoryModel:
    """The expected state of a memory, computed simply."""

    def __init__(self) -> None:
        self.entries: dict[int, MemoryEntry] = {}
        self.next_id = 1

    def find(self, name: str) -> MemoryEntry | None:
        for entry in self.entries.values():
            if entry.name == name:
                return entry
        return next((entry for entry in self.entries.values() if name in entry.aliases), None)

    def expected_error(self, op: MemoryOperation) -> type[MemoryStoreError] | None:
        if isinstance(op, AddEntry):
            return self.name_error(0, op.name, op.aliases)
        entry = self.find(op.name)
        if entry is None:
            return UnknownEntryError
        if op.kind is not None and op.kind is not entry.kind:
            return EntryKindError
        if isinstance(op, UpdateEntry | RenameEntry) and entry.kind is EntryKind.ARCHIVE:
            return EntryKindError
        if isinstance(op, RenameEntry):
            return self.name_error(entry.id, op.new_name, entry.aliases)
        if isinstance(op, UpdateEntry | SetAliases) and op.aliases is not None:
            return self.name_error(entry.id, entry.name, op.aliases)
        return None

    def name_error(
        self, number: int, *names: str | tuple[str, ...]
    ) -> type[MemoryStoreError] | None:
        new_names = {names[0], *names[1]}
        others = [entry for entry in self.entries.values() if entry.id != number]
        taken = {name for entry in others for name in (entry.name, *entry.aliases)}
        return NameTakenError if new_names & taken else None

    def apply(self, op: MemoryOperation) -> None:
        if isinstance(op, AddEntry):
            entry = MemoryEntry(self.next_id, int(read_fixed_time()), op.kind, op.name, op.content)
            aliases: tuple[str, ...] | None = op.aliases
            self.next_id += 1
        else:
            found = self.find(op.name)
            assert found is not None
            entry = found
            aliases = getattr(op, "aliases", None)
            if isinstance(op, RemoveEntry):
                del self.entries[entry.id]
                return
        name = op.new_name if isinstance(op, RenameEntry) else entry.name
        content = op.content if isinstance(op, AddEntry | UpdateEntry) else entry.content
        aliases = entry.aliases if aliases is None else aliases
        aliases_without_name = tuple(alias for alias in dict.fromkeys(aliases) if alias != name)
        self.entries[entry.id] = MemoryEntry(
            entry.id, entry.created_at, entry.kind, name, content, aliases_without_name
        )


class MemoryFileMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.path = self.home / "crab.crmem"
        self.memory = open_memory(self.path)
        self.model = MemoryModel()
        # The state before the last write, for a crash that tears that write.
        self.before_write: tuple[bytes, bytes, dict[int, MemoryEntry], int] | None = None

    @rule(op=OPS)
    def apply(self, op: MemoryOperation) -> None:
        refusal = self.model.expected_error(op)
        if refusal is not None:
            with pytest.raises(refusal):
                self.memory.apply(op)
            return
        files = self.read_files()
        self.before_write = (*files, dict(self.model.entries), self.model.next_id)
        self.memory.apply(op)
        self.model.apply(op)

    def read_files(self) -> tuple[bytes, bytes]:
        contents = [
            file.read_bytes() if file.exists() else b""
            for file in (self.path, journal_path(self.path))
        ]
        return contents[0], contents[1]

    @rule()
    def reopen(self) -> None:
        self.memory.close()
        assert not journal_path(self.path).exists()
        if self.path.exists():
            assert decode_memory(self.path.read_bytes()).entries == list(
                self.model.entries.values()
            )
        self.memory = open_memory(self.path)
        self.before_write = None

    @rule()
    def fold(self) -> None:
        self.memory.checkpoint()
        self.before_write = None

    @rule(data=st.data())
    @precondition(lambda self: self.before_write is not None)
    def crash(self, data: st.DataObject) -> None:
        """A crash at any byte of the last write, or after it."""
        assert self.before_write is not None
        snapshot, journal, entries, next_id = self.before_write
        now_snapshot, now_journal = self.read_files()
        assert self.memory._backend is not None
        self.memory._backend.close(remove=False)
        if snapshot == now_snapshot:
            assert now_journal.startswith(journal)
            cut = data.draw(st.integers(len(journal), len(now_journal)))
            journal_path(self.path).write_bytes(now_journal[:cut])
            if cut < len(now_journal):
                self.model.entries, self.model.next_id = entries, next_id
        self.memory = open_memory(self.path)
        self.before_write = None

    @invariant()
    def entries_equal_the_model(self) -> None:
        assert self.memory.entries() == list(self.model.entries.values())
        assert read_entries(self.path) == list(self.model.entries.values())

    @invariant()
    def names_identify_the_same_entries(self) -> None:
        for name in ("ash", "birch", "cedar", "elm", "日記", "näme"):
            assert self.memory.get(name) == self.model.find(name)

    @invariant()
    def search_equals_that_of_a_fresh_memory(self) -> None:
        fresh = Memory.open_read_only(self.path)
        for query in ("ash birch", "日", "name", "elm cedar"):
            hits = [(hit.entry, hit.score) for hit in self.memory.search(query, 9)]
            fresh_hits = [(hit.entry, hit.score) for hit in fresh.search(query, 9)]
            assert hits == fresh_hits

    def teardown(self) -> None:
        self.memory.close()
        shutil.rmtree(self.home)


@pytest.mark.req("memory.model")
def test_a_memory_is_a_dictionary_that_survives() -> None:
    run_state_machine_as_test(
        MemoryFileMachine, settings=settings(max_examples=40, stateful_step_count=25)
    )


def test_the_machine_notices_a_difference() -> None:
    machine = MemoryFileMachine()
    machine.apply(AddEntry("ash", "tree"))
    machine.model.entries.clear()
    with pytest.raises(AssertionError):
        machine.entries_equal_the_model()
    machine.teardown()
