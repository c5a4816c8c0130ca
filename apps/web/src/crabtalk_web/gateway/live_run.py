"""LiveRun: how far a run is that goes on, told from its events. The log has what is complete; the
events have the words of the message that the agent is writing, and say when the log has more."""

from crabtalk.protocol import wire
from crabtalk_web.adapter import Heard
from crabtalk_web.adapter.happenings import Called, Ended, Piece, Steered, StepOver

from .entries import Progress


class LiveRun:
    """`is_paced` when all its events come by the feed, in one order with those of the runs that it
    delegates to: then records are told no earlier than the events that announce them, so that what
    a delegated run does is told before the call that delegated is over."""

    def __init__(self, run: str, guest: str, *, is_paced: bool) -> None:
        self.run = run
        self.guest = guest
        self.is_paced = is_paced
        self.ended: Heard | None = None
        self._starts = 0  # steps with tool calls that have begun
        self._completes = 0  # and those that are over
        self._steers = 0
        self._sizes = {False: 0, True: 0}  # of the message in flight: text, and reasoning

    def hear(self, heard: Heard) -> None:
        match heard.what:
            case Called():
                self._starts += 1
                self._sizes = {False: 0, True: 0}
            case Steered():
                self._steers += 1
                self._sizes = {False: 0, True: 0}
            case StepOver():
                self._completes += 1
            case Ended():
                self.ended = heard
            case _:
                pass

    def is_at(self, progress: Progress) -> bool:
        """Whether what is told and what is heard are at the same message."""
        return (self._starts, self._steers) == (progress.steps, progress.steers)

    def is_over_step(self, progress: Progress) -> bool:
        return self._completes >= progress.steps

    def new_part(self, piece: Piece, progress: Progress) -> str:
        """What a piece adds to what is told. Pieces are heard from the beginning of a message on;
        one that is all new is missing what was before it only if nobody heard that."""
        start = self._sizes[piece.thinking]
        self._sizes[piece.thinking] += len(piece.text)
        told = progress.reasoning if piece.thinking else progress.text
        if not self.is_at(progress) or progress.is_told or start > told:
            return ""
        return piece.text[told - start :]

    def allows(self, record: wire.ConversationRecord, progress: Progress) -> bool:
        """Whether a record of this run is announced."""
        if not self.is_paced or self.ended is not None or self._steers > progress.steers:
            return True
        message = record.message
        if record.WhichOneof("record") != "message":
            return False
        if message.role == "tool":
            return self.is_over_step(progress)
        return message.role == "assistant" and self._starts > progress.steps
