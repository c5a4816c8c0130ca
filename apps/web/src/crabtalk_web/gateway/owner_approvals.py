"""Stranger asks: approvals for other people's runs with an agent, which only the owner may answer.

They are not on the stream of the run that asks, and that run's conversation has no session here.
They are shown in the owner's own session with the same agent.
"""

from collections.abc import Sequence

from crabtalk_web.adapter import OpenAsk, ReceivedEvent
from crabtalk_web.adapter.run_events import QuestionsAsked, RunEnded, StepEnded

# Approvals of one agent that wait at once; further ones are left to other clients.
MAX_WAITING = 64


class OwnerApprovals:
    """Those of one agent."""

    def __init__(self) -> None:
        self._waiting: dict[str, OpenAsk] = {}

    @property
    def pending_asks(self) -> Sequence[OpenAsk]:
        return tuple(self._waiting.values())

    def handle_event(self, heard: ReceivedEvent) -> bool:
        """Whether anything about them has changed."""
        match heard.event:
            case QuestionsAsked(ask_id=ask_id, questions=questions) if (
                len(self._waiting) < MAX_WAITING
            ):
                self._waiting[ask_id] = OpenAsk(
                    id=ask_id,
                    call=ask_id,
                    agent=heard.agent,
                    sender=heard.sender,
                    run=heard.run,
                    at=heard.at,
                    questions=questions,
                )
                return True
            case StepEnded() | RunEnded():
                over = [ask.id for ask in self._waiting.values() if ask.run == heard.run]
                for ask_id in over:
                    del self._waiting[ask_id]
                return bool(over)
        return False

    def contains(self, ask: OpenAsk) -> bool:
        return ask.id in self._waiting

    def remove(self, ask: OpenAsk) -> None:
        """It was answered, here or elsewhere."""
        self._waiting.pop(ask.id, None)

    def clear(self) -> None:
        """The daemon is away. Whatever still waits is told again by its next feed."""
        self._waiting.clear()
