"""LiveRun: how far a run is that goes on, told from its events. The log has what is complete; the
events have the words of the message that the agent is writing, and say when the log has more."""

from crabtalk.protocol import wire
from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import RunEnded, RunSteered, StepEnded, TextPiece, ToolsCalled

from .journal_entries import RunProgress


class LiveRun:
    """`is_paced` when all its events come by the feed, in one order with those of the runs that it
    delegates to: then records are told no earlier than the events that announce them, so that what
    a delegated run does is told before the call that delegated is over."""

    def __init__(self, run: str, guest: str, *, is_paced: bool) -> None:
        self.run = run
        self.guest = guest
        self.is_paced = is_paced
        self.end_event: ReceivedEvent | None = None
        self._started_steps = 0  # steps with tool calls that have begun
        self._ended_steps = 0  # and those that are over
        self._steers = 0
        self._heard_sizes = {False: 0, True: 0}  # of the message in flight: text, and reasoning

    def handle_event(self, heard: ReceivedEvent) -> None:
        match heard.event:
            case ToolsCalled():
                self._started_steps += 1
                self._heard_sizes = {False: 0, True: 0}
            case RunSteered():
                self._steers += 1
                self._heard_sizes = {False: 0, True: 0}
            case StepEnded():
                self._ended_steps += 1
            case RunEnded():
                self.end_event = heard
            case _:
                pass

    def is_at_same_message(self, progress: RunProgress) -> bool:
        """Whether what is told and what is heard are at the same message."""
        return (self._started_steps, self._steers) == (progress.steps, progress.steers)

    def has_ended_steps(self, progress: RunProgress) -> bool:
        return self._ended_steps >= progress.steps

    def take_new_text(self, piece: TextPiece, progress: RunProgress) -> str:
        """What a piece adds to what is told. Pieces are heard from the beginning of a message on;
        one that is all new is missing what was before it only if nobody heard that."""
        start = self._heard_sizes[piece.thinking]
        self._heard_sizes[piece.thinking] += len(piece.text)
        told = progress.reasoning if piece.thinking else progress.text
        if not self.is_at_same_message(progress) or progress.is_told or start > told:
            return ""
        return piece.text[told - start :]

    def allows_record(self, record: wire.ConversationRecord, progress: RunProgress) -> bool:
        """Whether a record of this run is announced."""
        if not self.is_paced or self.end_event is not None or self._steers > progress.steers:
            return True
        message = record.message
        if record.WhichOneof("record") != "message":
            return False
        if message.role == "tool":
            return self.has_ended_steps(progress)
        return message.role == "assistant" and self._started_steps > progress.steps
