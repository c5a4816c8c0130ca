"""The journal: what was flushed is there after a crash, whatever the crash left of the rest."""

import asyncio
import resource
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk_web.gateway.book import Book
from crabtalk_web.gateway.entries import (
    AnyRecord,
    Handed,
    Inbound,
    Opened,
    Outgoing,
    Read,
    Renewed,
    Said,
    Sent,
    Trying,
)
from crabtalk_web.gateway.journal import Journal
from crabtalk_web.stream import Envelope, Text, TurnEnd, TurnStart, new_id

TURN = "c" * 24


def envelope(number: int, event: Text | TurnStart | TurnEnd | None = None) -> Envelope:
    return Envelope(
        id=new_id(), time=number, role="agent", turn=TURN, ev=event or Text(text=f"t{number}")
    )


said = st.builds(
    Said,
    envelopes=st.lists(
        st.sampled_from([envelope(1), envelope(2, TurnStart()), envelope(3, TurnEnd("completed"))]),
        max_size=3,
    ).map(tuple),
    run=st.sampled_from(["", "r1", "r2"]),
    position=st.integers(0, 9),
    through=st.integers(0, 9),
    seen=st.sampled_from(["", "hello"]),
    files=st.lists(
        st.builds(
            Outgoing,
            st.just("r1"),
            st.sampled_from(["a", "b"]),
            st.just("x.png"),
            st.sampled_from(["called", "due", "over"]),
        ),
        max_size=2,
    ).map(tuple),
    born=st.sampled_from([0, 5]),
)
inbound = st.builds(Inbound, st.integers(1, 9), st.sampled_from(["hello", "née", "\x00"]))
records = st.one_of(
    said,
    st.builds(Sent, st.integers(0, 3)),
    st.builds(Read, st.integers(0, 20), st.just(()), st.none() | inbound),
    st.builds(Trying, st.just("hello"), st.sampled_from(["", "ask"])),
    st.builds(Handed, st.booleans(), st.booleans()),
    st.builds(Opened, st.sampled_from(["s1", "s2"]), st.just("crab"), st.just("user")),
    st.builds(Renewed, st.just("crab"), st.just("user"), st.integers(1, 3), st.booleans()),
)


def book_of(written: list[AnyRecord]) -> Book:
    book = Book()
    for record in written:
        book.apply(record)
    return book


@pytest.mark.req("gateway.journal")
@given(st.lists(records, max_size=20), st.data())
@settings(max_examples=60)
def test_a_journal_cut_anywhere_is_one_of_fewer_records(
    tmp_path_factory: pytest.TempPathFactory, written: list[AnyRecord], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    journal = Journal(path)
    journal.open()
    for record in written:
        journal.note(record)
    asyncio.run(journal.flush())
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    again = Journal(path)
    again.open()
    count = whole[:cut].count(b"\n")
    assert again.book.whole() == book_of(written[:count]).whole()
    again.note(Read(99))
    asyncio.run(again.flush())
    again.close()
    assert Journal.peek(path).cursor == 99
    assert not path.with_suffix(".damaged").exists()


@pytest.mark.req("gateway.journal")
@given(st.lists(records, max_size=20), st.lists(records, max_size=10))
def test_a_book_that_was_shortened_goes_on_as_before(
    before: list[AnyRecord], after: list[AnyRecord]
) -> None:
    whole = msgspec.json.decode(
        msgspec.json.encode(book_of(before).whole()), type=type(Book().whole())
    )
    assert book_of([whole, *after]).whole() == book_of([*before, *after]).whole()


@pytest.mark.req("gateway.journal")
async def test_a_journal_is_shortened_to_what_it_still_has_to_say(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.open()
    journal.note(Opened("s", "crab", "user"))
    for number in range(3000):
        journal.note(Said((envelope(number, Text(text="x" * 500)),), "run", 0, 0))
        journal.note(Sent(1))
        if number % 50 == 0:
            journal.note(Said((envelope(number, TurnEnd("completed")),), "", number, number))
            journal.note(Sent(1))
            await journal.flush()
    journal.note(Said((envelope(3001),), "run", 0, 0))
    await journal.flush()
    assert path.stat().st_size < 600_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    book = journal.book
    journal.close()
    assert Journal.peek(path).whole() == book.whole()
    assert len(book.unsent) == 1


@pytest.mark.req("gateway.journal")
async def test_what_cannot_be_read_in_the_middle_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.open()
    journal.note(Opened("s", "crab", "user"))
    journal.note(Read(5))
    await journal.flush()
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"type":"Nonsense"}\n{"type":"Read","cursor":9}\n')
    again = Journal(path)
    again.open()
    assert again.book.cursor == 5
    assert b"Nonsense" in path.with_suffix(".damaged").read_bytes()
    again.close()


@pytest.mark.req("gateway.journal")
async def test_a_write_that_fails_is_made_good_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path)
    journal.open()
    journal.note(Opened("s", "crab", "user"))
    await journal.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 3, hard))
    journal.note(Read(7))
    try:
        with pytest.raises(OSError, match="too large"):
            await journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await journal.flush()
    journal.close()
    assert Journal.peek(path).cursor == 7
