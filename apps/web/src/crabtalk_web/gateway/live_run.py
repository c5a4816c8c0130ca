"""The progress of a running run, counted from its events. The log has complete messages; events
have the text of the message in progress, and announce new records."""

from crabtalk.protocol import wire
from crabtalk_web.adapter import ReceivedEvent
from crabtalk_web.adapter.run_events import RunEnded, RunSteered, StepEnded, TextPiece, ToolsCalled

from .journal_entries import RunProgress


class LiveRun:
    """`is_paced` is set if all events of the run come from the feed, in one order with those of the
    runs it delegates to. Records are then written no earlier than the events that announce them, so
    that a delegated run is written before the end of the call that delegated to it."""

    def __init__(self, run: str, guest: str, *, is_paced: bool) -> None:
        self.run = run
        self.guest = guest
        self.is_paced = is_paced
        self.end_event: ReceivedEvent | None = None
        self._started_steps = 0  # steps with tool calls
        self._ended_steps = 0
        self._steers = 0
        self._received_sizes = {
            False: 0,
            True: 0,
        }  # of the message in progress: text, and reasoning

    def handle_event(self, received: ReceivedEvent) -> None:
        match received.event:
            case ToolsCalled():
                self._started_steps += 1
                self._received_sizes = {False: 0, True: 0}
            case RunSteered():
                self._steers += 1
                self._received_sizes = {False: 0, True: 0}
            case StepEnded():
                self._ended_steps += 1
            case RunEnded():
                self.end_event = received
            case _:
                pass

    def is_at_same_message(self, progress: RunProgress) -> bool:
        """Return whether writing and receiving are at the same message."""
        return (self._started_steps, self._steers) == (progress.steps, progress.steers)

    def has_ended_steps(self, progress: RunProgress) -> bool:
        return self._ended_steps >= progress.steps

    def take_new_text(self, piece: TextPiece, progress: RunProgress) -> str:
        """Return the part of a piece that is not written yet. Pieces are received from the
        beginning of a message; if the start of a message was missed, nothing of the rest is
        returned."""
        start = self._received_sizes[piece.thinking]
        self._received_sizes[piece.thinking] += len(piece.text)
        written_size = progress.reasoning if piece.thinking else progress.text
        if not self.is_at_same_message(progress) or progress.is_told or start > written_size:
            return ""
        return piece.text[written_size - start :]

    def allows_record(self, record: wire.ConversationRecord, progress: RunProgress) -> bool:
        """Return whether a record of this run was announced by an event."""
        if not self.is_paced or self.end_event is not None or self._steers > progress.steers:
            return True
        message = record.message
        if record.WhichOneof("record") != "message":
            return False
        if message.role == "tool":
            return self.has_ended_steps(progress)
        return message.role == "assistant" and self._started_steps > progress.steps
