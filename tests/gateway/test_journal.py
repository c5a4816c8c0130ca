"""The journal: its content survives whatever happens to the process."""

import asyncio
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from crabtalk.gateway import Chat, GatewayError, Person, Update
from crabtalk.gateway.gateway_state import GatewayState
from crabtalk.gateway.journal import GatewayJournal, record_decoder
from crabtalk.gateway.journal_records import (
    AgentChosen,
    AnswerPrepared,
    AnyGatewayRecord,
    AvailabilityNotified,
    ChatState,
    DaemonRequest,
    FileSendUpdated,
    FormProgress,
    FormUpdated,
    RequestNotSent,
    RequestStarted,
    SendCompleted,
    SendFailed,
    SendStarted,
    TextDelivered,
    UpdateHandled,
    UpdateReceived,
    UpdateSkipped,
)
from crabtalk.service.journal import encode_record

ASK = DaemonRequest(kind="turn", agent="crab", sender="pg:7", text="hello", offset=3)


def make_update(key: str, text: str = "hello", chat: str = "7") -> Update:
    return Update(key, Chat(chat), Person("7", "Ann"), text)


RECORDS: list[AnyGatewayRecord] = [
    UpdateReceived(make_update("u1")),
    UpdateSkipped("u0", '{"update_id": 0}'),
    RequestStarted("u1", ASK),
    RequestNotSent("u1"),
    AnswerPrepared("u1", "hi"),
    SendStarted("u1"),
    SendCompleted("u1", "m1", is_marked=True),
    SendFailed("u1"),
    TextDelivered("u1", 5),
    FormUpdated("u1", "a1", FormProgress("m2", {0: ["Red"]}, [0])),
    FileSendUpdated("u1", "c1", is_sent=True),
    AgentChosen("7", "twin"),
    AvailabilityNotified("7", is_away=True),
    UpdateHandled("u1"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: AnyGatewayRecord) -> None:
    assert record_decoder.decode(encode_record(record)) == record


@pytest.mark.req("gateways.once.journal")
async def test_flushed_records_survive_a_crash(tmp_path: Path) -> None:
    journal = GatewayJournal(tmp_path / "pigeon" / "journal")
    journal.open()
    await journal.append_and_flush(*RECORDS[:-1])
    journal.append(UpdateHandled("u1"))  # and the process dies
    restored = GatewayJournal.read_state(journal.path)
    (item,) = restored.pending.values()
    assert item.ask is None
    assert (item.text, item.closed, item.files) == ("hi", 5, {"c1": True})
    assert item.forms == {"a1": FormProgress("m2", {0: ["Red"]}, [0])}
    assert restored.get_chat("7") == ChatState("twin", is_told_away=True)
    assert restored.is_known("u0")
    assert journal.path.stat().st_mode & 0o777 == 0o600
    assert journal.path.parent.stat().st_mode & 0o777 == 0o700
    journal.close()


async def test_a_torn_last_line_is_cut_off_and_the_rest_survives(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    complete = encode_record(UpdateReceived(make_update("u1")))
    path.write_bytes(complete + encode_record(UpdateReceived(make_update("u2")))[:-7])
    journal = GatewayJournal(path)
    journal.open()
    assert list(journal.state.pending) == ["u1"]
    await journal.append_and_flush(UpdateReceived(make_update("u3")))
    journal.close()
    assert list(GatewayJournal.read_state(path).pending) == ["u1", "u3"]


async def test_damaged_data_is_saved_in_another_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(
        encode_record(UpdateReceived(make_update("u1"))) + b"\xff\xfenonsense\n" + b"{}\n"
    )
    journal = GatewayJournal(path)
    journal.open()
    assert list(journal.state.pending) == ["u1"]
    assert path.with_suffix(".damaged").read_bytes() == b"\xff\xfenonsense\n{}\n"
    journal.close()


async def test_an_unusable_journal_is_reported(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(GatewayError, match="see to its permissions"):
        GatewayJournal(tmp_path / "journal").open()


@pytest.mark.req("gateways.bounds.journal")
async def test_a_journal_is_compacted_when_most_of_it_is_old(tmp_path: Path) -> None:
    journal = GatewayJournal(tmp_path / "journal", GatewayState(max_seen=50), min_compact_size=4096)
    journal.open()
    await journal.append_and_flush(UpdateReceived(make_update("stays")), AgentChosen("7", "twin"))
    largest = 0
    for number in range(500):
        await journal.append_and_flush(
            UpdateReceived(make_update(f"u{number}")), UpdateHandled(f"u{number}")
        )
        largest = max(largest, journal.path.stat().st_size)
    assert largest < 8192
    await asyncio.gather(
        *(journal.append_and_flush(UpdateReceived(make_update(f"v{n}"))) for n in range(50))
    )
    journal.close()
    restored = GatewayJournal.read_state(journal.path)
    assert list(restored.pending) == ["stays", *(f"v{n}" for n in range(50))]
    assert restored.get_chat("7").agent == "twin"


async def test_a_full_disk_is_reported_and_no_record_is_lost(tmp_path: Path) -> None:
    journal = GatewayJournal(tmp_path / "journal")
    journal.open()
    await journal.append_and_flush(UpdateReceived(make_update("u1")))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.size + 3, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            await journal.append_and_flush(UpdateReceived(make_update("u2")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(GatewayJournal.read_state(journal.path).pending) == ["u1"]
    await journal.flush()
    assert list(GatewayJournal.read_state(journal.path).pending) == ["u1", "u2"]
    journal.close()


@pytest.mark.req("gateways.once.journal")
@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_removed_or_truncated_journal_is_written_again_whole(
    tmp_path: Path, is_gone: bool
) -> None:
    journal = GatewayJournal(tmp_path / "journal")
    journal.open()
    await journal.append_and_flush(UpdateReceived(make_update("u1")))
    if is_gone:
        journal.path.unlink()
    else:
        journal.path.write_bytes(b"")
    await journal.append_and_flush(UpdateReceived(make_update("u2")))
    await journal.append_and_flush(UpdateReceived(make_update("u3")))
    journal.close()
    assert list(GatewayJournal.read_state(journal.path).pending) == ["u1", "u2", "u3"]
    assert journal.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.req("gateways.bounds.seen")
def test_the_known_ids_and_remembered_chats_are_bounded() -> None:
    state = GatewayState(max_seen=100, max_chats=100)
    for number in range(1000):
        state.apply(UpdateReceived(make_update(f"u{number}")))
        state.apply(UpdateHandled(f"u{number}"))
        state.apply(AgentChosen(f"{number}", "twin"))
    assert len(state.seen_ids) == len(state.chats) == 100
    assert state.is_known("u999")
    assert not state.is_known("u1")
    assert state.get_chat("999").agent == "twin"
    state.apply(AgentChosen("999", ""))
    assert len(state.chats) == 99, "what is as by default takes no room"
    assert state.pending_characters == 0


IDS = st.sampled_from(["u1", "u2", "u3"])
ANY = st.one_of(
    IDS.map(lambda key: UpdateReceived(make_update(key))),
    IDS.map(lambda key: UpdateSkipped(key, "?")),
    st.builds(RequestStarted, IDS, st.just(ASK)),
    st.builds(RequestNotSent, IDS),
    st.builds(SendStarted, IDS),
    st.builds(SendCompleted, IDS, st.just("m")),
    st.builds(SendFailed, IDS),
    st.builds(TextDelivered, IDS, st.integers(0, 9)),
    st.builds(UpdateHandled, IDS),
    st.builds(AgentChosen, st.just("7"), st.sampled_from(["", "twin"])),
    st.builds(AvailabilityNotified, st.just("7"), st.booleans()),
)


class GatewayJournalMachine(RuleBasedStateMachine):
    """Disk and memory agree after any mix of appends, flushes, crashes and compactions."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.journal = self.open_journal()

    def open_journal(self) -> GatewayJournal:
        path = Path(self.directory.name) / "journal"
        journal = GatewayJournal(path, GatewayState(max_seen=4), min_compact_size=600)
        journal.open()
        return journal

    @rule(records=st.lists(ANY, max_size=5))
    def append_records(self, records: list[AnyGatewayRecord]) -> None:
        self.runner.run(self.journal.append_and_flush(*records))

    @rule(record=ANY)
    def crash_before_the_flush(self, record: AnyGatewayRecord) -> None:
        before = self.journal.state.snapshot()
        expected = encode_record(before)
        self.journal.append(record)
        self.journal.close()
        self.journal = self.open_journal()
        assert encode_record(self.journal.state.snapshot()) == expected

    @rule(record=ANY, torn=st.integers(1, 20))
    def crash_within_a_line(self, record: AnyGatewayRecord, torn: int) -> None:
        expected = encode_record(self.journal.state.snapshot())
        self.journal.close()
        with self.journal.path.open("ab") as file:
            file.write(encode_record(record)[:-torn])
        self.journal = self.open_journal()
        assert encode_record(self.journal.state.snapshot()) == expected

    @invariant()
    def disk_and_memory_agree(self) -> None:
        restored = GatewayJournal(self.journal.path, GatewayState(max_seen=4))
        restored.replay(self.journal.path.read_bytes())
        assert encode_record(restored.state.snapshot()) == encode_record(
            self.journal.state.snapshot()
        )

    def teardown(self) -> None:
        self.journal.close()
        self.runner.close()
        self.directory.cleanup()


TestGatewayJournal = GatewayJournalMachine.TestCase
TestGatewayJournal.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


@given(st.text())
def test_any_text_can_be_stored(text: str) -> None:
    encode_record(UpdateReceived(make_update("u1", text)))
    encode_record(UpdateReceived(make_update("u1", text + "\ud83d")))
