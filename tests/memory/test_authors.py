"""Authors of notes: names, searches, limits, and a model of many people sharing one memory."""

import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crabtalk.hooks.memory_access import MemoryAccess, forget_note, grant_access, write_note
from crabtalk.memory import (
    EntryKind,
    Memory,
    MemoryEntry,
    MemoryLimitError,
    MemoryView,
    NameTakenError,
    add_author,
    crmem,
    encode_author,
    get_author,
    qualify_name,
    strip_author,
)
from crabtalk.memory.entry import MAX_AUTHOR_NOTES, MAX_AUTHORED_NOTES
from crabtalk.policy import Owners
from crabtalk.storage import Pair, make_log_name
from tests.memory.memory_samples import NAMES, open_memory, read_fixed_time
from tests.memory.store_drivers import open_postgres_stores

SENDERS = st.text(min_size=1, max_size=30) | st.sampled_from(
    ["tg:1", "tg%3A1", "tg\x1e1", "\x1e", "%", "%1E", "x" * 300, "x" * 301, "é" * 200]
)
OWNERS = Owners(["alice"], account="me")


@pytest.mark.req("memory.author.names")
@given(one=SENDERS, other=SENDERS, name=NAMES, another=NAMES)
def test_stored_names_are_as_different_as_authors_and_names(
    one: str, other: str, name: str, another: str
) -> None:
    entry = add_author(MemoryEntry(1, 1, EntryKind.NOTE, name, "", (another,)), encode_author(one))
    assert get_author(entry) == encode_author(one) != ""
    assert strip_author(entry) == MemoryEntry(1, 1, EntryKind.NOTE, name, "", (another,))
    is_same = entry.name == qualify_name(encode_author(other), another)
    assert is_same == ((one, name) == (other, another))
    assert len(encode_author(one).encode()) <= 256


@pytest.mark.req("memory.author.crmem")
@given(sender=SENDERS, name=NAMES)
def test_authors_are_ordinary_text_to_other_readers_of_the_file(sender: str, name: str) -> None:
    entry = add_author(
        MemoryEntry(1, 1, EntryKind.NOTE, name, "x", (name + "2",)), encode_author(sender)
    )
    data = crmem.encode_memory([entry], 2)
    assert crmem.decode_memory(data).entries == [entry]
    assert crmem.encode_memory(crmem.decode_memory(data).entries, 2) == data


WORDS = ["ash", "birch", "cedar", "elm", "fir"]


@st.composite
def draw_shared_entries(draw: st.DrawFn) -> list[MemoryEntry]:
    """Notes of a few authors and archives of a few conversations, some of them similar."""
    entries = []
    for number in range(1, draw(st.integers(1, 150))):
        content = " ".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=4)))
        author = draw(st.sampled_from(["", "a", "b"]))
        if draw(st.booleans()):
            name = f"n{number}"
            entries.append(
                MemoryEntry(number, 1, EntryKind.NOTE, qualify_name(author, name), content)
            )
        else:
            entries.append(
                MemoryEntry(number, 1, EntryKind.ARCHIVE, f"c{author}-{number}", content)
            )
    return entries


VIEWS = st.builds(
    MemoryView,
    st.none() | st.lists(st.sampled_from(["", "a", "b", "z"]), unique=True).map(tuple),
    st.none() | st.lists(st.sampled_from(["c", "ca", "cb", "cz"]), unique=True).map(tuple),
)


