"""The journal: what is in it is known, whatever happens to the process."""

import asyncio
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from crabtalk.component.gateway import Chat, GatewayError, Person, Update
from crabtalk.component.gateway.book import Book
from crabtalk.component.gateway.entries import (
    Answering,
    AnyRecord,
    Ask,
    Asking,
    Came,
    ChatNote,
    Chose,
    Closed,
    Done,
    Filed,
    Filled,
    Formed,
    LeftOut,
    Noticed,
    Sending,
    Sent,
    Unasked,
    Unsent,
)
from crabtalk.component.gateway.journal import Journal, reader
from crabtalk.component.journal import encoded

ASK = Ask(kind="turn", agent="crab", sender="pg:7", text="hello", offset=3)


def update(key: str, text: str = "hello", chat: str = "7") -> Update:
    return Update(key, Chat(chat), Person("7", "Ann"), text)


RECORDS: list[AnyRecord] = [
    Came(update("u1")),
    LeftOut("u0", '{"update_id": 0}'),
    Asking("u1", ASK),
    Unasked("u1"),
    Answering("u1", "hi"),
    Sending("u1"),
    Sent("u1", "m1", is_marked=True),
    Unsent("u1"),
    Closed("u1", 5),
    Formed("u1", "a1", Filled("m2", {0: ["Red"]}, [0])),
    Filed("u1", "c1", is_sent=True),
    Chose("7", "twin"),
    Noticed("7", is_away=True),
    Done("u1"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: AnyRecord) -> None:
    assert reader.decode(encoded(record)) == record


@pytest.mark.req("gateways.once.journal")
async def test_what_was_flushed_is_there_after_a_crash(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "pigeon" / "journal")
    journal.open()
    await journal.keep(*RECORDS[:-1])
    journal.note(Done("u1"))  # and the process dies
    again = Journal.peek(journal.path)
    (item,) = again.items.values()
    assert item.ask is None
    assert (item.text, item.closed, item.files) == ("hi", 5, {"c1": True})
    assert item.forms == {"a1": Filled("m2", {0: ["Red"]}, [0])}
    assert again.chat("7") == ChatNote("twin", is_told_away=True)
    assert again.is_known("u0")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700
    journal.close()


async def test_a_torn_last_line_is_cut_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = encoded(Came(update("u1")))
    path.write_bytes(whole + encoded(Came(update("u2")))[:-7])
    journal = Journal(path)
    journal.open()
    assert list(journal.book.items) == ["u1"]
    await journal.keep(Came(update("u3")))
    journal.close()
    assert list(Journal.peek(path).items) == ["u1", "u3"]


async def test_what_is_damaged_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(encoded(Came(update("u1"))) + b"\xff\xfenonsense\n" + b"{}\n")
    journal = Journal(path)
    journal.open()
    assert list(journal.book.items) == ["u1"]
    assert path.with_suffix(".damaged").read_bytes() == b"\xff\xfenonsense\n{}\n"
    journal.close()


async def test_a_journal_that_cannot_be_used_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(GatewayError, match="see to its permissions"):
        Journal(tmp_path / "journal").open()


@pytest.mark.req("gateways.bounds.journal")
async def test_a_journal_is_written_anew_when_most_of_it_is_history(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", Book(most_seen=50), worth_shortening=4096)
    journal.open()
    await journal.keep(Came(update("stays")), Chose("7", "twin"))
    largest = 0
    for number in range(500):
        await journal.keep(Came(update(f"u{number}")), Done(f"u{number}"))
        largest = max(largest, journal.path.stat().st_size)
    assert largest < 8192
    await asyncio.gather(*(journal.keep(Came(update(f"v{n}"))) for n in range(50)))
    journal.close()
    again = Journal.peek(journal.path)
    assert list(again.items) == ["stays", *(f"v{n}" for n in range(50))]
    assert again.chat("7").agent == "twin"


async def test_a_disk_that_is_full_is_said_and_nothing_is_forgotten(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.open()
    await journal.keep(Came(update("u1")))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.size + 3, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            await journal.keep(Came(update("u2")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(Journal.peek(journal.path).items) == ["u1"]
    await journal.flush()
    assert list(Journal.peek(journal.path).items) == ["u1", "u2"]
    journal.close()


@pytest.mark.req("gateways.once.journal")
@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_journal_that_somebody_took_away_is_written_anew_whole(
    tmp_path: Path, is_gone: bool
) -> None:
    journal = Journal(tmp_path / "journal")
    journal.open()
    await journal.keep(Came(update("u1")))
    if is_gone:
        journal.path.unlink()
    else:
        journal.path.write_bytes(b"")
    await journal.keep(Came(update("u2")))
    await journal.keep(Came(update("u3")))
    journal.close()
    assert list(Journal.peek(journal.path).items) == ["u1", "u2", "u3"]
    assert journal.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("gateways.bounds.seen")
def test_the_ids_that_are_known_and_the_chats_that_are_remembered_are_bounded() -> None:
    book = Book(most_seen=100, most_chats=100)
    for number in range(1000):
        book.apply(Came(update(f"u{number}")))
        book.apply(Done(f"u{number}"))
        book.apply(Chose(f"{number}", "twin"))
    assert len(book.seen) == len(book.chats) == 100
    assert book.is_known("u999")
    assert not book.is_known("u1")
    assert book.chat("999").agent == "twin"
    book.apply(Chose("999", ""))
    assert len(book.chats) == 99, "what is as by default takes no room"
    assert book.waiting_characters == 0


IDS = st.sampled_from(["u1", "u2", "u3"])
ANY = st.one_of(
    IDS.map(lambda key: Came(update(key))),
    IDS.map(lambda key: LeftOut(key, "?")),
    st.builds(Asking, IDS, st.just(ASK)),
    st.builds(Unasked, IDS),
    st.builds(Sending, IDS),
    st.builds(Sent, IDS, st.just("m")),
    st.builds(Unsent, IDS),
    st.builds(Closed, IDS, st.integers(0, 9)),
    st.builds(Done, IDS),
    st.builds(Chose, st.just("7"), st.sampled_from(["", "twin"])),
    st.builds(Noticed, st.just("7"), st.booleans()),
)


class Journalled(RuleBasedStateMachine):
    """However it is noted, flushed, torn and written anew, disk and memory agree."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.journal = self.opened()

    def opened(self) -> Journal:
        path = Path(self.directory.name) / "journal"
        journal = Journal(path, Book(most_seen=4), worth_shortening=600)
        journal.open()
        return journal

    @rule(records=st.lists(ANY, max_size=5))
    def keep(self, records: list[AnyRecord]) -> None:
        self.runner.run(self.journal.keep(*records))

    @rule(record=ANY)
    def crash_before_the_flush(self, record: AnyRecord) -> None:
        before = self.journal.book.whole()
        expected = encoded(before)
        self.journal.note(record)
        self.journal.close()
        self.journal = self.opened()
        assert encoded(self.journal.book.whole()) == expected

    @rule(record=ANY, torn=st.integers(1, 20))
    def crash_within_a_line(self, record: AnyRecord, torn: int) -> None:
        expected = encoded(self.journal.book.whole())
        self.journal.close()
        with self.journal.path.open("ab") as file:
            file.write(encoded(record)[:-torn])
        self.journal = self.opened()
        assert encoded(self.journal.book.whole()) == expected

    @invariant()
    def disk_and_memory_agree(self) -> None:
        again = Journal(self.journal.path, Book(most_seen=4))
        again.replay(self.journal.path.read_bytes())
        assert encoded(again.book.whole()) == encoded(self.journal.book.whole())

    def teardown(self) -> None:
        self.journal.close()
        self.runner.close()
        self.directory.cleanup()


TestJournalled = Journalled.TestCase
TestJournalled.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@given(st.text())
def test_any_text_can_be_kept(text: str) -> None:
    encoded(Came(update("u1", text)))
    encoded(Came(update("u1", text + "\ud83d")))
