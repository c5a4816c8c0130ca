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

from crabtalk_web.adapter import Adapter, Ask, Heard, Spoken
from crabtalk_web.adapter.happenings import Called, Piece, Returned, SegmentOver
from crabtalk_web.stream import Envelope, EnvelopeError, File, Service, encode
from crabtalk_web.stream.plain import parsed

from .book import Book
from .config import GatewayConfig
from .entries import Outgoing, Progress, Said
from .identity import Identity
from .journal import Journal

SEND_FILE = "send_file"
UNSEEN = "The end of this turn was not seen; what became of it is in the conversation."

log = logging.getLogger(__name__)

Changed = Callable[[Sequence[Envelope]], None]


class Teller:
    """`changed` is called after each note, with the envelopes in it, be there any or not."""

    def __init__(
        self, identity: Identity, journal: Journal, config: GatewayConfig, changed: Changed
    ) -> None:
        self._identity = identity
        self._journal = journal
        self._config = config
        self._changed = changed
        self._adapter = self._new_adapter()
        # What was heard of the run that goes on; the book has what is told of it.
        self.progress = self.book.progress

    @property
    def book(self) -> Book:
        return self._journal.book

    @property
    def is_busy(self) -> bool:
        """Whether a turn is open."""
        return self._adapter.is_busy

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self._adapter.asks

    @property
    def spoken(self) -> Spoken | None:
        """What is being said, and is in no envelope yet."""
        return self._adapter.spoken

    def begin_again(self) -> None:
        """It knows what was noted, and no more: what was heard and not noted will be told again."""
        self._adapter = self._new_adapter()
        self.progress = self.book.progress

    def changed(self) -> None:
        """Something may be otherwise than it was, though nothing was noted."""
        self._changed(())

    def _new_adapter(self) -> Adapter:
        return Adapter(
            self._identity.tag,
            is_compat=self._config.compat,
            shows_output=self._config.output_as_thinking,
            history=tuple(self.book.recent),
        )

    async def keep_log_id(self, log_id: str) -> None:
        """Which log is told here. On disk at once: who is killed and comes back after it was
        cleared could not tell that there is another one now."""
        self.note((), run=self.book.run, log_id=log_id)
        await self._journal.flush()

    # ── On the side ─────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        self._adapter.kill()

    def lose(self) -> None:
        """Nobody should wait for the turn any longer. Its run may go on, as another turn."""
        self.note(self._adapter.lose(now_ms()), run=self.book.run)

    def end_unseen(self, when: int) -> None:
        """The run is over, and nothing says how it ended."""
        self.note(self._adapter.lose(when, UNSEEN), run="")

    def idle(self, when: int) -> None:
        """What was said so far is shown."""
        self.note(self._adapter.idle(when), run=self.book.run)

    def answered(self, ask: str, receipt: str = "") -> None:
        self.note(self._adapter.answer(ask, now_ms(), receipt), run=self.book.run)

    def record(self, ask: Ask, receipt: str) -> None:
        """An approval of somebody else's run, which is told nowhere else in this session."""
        self.note(self._adapter.record(ask, receipt, now_ms()), run=self.book.run)

    def say(self, text: str, file: Outgoing | None = None) -> None:
        """A line of service; with `file`, that is what became of it."""
        files = () if file is None else (over(file),)
        self.note(self._adapter.note(text, now_ms()), run=self.book.run, files=files)

    def say_refused(self, text: str, refused: dict[str, Any]) -> None:
        """A line of service about a person's message, which says to programs which one it is."""
        envelopes = [
            msgspec.structs.replace(one, ev=msgspec.structs.replace(one.ev, refused=refused))
            if isinstance(one.ev, Service)
            else one
            for one in self._adapter.note(text, now_ms())
        ]
        self.note(envelopes, run=self.book.run)

    def attach(self, event: File, file: Outgoing) -> None:
        """It is at the relay. Noted in one with its envelope, it is sent once."""
        envelopes = self._adapter.attach(event, now_ms(), run=file.run)
        self.note(envelopes, run=self.book.run, files=(over(file),))

    # ── As it happens ───────────────────────────────────────────────────────────────────────

    def tell(self, heard: Heard) -> None:
        """An event of the run that goes on, or of one that it has delegated to."""
        if heard.parent is None and isinstance(heard.what, Piece):
            self._count(heard.what)
        files = self._files(heard)
        envelopes = self._adapter.hear(msgspec.structs.replace(heard, missed=0))
        self.note(envelopes, run=self.book.run, files=files)

    def _count(self, piece: Piece) -> None:
        read = self.progress
        reasoning = read.reasoning + len(piece.text) * piece.thinking
        text = read.text + len(piece.text) * (not piece.thinking)
        self.progress = msgspec.structs.replace(read, reasoning=reasoning, text=text)

    # ── From the log ────────────────────────────────────────────────────────────────────────

    def tell_record(
        self,
        happened: Iterable[Heard],
        *,
        run: str,
        progress: Progress,
        record: int,
        position: int = 0,
        through: int = 0,
        seen: str = "",
    ) -> None:
        """All that a record says, noted in one with where the log goes on: so it is told once.
        `run` is the one that goes on after it, and `progress` how far that is told then."""
        envelopes: list[Envelope] = []
        files: list[Outgoing] = []
        if run and run != self.book.run:
            self._adapter.reopen(run)
        for heard in happened:
            files += self._files(heard)
            envelopes += self._adapter.hear(heard)
            if isinstance(heard.what, SegmentOver):
                envelopes += self._adapter.idle(heard.at)
        self.progress = progress
        self.note(
            envelopes,
            run=run,
            record=record,
            position=position,
            through=through,
            seen=seen,
            files=tuple(files),
        )

    def end(self, heard: Heard) -> None:
        """The run is over, and the log does not say it."""
        run = "" if heard.run == self.book.run else self.book.run
        envelopes = self._adapter.hear(msgspec.structs.replace(heard, missed=0))
        self.note(envelopes, run=run, through=0 if run else heard.at)

    def _files(self, heard: Heard) -> tuple[Outgoing, ...]:
        """Those that are sent by this, or not after all."""
        match heard.what:
            case Called(calls=calls):
                return tuple(
                    Outgoing(heard.run, call.id, path_in(call.arguments))
                    for call in calls
                    if call.name == SEND_FILE or call.name.endswith(f"__{SEND_FILE}")
                )
            case Returned(call=call, is_error=is_error):
                file = self.book.sending.get((heard.run, call))
                if file is not None and file.stage == "called":
                    return (over(file) if is_error else due(file),)
        return ()

    def note(
        self,
        envelopes: Sequence[Envelope],
        *,
        run: str,
        record: int = 0,
        log_id: str = "",
        position: int = 0,
        through: int = 0,
        seen: str = "",
        files: tuple[Outgoing, ...] = (),
    ) -> None:
        fine = tuple(envelope for envelope in envelopes if self._is_fine(envelope))
        told = self._told_progress() if run else Progress()
        has_moved = run != self.book.run or told != self.book.progress
        if fine or has_moved or record or log_id or position or through or seen or files:
            self._journal.note(
                Said(
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
            self.progress = Progress()
        self._changed(fine)

    def _told_progress(self) -> Progress:
        """What was heard, without the words that are in no envelope yet."""
        count, is_reasoning = self._adapter.pending
        heard = self.progress
        return msgspec.structs.replace(
            heard,
            reasoning=heard.reasoning - count * is_reasoning,
            text=heard.text - count * (not is_reasoning),
        )

    def _is_fine(self, envelope: Envelope) -> bool:
        try:
            encode(envelope, is_compat=self._config.compat)
        except EnvelopeError as error:
            log.error("an envelope cannot be sent and is left out: %s", error)  # noqa: TRY400
            return False
        return True


def path_in(arguments: str) -> str:
    """Empty where there is none, which is no file."""
    try:
        given = parsed(arguments)
    except ValueError:
        return ""
    path = given.get("path") if isinstance(given, dict) else None
    return str(PurePath(path)) if isinstance(path, str) else ""


def due(file: Outgoing) -> Outgoing:
    return msgspec.structs.replace(file, stage="due")


def over(file: Outgoing) -> Outgoing:
    return msgspec.structs.replace(file, stage="over")


def now_ms() -> int:
    return time.time_ns() // 1_000_000
