"""However much of a turn was written live, the log provides the rest once."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.web.tests.gateway.device_client import check_order, format_envelopes
from crabtalk.protocol import wire
from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import (
    AnyRunEvent,
    RunBegan,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)
from crabtalk_web.gateway import GatewayConfig, RelayCredentials
from crabtalk_web.gateway.conversation_journal import ConversationJournal
from crabtalk_web.gateway.envelope_writer import EnvelopeWriter
from crabtalk_web.gateway.journal_entries import SessionOpened
from crabtalk_web.gateway.record_log import RecordLog, WrittenRecords, skip_characters
from crabtalk_web.gateway.run_merger import RunMerger
from crabtalk_web.gateway.session_identity import SessionIdentity, derive_identity
from crabtalk_web.sealing import MasterSecret
from crabtalk_web.stream import Envelope, TextEvent, ToolCallEnd, ToolCallStart, TurnEnd

RUN = "run"
words = st.sampled_from(["a", "b c", "a\n\nb", "x" * 5000, "  y  ", "ä ö", "```\nz\n\n" * 3])


def format_time(second: int) -> str:
    return f"2026-01-01T00:{second // 60:02}:{second % 60:02}.000Z"


@st.composite
def generate_turn(draw: st.DrawFn) -> list[wire.ConversationRecord]:
    """The log records of a turn: steps with calls, some steered, the answer and the end."""
    found = [wire.ConversationMessage(role="user", content=draw(words))]
    for step in range(draw(st.integers(0, 3))):
        # Some models number their calls from one in every step.
        calls = [
            wire.ToolCallInfo(id=f"c{number}", name="recall", arguments='{"query":"q"}')
            for number in range(draw(st.integers(1, 3)))
        ]
        reasoning = draw(st.none() | words)
        content = draw(st.just("") | words)
        found.append(
            wire.ConversationMessage(
                role="assistant", content=content, reasoning=reasoning, tool_calls=calls
            )
        )
        found += [
            wire.ConversationMessage(
                role="tool",
                content=f"r{step}{call.id}",
                call_id=call.id,
                is_error=draw(st.booleans()),
            )
            for call in calls
        ]
        if draw(st.booleans()):
            steer = sum(m.steer > 0 for m in found) + 1
            found.append(
                wire.ConversationMessage(role="user", content=f"steer {step}", steer=steer)
            )
    found.append(wire.ConversationMessage(role="assistant", content=draw(words)))
    for number, message in enumerate(found):
        message.id, message.run_id, message.timestamp = number, RUN, format_time(number)
    records = [wire.ConversationRecord(message=message) for message in found]
    end = wire.RunEndRecord(
        run_id=RUN,
        timestamp=format_time(len(found)),
        stop_reason=wire.STOP_REASON_COMPLETED,
        agent="crab",
    )
    return [*records, wire.ConversationRecord(run_end=end)]


def generate_events(records: list[wire.ConversationRecord], size: int) -> Iterator[AnyRunEvent]:
    """The events of the feed, with texts in pieces of `size` characters."""
    yield RunBegan("")
    calls = 0
    for record in records[1:-1]:
        message = record.message
        if message.role == "user":
            yield RunSteered(message.content)
        elif message.role == "tool":
            yield ToolReturned(message.call_id, message.content, message.is_error)
            calls -= 1
            if calls == 0:
                yield StepEnded()
        else:
            for text, thinking in ((message.reasoning, True), (message.content, False)):
                for start in range(0, len(text), size):
                    yield TextPiece(text[start : start + size], thinking=thinking)
                if text:
                    yield SegmentEnded()
            if message.tool_calls:
                calls = len(message.tool_calls)
                yield ToolsCalled(
                    tuple(ToolCallRequest(c.id, c.name, c.arguments) for c in message.tool_calls)
                )


def make_identity() -> SessionIdentity:
    keys = MasterSecret(bytes(32)).content_keys
    credentials = RelayCredentials("http://127.0.0.1", "token", keys.public)
    return derive_identity(credentials, "crab", "user")


class GatewayProcess:
    """The parts of a gateway that write envelopes, restarted from its journal; `written` are the
    envelopes of all of them."""

    def __init__(self, identity: SessionIdentity, path: Path, written: list[Envelope]) -> None:
        self._journal = ConversationJournal(path)
        self._journal.open()
        if not self._journal.state.session:
            self._journal.append(SessionOpened("s", "crab", "user"))
        self._written = written
        self._log = RecordLog(identity)
        self._writer = EnvelopeWriter(
            identity, self._journal, GatewayConfig(), self._written.extend
        )
        self.runs = RunMerger(identity, self._writer, self._log, lambda: True)

    def read(self, records: list[wire.ConversationRecord]) -> None:
        """The log has these records by now."""
        for position, record in enumerate(records):
            record.position = position
        start = max(self._log.position, self._journal.state.log_position)
        page = wire.RecordPage(records=records[start:], next_position=len(records), log_id="log")
        self._log.add_page(page)
        self.runs.must_read = False
        self.runs.write_entries()

    def handle_event(self, what: AnyRunEvent, second: int) -> None:
        self.runs.handle_event(
            ReceivedEvent(run=RUN, event=what, at=second, agent="crab", sender="user")
        )
        self.runs.write_entries()

    def flush_idle_text(self) -> None:
        self._writer.flush_idle_text(0)

    def flush_and_close(self) -> None:
        asyncio.run(self._journal.flush())
        self._journal.close()


def list_content(envelopes: list[Envelope]) -> list[str]:
    """What people read, in order, however it was split into pieces."""
    found: list[str] = []
    for envelope in envelopes:
        match envelope.ev:
            case TextEvent(text=text, thinking=thinking):
                found += [f"{envelope.role} {thinking} {letter}" for letter in strip_spaces(text)]
            case ToolCallStart(call=call):
                found.append(f"start {call}")
            case ToolCallEnd(call=call, result=result, is_error=is_error):
                found.append(f"end {call} {result} {is_error}")
            case TurnEnd(status=status):
                found.append(status)
            case _:
                pass
    return found


def strip_spaces(text: str) -> str:
    return "".join(text.split())


def count_known_records(records: list[wire.ConversationRecord], steps: int, steers: int) -> int:
    """How many records the log has at least after so many steps and steers."""
    for number, record in enumerate(records):
        if record.message.tool_calls:
            steps -= 1
        if record.message.steer:
            steers -= 1
        if steps == 0 and steers <= 0 and (record.message.tool_calls or record.message.steer):
            return number + 1
    return 1


@pytest.mark.req("gateway.delivery.records")
@given(generate_turn(), st.data())
@settings(max_examples=40, deadline=None)
def test_a_partly_received_turn_is_written_completely_and_once(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[wire.ConversationRecord],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("writer")
    identity = make_identity()
    whole: list[Envelope] = []
    process = GatewayProcess(identity, folder / "whole.jsonl", whole)
    process.read(records)
    process.flush_and_close()
    check_order(whole)

    written: list[Envelope] = []
    process = GatewayProcess(identity, folder / "parts.jsonl", written)
    events = list(generate_events(records, data.draw(st.sampled_from([1, 7, 3000]))))
    received_count = data.draw(st.integers(0, len(events)))
    steps = steers = 0
    for second, what in enumerate(events[:received_count]):
        process.handle_event(what, second)
        steps += isinstance(what, ToolsCalled)
        steers += isinstance(what, RunSteered)
        if isinstance(what, RunBegan | ToolsCalled | RunSteered):
            process.read(records[: count_known_records(records, steps, steers)])
        if data.draw(st.integers(0, 9)) == 0:
            process.flush_idle_text()
    if data.draw(st.booleans()):
        process.flush_and_close()
        process = GatewayProcess(identity, folder / "parts.jsonl", written)
    process.runs.live_run = None
    process.read(records)
    process.flush_and_close()
    assert list_content(written) == list_content(whole), format_envelopes(written)
    check_order(written)


@pytest.mark.req("gateway.delivery.records")
def test_text_of_a_run_waits_until_older_records_are_written(tmp_path: Path) -> None:
    """The daemon died in the earlier run: the log has nothing but its message."""
    texts = [("dead", "one"), (RUN, "two")]
    records = [
        wire.ConversationRecord(
            message=wire.ConversationMessage(
                role="user", content=text, id=number, run_id=run, timestamp=format_time(number)
            )
        )
        for number, (run, text) in enumerate(texts)
    ]
    written: list[Envelope] = []
    process = GatewayProcess(make_identity(), tmp_path / "j.jsonl", written)
    process.handle_event(RunBegan(""), 0)
    process.handle_event(TextPiece("half "), 1)
    process.handle_event(TextPiece("an answer"), 2)
    assert written == []
    process.read(records)
    process.handle_event(TextPiece(" and on"), 3)
    process.flush_idle_text()
    answer = wire.ConversationMessage(
        role="assistant",
        content="half an answer and on",
        id=2,
        run_id=RUN,
        timestamp=format_time(2),
    )
    end = wire.RunEndRecord(
        run_id=RUN, timestamp=format_time(3), stop_reason=wire.STOP_REASON_COMPLETED
    )
    process.runs.live_run = None
    process.read(
        [*records, wire.ConversationRecord(message=answer), wire.ConversationRecord(run_end=end)]
    )
    process.flush_and_close()
    check_order(written)
    shown_texts = [(e.role, e.ev.text) for e in written if isinstance(e.ev, TextEvent)]
    assert shown_texts == [("user", "one"), ("user", "two"), ("agent", "half an answer and on")]
    assert [e.ev.status for e in written if isinstance(e.ev, TurnEnd)] == ["failed", "completed"]


@pytest.mark.req("gateway.delivery.migration")
def test_without_a_position_written_records_are_known_by_number_and_time() -> None:
    messages = [
        wire.ConversationRecord(
            message=wire.ConversationMessage(
                role=role, content="x", id=number, timestamp=format_time(second)
            )
        )
        for number, (role, second) in enumerate(
            [("user", 1), ("assistant", 2), ("user", 2), ("assistant", 3)]
        )
    ]
    base = 1767225600_000

    def untold(position: int, through: int) -> list[int]:
        written = WrittenRecords(position, through)
        return [record.message.id for record in messages if not written.contains(record)]

    assert untold(0, 0) == [0, 1, 2, 3]
    assert untold(1, 0) == [1, 2, 3]
    # In the millisecond in which a turn ended, the next one may have begun.
    assert untold(0, base + 2000) == [2, 3]
    assert untold(0, base + 3000) == []


@pytest.mark.req("gateway.delivery.migration")
@given(st.text(alphabet="ab \n", max_size=30), st.integers(0, 30))
def test_spaces_are_not_counted_as_written(text: str, count: int) -> None:
    place = skip_characters(text, count)
    assert len(strip_spaces(text[:place])) == min(count, len(strip_spaces(text)))
