"""Questions of agents that wait for an answer, whichever client began the run."""

from collections.abc import Iterator
from typing import NamedTuple

from crabtalk.cli.approval_text import needs_owner
from crabtalk.protocol import wire

MAX_PENDING = 64  # questions; more are ignored


class ChatQuestion(NamedTuple):
    """An ask, and the conversation its answer goes to: for a delegate not the chat's own."""

    agent: str
    sender: str
    run_id: str
    ask: wire.AskUserEvent

    @property
    def ask_id(self) -> str:
        return self.ask.ask_id

    @property
    def needs_owner(self) -> bool:
        """Whether only the owner can answer it, because the run belongs to another person."""
        return needs_owner(self.ask)


class ChatQuestions:
    """The waiting questions, oldest first."""

    def __init__(self) -> None:
        self._questions: dict[str, ChatQuestion] = {}  # by ask id

    def __iter__(self) -> Iterator[ChatQuestion]:
        return iter(tuple(self._questions.values()))

    def __len__(self) -> int:
        return len(self._questions)

    def get(self, ask_id: str) -> ChatQuestion | None:
        return self._questions.get(ask_id)

    def add_question(self, question: ChatQuestion) -> bool:
        """Add a question; return whether it is new.

        One that comes twice, from stream and feed, is updated and keeps its place.
        """
        is_known = question.ask_id in self._questions
        if not is_known and len(self._questions) >= MAX_PENDING:
            return False
        self._questions[question.ask_id] = question
        return not is_known

    def remove_question(self, ask_id: str) -> None:
        self._questions.pop(ask_id, None)

    def remove_run(self, run_id: str) -> bool:
        """Remove the questions of a run that went on or ended; return whether there were any."""
        settled = [ask for ask, question in self._questions.items() if question.run_id == run_id]
        for ask in settled:
            del self._questions[ask]
        return bool(settled)

    def clear(self) -> None:
        self._questions.clear()
