"""Converts the events of a conversation into envelopes and appends them to its journal.

It writes live events and records of the log, and stores with them how far the log was read.
`LogFollower` and `RunMerger` decide what is written when, and in which order.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from crabtalk_web.adapter import EnvelopeAdapter, GrowingText, OpenAsk, ReceivedEvent
from crabtalk_web.adapter.run_events import SegmentEnded, TextPiece, ToolReturned, ToolsCalled
from crabtalk_web.stream import Envelope, EnvelopeError, FileEvent, ServiceEvent, encode_envelope
from crabtalk_web.stream.json_values import parse_json

from .config import GatewayConfig
from .conversation_journal import ConversationJournal
from .conversation_state import ConversationState
from .journal_entries import EnvelopesWritten, OutgoingFile, RunProgress
from .session_identity import SessionIdentity

SEND_FILE = "send_file"
END_UNSEEN_TEXT = "The end of this turn was not seen; what became of it is in the conversation."

log = logging.getLogger(__name__)

OnChange = Callable[[Sequence[Envelope]], None]


class EnvelopeWriter:
    """`on_change` is called after each append with its envelopes, which may be none."""

    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        config: GatewayConfig,
        on_change: OnChange,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._config = config
        self._on_change = on_change
        self._adapter = self._new_adapter()
        # How much of the open run was received; the state has how much of it is written.
        self.progress = self.state.progress

    @property
    def state(self) -> ConversationState:
        return self._journal.state

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open."""
        return self._adapter.is_busy

    @property
    def pending_asks(self) -> tuple[OpenAsk, ...]:
        return self._adapter.pending_asks

    @property
    def growing_text(self) -> GrowingText | None:
        """The text that is being written and is in no envelope yet."""
        return self._adapter.growing_text

    def reload(self) -> None:
        """Reset to the journal's state. Events that were received and not stored will come
        again."""
        self._adapter = self._new_adapter()
        self.progress = self.state.progress

    def notify_changed(self) -> None:
        """Something changed although nothing was appended."""
        self._on_change(())

    def _new_adapter(self) -> EnvelopeAdapter:
        return EnvelopeAdapter(
            self._identity.tag,
            is_compat=self._config.compat,
            shows_output=self._config.output_as_thinking,
            history=tuple(self.state.recent_envelopes),
        )

    async def save_log_id(self, log_id: str) -> None:
        """Store which log is followed, on disk at once: a process that restarts after the
        conversation was cleared could not tell otherwise that its log is another one."""
        self.append_entry((), run=self.state.open_run, log_id=log_id)
        await self._journal.flush()

    # ── On the side ─────────────────────────────────────────────────────────────────────────

    def mark_killed(self) -> None:
        self._adapter.mark_killed()

    def close_lost_turn(self) -> None:
        """Close the turn so that nothing waits for it. Its run may continue as another turn."""
        self.append_entry(self._adapter.close_lost_turn(now_ms()), run=self.state.open_run)

    def close_unseen_turn(self, when: int) -> None:
        """Close a turn whose run is over without a record of how it ended."""
        self.append_entry(self._adapter.close_lost_turn(when, END_UNSEEN_TEXT), run="")

    def flush_idle_text(self, when: int) -> None:
        """Write the pending text."""
        self.append_entry(self._adapter.flush_idle_text(when), run=self.state.open_run)

    def close_ask(self, ask: str, receipt: str = "") -> None:
        self.append_entry(self._adapter.close_ask(ask, now_ms(), receipt), run=self.state.open_run)

    def write_approval(self, ask: OpenAsk, receipt: str) -> None:
        """Write an approval of another sender's run, which this session does not show otherwise."""
        self.append_entry(
            self._adapter.record_approval(ask, receipt, now_ms()), run=self.state.open_run
        )

    def write_notice(self, text: str, file: OutgoingFile | None = None) -> None:
        """Write a service line. With `file`, the line says what became of that file."""
        files = () if file is None else (mark_over(file),)
        self.append_entry(
            self._adapter.write_notice(text, now_ms()), run=self.state.open_run, files=files
        )

    def write_refusal(self, text: str, refused: dict[str, Any]) -> None:
        """Write a service line about a person's message; `refused` identifies the message for
        programs."""
        envelopes = [
            msgspec.structs.replace(
                envelope, ev=msgspec.structs.replace(envelope.ev, refused=refused)
            )
            if isinstance(envelope.ev, ServiceEvent)
            else envelope
            for envelope in self._adapter.write_notice(text, now_ms())
        ]
        self.append_entry(envelopes, run=self.state.open_run)

    def write_file(self, event: FileEvent, file: OutgoingFile) -> None:
        """Write a file that the relay has. Its envelope and its state are one entry, so it is sent
        once."""
        envelopes = self._adapter.write_file(event, now_ms(), run=file.run)
        self.append_entry(envelopes, run=self.state.open_run, files=(mark_over(file),))

    # ── As it happens ───────────────────────────────────────────────────────────────────────

    def write_event(self, received: ReceivedEvent) -> None:
        """Write an event of the open run, or of a run that it delegated to."""
        if received.parent is None and isinstance(received.event, TextPiece):
            self._count_text(received.event)
        files = self._find_files(received)
        envelopes = self._adapter.handle_event(msgspec.structs.replace(received, missed=0))
        self.append_entry(envelopes, run=self.state.open_run, files=files)

    def _count_text(self, piece: TextPiece) -> None:
        progress = self.progress
        reasoning = progress.reasoning + len(piece.text) * piece.thinking
        text = progress.text + len(piece.text) * (not piece.thinking)
        self.progress = msgspec.structs.replace(progress, reasoning=reasoning, text=text)

    # ── From the log ────────────────────────────────────────────────────────────────────────

    def write_record(
        self,
        events: Iterable[ReceivedEvent],
        *,
        run: str,
        progress: RunProgress,
        record: int,
        position: int = 0,
        through: int = 0,
        seen: str = "",
    ) -> None:
        """Write everything a record says, in one entry with the position of the next record, so
        that no record is written twice. `run` is the run that is open after it, and `progress` how
        much of that run is written then."""
        envelopes: list[Envelope] = []
        files: list[OutgoingFile] = []
        if run and run != self.state.open_run:
            self._adapter.reopen_run(run)
        for received in events:
            files += self._find_files(received)
            envelopes += self._adapter.handle_event(received)
            if isinstance(received.event, SegmentEnded):
                envelopes += self._adapter.flush_idle_text(received.at)
        self.progress = progress
        self.append_entry(
            envelopes,
            run=run,
            record=record,
            position=position,
            through=through,
            seen=seen,
            files=tuple(files),
        )

    def write_end(self, received: ReceivedEvent) -> None:
        """Write the end of a run that has no end record in the log."""
        run = "" if received.run == self.state.open_run else self.state.open_run
        envelopes = self._adapter.handle_event(msgspec.structs.replace(received, missed=0))
        self.append_entry(envelopes, run=run, through=0 if run else received.at)

    def _find_files(self, received: ReceivedEvent) -> tuple[OutgoingFile, ...]:
        """Return the files that this event sends, or cancels."""
        match received.event:
            case ToolsCalled(calls=calls):
                return tuple(
                    OutgoingFile(received.run, call.id, parse_file_path(call.arguments))
                    for call in calls
                    if call.name == SEND_FILE or call.name.endswith(f"__{SEND_FILE}")
                )
            case ToolReturned(call=call, is_error=is_error):
                file = self.state.outgoing_files.get((received.run, call))
                if file is not None and file.stage == "called":
                    return (mark_over(file) if is_error else mark_due(file),)
        return ()

    def append_entry(
        self,
        envelopes: Sequence[Envelope],
        *,
        run: str,
        record: int = 0,
        log_id: str = "",
        position: int = 0,
        through: int = 0,
        seen: str = "",
        files: tuple[OutgoingFile, ...] = (),
    ) -> None:
        valid = tuple(envelope for envelope in envelopes if self._is_valid(envelope))
        progress = self._written_progress() if run else RunProgress()
        has_progressed = run != self.state.open_run or progress != self.state.progress
        if valid or has_progressed or record or log_id or position or through or seen or files:
            self._journal.append(
                EnvelopesWritten(
                    valid,
                    run,
                    position,
                    through,
                    seen,
                    files,
                    record=record,
                    log_id=log_id,
                    progress=progress if has_progressed else None,
                )
            )
        if not run:
            self.progress = RunProgress()
        self._on_change(valid)

    def _written_progress(self) -> RunProgress:
        """The received progress without the text that is in no envelope yet."""
        count, is_reasoning = self._adapter.pending_text
        received = self.progress
        return msgspec.structs.replace(
            received,
            reasoning=received.reasoning - count * is_reasoning,
            text=received.text - count * (not is_reasoning),
        )

    def _is_valid(self, envelope: Envelope) -> bool:
        try:
            encode_envelope(envelope, is_compat=self._config.compat)
        except EnvelopeError as error:
            log.error("an envelope cannot be sent and is left out: %s", error)  # noqa: TRY400
            return False
        return True


def parse_file_path(arguments: str) -> str:
    """Return an empty string if there is no path; no file has that name."""
    try:
        parsed = parse_json(arguments)
    except ValueError:
        return ""
    path = parsed.get("path") if isinstance(parsed, dict) else None
    return str(PurePath(path)) if isinstance(path, str) else ""


def mark_due(file: OutgoingFile) -> OutgoingFile:
    return msgspec.structs.replace(file, stage="due")


def mark_over(file: OutgoingFile) -> OutgoingFile:
    return msgspec.structs.replace(file, stage="over")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
