"""Teller: what happens in a conversation becomes envelopes, which are noted in its journal.

It tells what it is given, as it happens or from the messages that were kept of it, and never twice.
When, and in which order, is for the mirror to say.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from crabtalk_web.adapter import Adapter, Ask, Heard, Spoken
from crabtalk_web.adapter.happenings import (
    Began,
    Called,
    Compacted,
    Ended,
    Returned,
    Steered,
)
from crabtalk_web.stream import Envelope, EnvelopeError, File, Service, encode
from crabtalk_web.stream.plain import parsed

from .book import Book
from .catching_up import Message, at, ending, rest_of, run_of
from .config import GatewayConfig
from .entries import Outgoing, Said
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

    def changed(self) -> None:
        """Something may be otherwise than it was, though nothing was noted."""
        self._changed(())

    def _new_adapter(self) -> Adapter:
        adapter = Adapter(
            self._identity.tag,
            is_compat=self._config.compat,
            shows_output=self._config.output_as_thinking,
            history=tuple(self.book.recent),
        )
        for text in self.book.unseen:
            adapter.know(text)
        return adapter

    async def keep_born(self, when: int) -> None:
        """When the conversation began. On disk at once: who is killed and comes back after it was
        cleared could not tell that there is another one now."""
        self.note((), run=self.book.run, born=when)
        await self._journal.flush()

    # ── On the side ─────────────────────────────────────────────────────────────────────────

    def know(self, text: str) -> None:
        """Devices have this text already."""
        self._adapter.know(text)

    def kill(self) -> None:
        self._adapter.kill()

    def lose(self) -> None:
        """Nobody should wait for the turn any longer."""
        self.note(self._adapter.lose(now_ms()), run=self.book.run)

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
        """What the feed has, in its order."""
        run, through, seen = heard.run, 0, self._seen(heard)
        if isinstance(heard.what, Compacted):
            run, through, seen = self.book.run, 0 if self.book.run else heard.at, ""
        elif heard.parent is not None:
            run, seen = self.book.run, ""
        elif isinstance(heard.what, Ended):
            run, through = "", heard.at
        files = self._files(heard)
        envelopes = self._adapter.hear(msgspec.structs.replace(heard, missed=0))
        self.note(envelopes, run=run, through=through, seen=seen, files=files)

    def _seen(self, heard: Heard) -> str:
        match heard.what:
            case Began(said=text) | Steered(text=text) if text in self.book.unseen:
                return text
            case _:
                return ""

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
        position: int = 0,
        through: int = 0,
        seen: str = "",
        files: tuple[Outgoing, ...] = (),
        born: int = 0,
    ) -> None:
        fine = tuple(envelope for envelope in envelopes if self._is_fine(envelope))
        if fine or run != self.book.run or position or through or seen or files or born:
            self._journal.note(Said(fine, run, position, through, seen, files, born))
        self._changed(fine)

    def _is_fine(self, envelope: Envelope) -> bool:
        try:
            encode(envelope, is_compat=self._config.compat)
        except EnvelopeError as error:
            log.error("an envelope cannot be sent and is left out: %s", error)  # noqa: TRY400
            return False
        return True

    # ── From what was kept ──────────────────────────────────────────────────────────────────

    def tell_archive(self, made: int, title: str) -> None:
        heard = Heard(run=f"archive:{made}", what=Compacted(title), at=made)
        self.note(self._adapter.hear(heard), run=self.book.run, through=made)

    def tell_ask(self, heard: Heard, run: str) -> None:
        """Of a turn that is told from its messages, which have no questions."""
        own = heard if heard.parent is not None else msgspec.structs.replace(heard, run=run)
        self.note(self._adapter.hear(own), run=run)

    def tell_whole(self, turn: Sequence[Message], end: Heard | None = None) -> None:
        """A turn that is over. Without `end`, what it says itself of its end is all there is."""
        run = self.tell_so_far(turn)
        if end is None and (what := ending(turn)) is not None:
            end = Heard(run=run, what=what, at=at(turn[-1]))
        if end is None:
            envelopes = self._adapter.lose(at(turn[-1]), UNSEEN)
        else:
            envelopes = self._adapter.hear(msgspec.structs.replace(end, run=run, missed=0))
        through = end.at if end is not None else 0
        self.note(envelopes, run="", position=turn[-1].id + 1, through=through)

    def tell_so_far(self, turn: Sequence[Message]) -> str:
        """Whatever of a turn is not told yet. The name its run goes by."""
        is_going_on = bool(self.book.run)
        run = self.book.run or run_of(turn[0])
        told = tuple(self.book.of_run) if is_going_on else ()
        for heard in rest_of(turn, run, told, self._identity.agent, self._identity.sender):
            heard = self._known(heard)
            files = self._files(heard)
            self.note(self._adapter.hear(heard), run=run, seen=self._seen(heard), files=files)
        self.note(self._adapter.idle(at(turn[-1])), run=run)
        return run

    def _known(self, heard: Heard) -> Heard:
        """A message has a skill in place of its name; devices have the text with the name."""
        match heard.what:
            case Began(said=said) if said.endswith("</skill>"):
                for text in self.book.unseen:
                    if text.startswith("/") and text not in said:
                        return msgspec.structs.replace(heard, what=Began(text))
        return heard


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
