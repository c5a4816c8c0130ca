"""Teller: what happens in a conversation becomes envelopes, which are noted in its journal.

It tells what it is given, as it happens or from the log, and notes with it how far the log is told.
When, and in which order, is for the mirror to say.
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
    """`changed` is called after each note, with the envelopes in it, be there any or not."""

    def __init__(
        self,
        identity: SessionIdentity,
        journal: ConversationJournal,
        config: GatewayConfig,
        changed: OnChange,
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._config = config
        self._on_change = changed
        self._adapter = self._new_adapter()
        # What was heard of the run that goes on; the book has what is told of it.
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
        """What is being said, and is in no envelope yet."""
        return self._adapter.growing_text

    def reload(self) -> None:
        """It knows what was noted, and no more: what was heard and not noted will be told again."""
        self._adapter = self._new_adapter()
        self.progress = self.state.progress

    def notify_changed(self) -> None:
        """Something may be otherwise than it was, though nothing was noted."""
        self._on_change(())

    def _new_adapter(self) -> EnvelopeAdapter:
        return EnvelopeAdapter(
            self._identity.tag,
            is_compat=self._config.compat,
            shows_output=self._config.output_as_thinking,
            history=tuple(self.state.recent_envelopes),
        )

    async def save_log_id(self, log_id: str) -> None:
        """Which log is told here. On disk at once: who is killed and comes back after it was
        cleared could not tell that there is another one now."""
        self.append_entry((), run=self.state.open_run, log_id=log_id)
        await self._journal.flush()

    # ── On the side ─────────────────────────────────────────────────────────────────────────

    def mark_killed(self) -> None:
        self._adapter.mark_killed()

    def close_lost_turn(self) -> None:
        """Nobody should wait for the turn any longer. Its run may go on, as another turn."""
        self.append_entry(self._adapter.close_lost_turn(now_ms()), run=self.state.open_run)

    def close_unseen_turn(self, when: int) -> None:
        """The run is over, and nothing says how it ended."""
        self.append_entry(self._adapter.close_lost_turn(when, END_UNSEEN_TEXT), run="")

    def flush_idle_text(self, when: int) -> None:
        """What was said so far is shown."""
        self.append_entry(self._adapter.flush_idle_text(when), run=self.state.open_run)

    def close_ask(self, ask: str, receipt: str = "") -> None:
        self.append_entry(self._adapter.close_ask(ask, now_ms(), receipt), run=self.state.open_run)

    def write_approval(self, ask: OpenAsk, receipt: str) -> None:
        """An approval of somebody else's run, which is told nowhere else in this session."""
        self.append_entry(
            self._adapter.record_approval(ask, receipt, now_ms()), run=self.state.open_run
        )

    def write_notice(self, text: str, file: OutgoingFile | None = None) -> None:
        """A line of service; with `file`, that is what became of it."""
        files = () if file is None else (mark_over(file),)
        self.append_entry(
            self._adapter.write_notice(text, now_ms()), run=self.state.open_run, files=files
        )

    def write_refusal(self, text: str, refused: dict[str, Any]) -> None:
        """A line of service about a person's message, which says to programs which one it is."""
        envelopes = [
            msgspec.structs.replace(one, ev=msgspec.structs.replace(one.ev, refused=refused))
            if isinstance(one.ev, ServiceEvent)
            else one
            for one in self._adapter.write_notice(text, now_ms())
        ]
        self.append_entry(envelopes, run=self.state.open_run)

    def write_file(self, event: FileEvent, file: OutgoingFile) -> None:
        """It is at the relay. Noted in one with its envelope, it is sent once."""
        envelopes = self._adapter.write_file(event, now_ms(), run=file.run)
        self.append_entry(envelopes, run=self.state.open_run, files=(mark_over(file),))

    # ── As it happens ───────────────────────────────────────────────────────────────────────

    def write_event(self, heard: ReceivedEvent) -> None:
        """An event of the run that goes on, or of one that it has delegated to."""
        if heard.parent is None and isinstance(heard.event, TextPiece):
            self._count_text(heard.event)
        files = self._find_files(heard)
        envelopes = self._adapter.handle_event(msgspec.structs.replace(heard, missed=0))
        self.append_entry(envelopes, run=self.state.open_run, files=files)

    def _count_text(self, piece: TextPiece) -> None:
        read = self.progress
        reasoning = read.reasoning + len(piece.text) * piece.thinking
        text = read.text + len(piece.text) * (not piece.thinking)
        self.progress = msgspec.structs.replace(read, reasoning=reasoning, text=text)

    # ── From the log ────────────────────────────────────────────────────────────────────────

    def write_record(
        self,
        happened: Iterable[ReceivedEvent],
        *,
        run: str,
        progress: RunProgress,
        record: int,
        position: int = 0,
        through: int = 0,
        seen: str = "",
    ) -> None:
        """All that a record says, noted in one with where the log goes on: so it is told once.
        `run` is the one that goes on after it, and `progress` how far that is told then."""
        envelopes: list[Envelope] = []
        files: list[OutgoingFile] = []
        if run and run != self.state.open_run:
            self._adapter.reopen_run(run)
        for heard in happened:
            files += self._find_files(heard)
            envelopes += self._adapter.handle_event(heard)
            if isinstance(heard.event, SegmentEnded):
                envelopes += self._adapter.flush_idle_text(heard.at)
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

    def write_end(self, heard: ReceivedEvent) -> None:
        """The run is over, and the log does not say it."""
        run = "" if heard.run == self.state.open_run else self.state.open_run
        envelopes = self._adapter.handle_event(msgspec.structs.replace(heard, missed=0))
        self.append_entry(envelopes, run=run, through=0 if run else heard.at)

    def _find_files(self, heard: ReceivedEvent) -> tuple[OutgoingFile, ...]:
        """Those that are sent by this, or not after all."""
        match heard.event:
            case ToolsCalled(calls=calls):
                return tuple(
                    OutgoingFile(heard.run, call.id, parse_file_path(call.arguments))
                    for call in calls
                    if call.name == SEND_FILE or call.name.endswith(f"__{SEND_FILE}")
                )
            case ToolReturned(call=call, is_error=is_error):
                file = self.state.outgoing_files.get((heard.run, call))
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
        fine = tuple(envelope for envelope in envelopes if self._is_valid(envelope))
        told = self._written_progress() if run else RunProgress()
        has_moved = run != self.state.open_run or told != self.state.progress
        if fine or has_moved or record or log_id or position or through or seen or files:
            self._journal.append(
                EnvelopesWritten(
                    fine,
                    run,
                    position,
                    through,
                    seen,
                    files,
                    record=record,
                    log_id=log_id,
                    progress=told if has_moved else None,
                )
            )
        if not run:
            self.progress = RunProgress()
        self._on_change(fine)

    def _written_progress(self) -> RunProgress:
        """What was heard, without the words that are in no envelope yet."""
        count, is_reasoning = self._adapter.pending_text
        heard = self.progress
        return msgspec.structs.replace(
            heard,
            reasoning=heard.reasoning - count * is_reasoning,
            text=heard.text - count * (not is_reasoning),
        )

    def _is_valid(self, envelope: Envelope) -> bool:
        try:
            encode_envelope(envelope, is_compat=self._config.compat)
        except EnvelopeError as error:
            log.error("an envelope cannot be sent and is left out: %s", error)  # noqa: TRY400
            return False
        return True


def parse_file_path(arguments: str) -> str:
    """Empty where there is none, which is no file."""
    try:
        given = parse_json(arguments)
    except ValueError:
        return ""
    path = given.get("path") if isinstance(given, dict) else None
    return str(PurePath(path)) if isinstance(path, str) else ""


def mark_due(file: OutgoingFile) -> OutgoingFile:
    return msgspec.structs.replace(file, stage="due")


def mark_over(file: OutgoingFile) -> OutgoingFile:
    return msgspec.structs.replace(file, stage="over")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
