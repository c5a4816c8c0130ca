"""The journal: flushed entries survive a crash, whatever happened to the rest."""

import asyncio
import resource
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk_web.gateway.conversation_journal import ConversationJournal
from crabtalk_web.gateway.conversation_state import ConversationState
from crabtalk_web.gateway.journal_entries import (
    AnyJournalEntry,
    DeliveryAttempt,
    DeliveryFinished,
    EnvelopesSent,
    EnvelopesWritten,
    InboundMessage,
    MessagesRead,
    OutgoingFile,
    SessionOpened,
    SessionRenewed,
)
from crabtalk_web.stream import Envelope, TextEvent, TurnEnd, TurnStart, new_id

TURN = "c" * 24


def make_envelope(number: int, event: TextEvent | TurnStart | TurnEnd | None = None) -> Envelope:
    return Envelope(
        id=new_id(), time=number, role="agent", turn=TURN, ev=event or TextEvent(text=f"t{number}")
    )


said = st.builds(
    EnvelopesWritten,
    envelopes=st.lists(
        st.sampled_from(
            [
                make_envelope(1),
                make_envelope(2, TurnStart()),
                make_envelope(3, TurnEnd("completed")),
            ]
        ),
        max_size=3,
    ).map(tuple),
    run=st.sampled_from(["", "r1", "r2"]),
    position=st.integers(0, 9),
    through=st.integers(0, 9),
    seen=st.sampled_from(["", "hello"]),
    files=st.lists(
        st.builds(
            OutgoingFile,
            st.just("r1"),
            st.sampled_from(["a", "b"]),
            st.just("x.png"),
            st.sampled_from(["called", "due", "over"]),
        ),
        max_size=2,
    ).map(tuple),
    born=st.sampled_from([0, 5]),
)
inbound = st.builds(InboundMessage, st.integers(1, 9), st.sampled_from(["hello", "née", "\x00"]))
records = st.one_of(
    said,
    st.builds(EnvelopesSent, st.integers(0, 3)),
    st.builds(MessagesRead, st.integers(0, 20), st.just(()), st.none() | inbound),
    st.builds(DeliveryAttempt, st.just("hello"), st.sampled_from(["", "ask"])),
    st.builds(DeliveryFinished, st.booleans(), st.booleans()),
    st.builds(SessionOpened, st.sampled_from(["s1", "s2"]), st.just("crab"), st.just("user")),
    st.builds(SessionRenewed, st.just("crab"), st.just("user"), st.integers(1, 3), st.booleans()),
)


def apply_records(written: list[AnyJournalEntry]) -> ConversationState:
    state = ConversationState()
    for record in written:
        state.apply(record)
    return state


@pytest.mark.req("gateway.journal")
@given(st.lists(records, max_size=20), st.data())
@settings(max_examples=60)
def test_a_truncated_journal_has_fewer_records(
    tmp_path_factory: pytest.TempPathFactory, written: list[AnyJournalEntry], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    journal = ConversationJournal(path)
    journal.open()
    for record in written:
        journal.append(record)
    asyncio.run(journal.flush())
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    reopened = ConversationJournal(path)
    reopened.open()
    count = whole[:cut].count(b"\n")
    assert reopened.state.snapshot() == apply_records(written[:count]).snapshot()
    reopened.append(MessagesRead(99))
    asyncio.run(reopened.flush())
    reopened.close()
    assert ConversationJournal.read_state(path).relay_cursor == 99
    assert not path.with_suffix(".damaged").exists()


@pytest.mark.req("gateway.journal")
@given(st.lists(records, max_size=20), st.lists(records, max_size=10))
def test_a_compacted_journal_has_the_same_state(
    before: list[AnyJournalEntry], after: list[AnyJournalEntry]
) -> None:
    whole = msgspec.json.decode(
        msgspec.json.encode(apply_records(before).snapshot()),
        type=type(ConversationState().snapshot()),
    )
    assert apply_records([whole, *after]).snapshot() == apply_records([*before, *after]).snapshot()


@pytest.mark.req("gateway.journal")
async def test_a_journal_is_compacted_to_its_state(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = ConversationJournal(path)
    journal.open()
    journal.append(SessionOpened("s", "crab", "user"))
    for number in range(3000):
        journal.append(
            EnvelopesWritten((make_envelope(number, TextEvent(text="x" * 500)),), "run", 0, 0)
        )
        journal.append(EnvelopesSent(1))
        if number % 50 == 0:
            journal.append(
                EnvelopesWritten((make_envelope(number, TurnEnd("completed")),), "", number, number)
            )
            journal.append(EnvelopesSent(1))
            await journal.flush()
    journal.append(EnvelopesWritten((make_envelope(3001),), "run", 0, 0))
    await journal.flush()
    assert path.stat().st_size < 600_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    state = journal.state
    journal.close()
    assert ConversationJournal.read_state(path).snapshot() == state.snapshot()
    assert len(state.unsent_envelopes) == 1


@pytest.mark.req("gateway.journal")
async def test_an_unreadable_part_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = ConversationJournal(path)
    journal.open()
    journal.append(SessionOpened("s", "crab", "user"))
    journal.append(MessagesRead(5))
    await journal.flush()
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"type":"Nonsense"}\n{"type":"Read","cursor":9}\n')
    reopened = ConversationJournal(path)
    reopened.open()
    assert reopened.state.relay_cursor == 5
    assert b"Nonsense" in path.with_suffix(".damaged").read_bytes()
    reopened.close()


@pytest.mark.req("gateway.journal")
async def test_a_failed_write_is_repeated_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = ConversationJournal(path)
    journal.open()
    journal.append(SessionOpened("s", "crab", "user"))
    await journal.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 3, hard))
    journal.append(MessagesRead(7))
    try:
        with pytest.raises(OSError, match="too large"):
            await journal.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await journal.flush()
    journal.close()
    assert ConversationJournal.read_state(path).relay_cursor == 7