@pytest.mark.req("memory.author.search")
@settings(deadline=None)
@given(
    entries=draw_shared_entries(),
    view=VIEWS,
    query=st.lists(st.sampled_from([*WORDS, "n3", "oak"]), min_size=1, max_size=4),
    limit=st.integers(1, 7),
)
def test_a_search_in_a_view_equals_a_filtered_search_of_everything(
    entries: list[MemoryEntry], view: MemoryView, query: list[str], limit: int
) -> None:
    memory = Memory(Path("crab"), entries, 1000, None)
    everything = memory.search(" ".join(query), 1000)
    expected = [hit for hit in everything if view.includes(hit.entry)][:limit]
    hits = memory.search(" ".join(query), limit, view)
    assert [round(hit.score, 9) for hit in hits] == [round(hit.score, 9) for hit in expected]
    assert all(view.includes(hit.entry) for hit in hits)
    # Sums in another order differ in their last digits, so equal hits may change places.
    assert {hit.entry.id for hit in hits if hit.score > hits[-1].score + 1e-9} == {
        hit.entry.id for hit in expected if hit.score > expected[-1].score + 1e-9
    }
    included = {entry.id for entry in memory.entries() if view.includes(entry)}
    assert {entry.id for entry in memory.entries(view)} == included


@pytest.mark.slow
@pytest.mark.clock
@pytest.mark.req("memory.author.search")
def test_a_hundred_thousand_entries_of_many_authors_are_searched_without_a_scan() -> None:
    dice = random.Random(7)
    words = [f"w{number}" for number in range(8000)]
    weights = [1 / (number + 3) for number in range(8000)]
    entries = []
    for number in range(1, 100_001):
        content = " ".join(dice.choices(words, weights, k=12))
        if number % 2:
            entries.append(
                MemoryEntry(number, 1, EntryKind.ARCHIVE, f"c{number % 2000}-{number}", content)
            )
        else:
            author = f"s{number % 2000}" if number % 20 else ""
            name = qualify_name(author, f"note {number}")
            entries.append(MemoryEntry(number, 1, EntryKind.NOTE, name, content))
    memory = Memory(Path("crab"), entries, 100_001, None)

    def measure_median(view: MemoryView) -> float:
        taken = []
        for _ in range(50):
            query = " ".join([*dice.sample(words[5:60], 2), *dice.sample(words[500:], 2)])
            start = time.process_time()
            memory.search(query, 5, view)
            taken.append(time.process_time() - start)
        return sorted(taken)[25]

    whole = measure_median(MemoryView())
    assert measure_median(MemoryView(("",), ("cnone",))) < 3 * whole + 0.002
    assert measure_median(MemoryView(("s22",), ("c23",))) < whole


# ── Limits ──────────────────────────────────────────────────────────────────────────────────────


def make_access(sender: str) -> MemoryAccess:
    return grant_access("author", OWNERS, Pair("crab", sender), sees_all_archives=False)


@pytest.mark.req("memory.author.room")
def test_other_senders_cannot_fill_the_owners_memory(tmp_path: Path) -> None:
    full = [
        MemoryEntry(0, 1, EntryKind.NOTE, qualify_name(f"s{number % 60}", f"n{number}"), "x")
        for number in range(MAX_AUTHORED_NOTES)
    ]
    with open_memory(tmp_path / "crab.crmem") as memory:
        memory.replace(full)
        for sender in ("s1", "tg:new"):
            with pytest.raises(MemoryLimitError, match="not its owner's"):
                write_note(memory, make_access(sender), "one more", "x", None)
        write_note(memory, make_access("s1"), "n1", "replaced", None)
        write_note(memory, make_access("user"), "mine", "x", None)
        assert forget_note(memory, make_access("s1"), "n1")
        write_note(memory, make_access("s1"), "one more", "x", None)


@pytest.mark.req("memory.author.room")
def test_a_sender_may_keep_a_limited_number_of_notes(tmp_path: Path) -> None:
    full = [
        MemoryEntry(0, 1, EntryKind.NOTE, qualify_name("tg:1", f"n{number}"), "x")
        for number in range(MAX_AUTHOR_NOTES)
    ]
    with open_memory(tmp_path / "crab.crmem") as memory:
        memory.replace(full)
        with pytest.raises(MemoryLimitError, match="forget some first"):
            write_note(memory, make_access("tg:1"), "one more", "x", None)
        write_note(memory, make_access("tg:2"), "one more", "x", None)
        write_note(memory, make_access("user"), "one more", "x", None)
        assert forget_note(memory, make_access("tg:1"), "n0")
        write_note(memory, make_access("tg:1"), "one more", "x", None)


