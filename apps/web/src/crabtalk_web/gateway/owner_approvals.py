"""Approvals for other senders' runs with an agent, which only the owner may answer.

They are not on the stream of the run that asks, and that run's conversation has no session here. So
they are shown in the owner's own session with the same agent.
"""

from collections.abc import Sequence

from crabtalk_web.adapter import OpenAsk, ReceivedEvent
from crabtalk_web.adapter.run_events import QuestionsAsked, RunEnded, StepEnded

# Pending approvals of one agent; further ones are left to other clients.
MAX_WAITING = 64


class OwnerApprovals:
    """The approvals of one agent."""

    def __init__(self) -> None:
        self._waiting: dict[str, OpenAsk] = {}

    @property
    def pending_asks(self) -> Sequence[OpenAsk]:
        return tuple(self._waiting.values())

    def handle_event(self, received: ReceivedEvent) -> bool:
        """Return whether the pending approvals changed."""
        match received.event:
            case QuestionsAsked(ask_id=ask_id, questions=questions) if (
                len(self._waiting) < MAX_WAITING
            ):
                self._waiting[ask_id] = OpenAsk(
                    id=ask_id,
                    call=ask_id,
                    agent=received.agent,
                    sender=received.sender,
                    run=received.run,
                    at=received.at,
                    questions=questions,
                )
                return True
            case StepEnded() | RunEnded():
                ended_ids = [ask.id for ask in self._waiting.values() if ask.run == received.run]
                for ask_id in ended_ids:
                    del self._waiting[ask_id]
                return bool(ended_ids)
        return False

    def contains(self, ask: OpenAsk) -> bool:
        return ask.id in self._waiting

    def remove(self, ask: OpenAsk) -> None:
        """It was answered, here or elsewhere."""
        self._waiting.pop(ask.id, None)

    def clear(self) -> None:
        """The daemon is away. The next feed sends pending approvals again."""
        self._waiting.clear()
