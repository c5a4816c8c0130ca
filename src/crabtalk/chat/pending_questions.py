"""Questions: what agents wait for an answer to, whoever began the run that asks."""

from collections.abc import Iterator
from typing import NamedTuple

from crabtalk.cli.approval_text import needs_owner
from crabtalk.protocol import wire

MAX_PENDING = 64  # that wait at once; a person answers none beyond


class ChatQuestion(NamedTuple):
    """An ask, and the conversation its answer goes to: a delegate's is not that of the chat."""

    agent: str
    sender: str
    run_id: str
    ask: wire.AskUserEvent

    @property
    def ask_id(self) -> str:
        return self.ask.ask_id

    @property
    def needs_owner(self) -> bool:
        """Only the owner can answer it: the run that asks belongs to somebody else."""
        return needs_owner(self.ask)


class ChatQuestions:
    """Those that wait, the oldest first."""

    def __init__(self) -> None:
        self._questions: dict[str, ChatQuestion] = {}  # by ask

    def __iter__(self) -> Iterator[ChatQuestion]:
        return iter(tuple(self._questions.values()))

    def __len__(self) -> int:
        return len(self._questions)

    def get(self, ask_id: str) -> ChatQuestion | None:
        return self._questions.get(ask_id)

    def add_question(self, question: ChatQuestion) -> bool:
        """Whether it is news. One that is told twice keeps its place; the feed names its run."""
        known = question.ask_id in self._questions
        if not known and len(self._questions) >= MAX_PENDING:
            return False
        self._questions[question.ask_id] = question
        return not known

    def remove_question(self, ask_id: str) -> None:
        self._questions.pop(ask_id, None)

    def remove_run(self, run_id: str) -> bool:
        """Its run went on, or is over. Whether anything waited."""
        settled = [ask for ask, question in self._questions.items() if question.run_id == run_id]
        for ask in settled:
            del self._questions[ask]
        return bool(settled)

    def clear(self) -> None:
        self._questions.clear()