@pytest.mark.req("memory.author.names")
def test_a_refusal_shows_names_without_their_authors(tmp_path: Path) -> None:
    with open_memory(tmp_path / "crab.crmem") as memory:
        write_note(memory, make_access("tg:1"), "door", "x", ("lock",))
        with pytest.raises(NameTakenError) as caught:
            write_note(memory, make_access("tg:1"), "gate", "x", ("lock",))
        assert str(caught.value).startswith("'lock' already leads to a note called 'door'")
        for empty in ("", " "):
            with pytest.raises(MemoryLimitError, match="is empty"):
                write_note(memory, make_access("tg:1"), empty, "x", None)


# ── Many people at once ─────────────────────────────────────────────────────────────────────────

PEOPLE = ["user", "user~work", "alice", "me", "tg:1", "tg:2", "tg\x1e1", "USER", " ", "x" * 300]
SHORT = st.sampled_from(["ash", "birch", "cedar", "\x1etg:1\x1eash", "\x1ex", "user", "tg:1"])
PERSON = st.sampled_from(PEOPLE)


def get_person(sender: str) -> str:
    return "user" if OWNERS.is_owner(sender) else sender


class SharedMemoryMachine(RuleBasedStateMachine):
    """The memory compared with a dict for each person: name → content and aliases."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "crab.crmem"
        self.memory = open_memory(self.path)
        self.notes: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
            get_person(sender): {} for sender in PEOPLE
        }
        self.archives: set[str] = set()

    def find_note(self, sender: str, name: str) -> str | None:
        notes = self.notes[get_person(sender)]
        if name in notes:
            return name
        return next((key for key, (_, aliases) in notes.items() if name in aliases), None)

    @rule(
        sender=PERSON,
        name=SHORT,
        content=st.text(max_size=5),
        aliases=st.none() | st.lists(SHORT, max_size=2).map(tuple),
    )
    def remember(
        self, sender: str, name: str, content: str, aliases: tuple[str, ...] | None
    ) -> None:
        known = self.find_note(sender, name)
        key = name if known is None else known
        notes = self.notes[get_person(sender)]
        before = notes.get(key)
        wanted = tuple(
            alias
            for alias in dict.fromkeys(
                aliases if aliases is not None else before[1] if before else ()
            )
            if alias != key
        )
        old_names = (key, *before[1]) if before else ()
        is_taken = any(
            self.find_note(sender, key_or_alias) not in (None, key)
            and key_or_alias not in old_names
            for key_or_alias in ((key,) if before is None else ()) + wanted
        )
        is_owner = get_person(sender) == "user"
        is_foreign = is_owner and any(n.startswith("\x1e") for n in (name, *(aliases or ())))
        is_refused = is_taken or is_foreign
        try:
            write_note(self.memory, make_access(sender), name, content, aliases)
        except (MemoryLimitError, NameTakenError):
            assert is_refused
        else:
            assert not is_refused
            notes[key] = (content, wanted)

    @rule(sender=PERSON, name=SHORT)
    def forget(self, sender: str, name: str) -> None:
        known = self.find_note(sender, name)
        assert forget_note(self.memory, make_access(sender), name) is (known is not None)
        if known is not None:
            del self.notes[get_person(sender)][known]

    @rule(sender=PERSON)
    def compact(self, sender: str) -> None:
        self.memory.archive(f"{make_log_name(Pair('crab', sender))}-1", "archived")
        self.archives.add(sender)

    @rule(sender=st.sampled_from(["tg:1", "tg:2", "user"]), names=st.lists(SHORT, unique=True))
    def replace(self, sender: str, names: list[str]) -> None:
        access = make_access(sender)
        entries = [MemoryEntry(0, 1, EntryKind.NOTE, name, "replaced") for name in names]
        try:
            self.memory.replace(map(access.to_stored, entries), access.view)
        except MemoryLimitError:
            assert sender == "user"
            assert any(name.startswith("\x1e") for name in names)
        else:
            self.notes[get_person(sender)] = dict.fromkeys(names, ("replaced", ()))
            self.archives.discard(sender)

    @rule()
    def fold(self) -> None:
        self.memory.checkpoint()

    @rule()
    def crash(self) -> None:
        self.memory._backend.close(remove=False)  # type: ignore[union-attr]
        self.memory = open_memory(self.path)

    @rule()
    def dump_and_load(self) -> None:
        book = self.directory / "book"
        self.memory.dump(book)
        self.memory.load(book)

    @invariant()
    def each_person_sees_exactly_their_own(self) -> None:
        for sender in PEOPLE:
            access = make_access(sender)
            entries = [access.to_visible(entry) for entry in self.memory.entries(access.view)]
            notes = {
                entry.name: (entry.content, entry.aliases)
                for entry in entries
                if entry.kind is EntryKind.NOTE
            }
            assert notes == self.notes[get_person(sender)]
            own = {f"{make_log_name(Pair('crab', sender))}-1"} if sender in self.archives else set()
            assert {entry.name for entry in entries if entry.kind is EntryKind.ARCHIVE} == own
            for hit in self.memory.search(
                "ash birch cedar user replaced archived", 50, access.view
            ):
                assert access.view.includes(hit.entry)

    def teardown(self) -> None:
        self.memory.close()
        shutil.rmtree(self.directory)


@pytest.mark.req("memory.author.isolated")
def test_no_sender_ever_sees_or_changes_what_another_wrote() -> None:
    run_state_machine_as_test(
        SharedMemoryMachine,
        settings=settings(max_examples=40, stateful_step_count=30, deadline=None),
    )


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("memory.author.postgres")
def test_authors_work_alike_in_a_database_and_move_both_ways(
    postgres_url: str, tmp_path: Path
) -> None:
    with open_memory(tmp_path / "crab.crmem") as memory:
        for sender in ("user", "tg:1", "tg\x1e1"):
            write_note(memory, make_access(sender), "door", sender, ("lock",))
        data = memory.encode()
    with open_postgres_stores(postgres_url, 1) as (store,):
        store.import_memory("crab", data)
        assert store.export_memory() == data
        with store.open() as memory:
            for sender in ("user", "tg:1", "tg\x1e1"):
                hits = memory.search("lock", 5, make_access(sender).view)
                assert [hit.entry.content for hit in hits] == [sender]
            write_note(memory, make_access("tg:1"), "lock", "changed", None)
            assert forget_note(memory, make_access("tg\x1e1"), "door")
        with store.open() as memory:
            assert [entry.content for entry in memory.entries()] == ["user", "changed"]


@pytest.mark.req("memory.author.postgres")
def test_replacing_a_part_keeps_what_another_daemon_wrote_meanwhile(postgres_url: str) -> None:
    with open_postgres_stores(postgres_url, 2) as (here, there):
        mine, theirs = here.open(), there.open()
        write_note(theirs, make_access("tg:2"), "first", "theirs", None)
        for content in ("one", "two"):
            access = make_access("tg:1")
            entries = [MemoryEntry(0, int(read_fixed_time()), EntryKind.NOTE, "door", content)]
            mine.replace(map(access.to_stored, entries), access.view)
            there.catch_up(theirs)
            contents = [entry.content for entry in theirs.entries(make_access("tg:2").view)]
            assert contents == ["theirs"] * len(contents) != []
            assert [entry.content for entry in theirs.entries(access.view)] == [content]
            write_note(theirs, make_access("tg:2"), f"after {content}", "theirs", None)
        mine.close()
        theirs.close()
