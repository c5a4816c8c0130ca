"""Questions: what agents ask people, where every device sees it until one of them has answered."""

import time
from collections.abc import Sequence
from typing import Any

from crabtalk_web.adapter import Ask

# Answered questions that are still shown.
COMPLETED = 20


class Questions:
    """Which questions wait, and who answered first. Gives what the agent state is to be."""

    def __init__(self, *, is_compat: bool = False) -> None:
        self._is_compat = is_compat
        self._open: dict[str, Ask] = {}
        self._taken: set[str] = set()  # somebody is answering, or has
        self._outcomes: dict[str, dict[str, Any]] = {}

    def see(self, asks: Sequence[Ask]) -> list[Ask]:
        """What waits now. Those that are new."""
        now = {ask.id: ask for ask in asks}
        new = [ask for ask in asks if ask.id not in self._open]
        for gone in self._open.keys() - now.keys():
            self._taken.discard(gone)
        self._open = now
        return new

    def find(self, key: str) -> Ask | None:
        """By its own id, or by that of the call that asks."""
        return self._open.get(key) or next(
            (ask for ask in self._open.values() if ask.call == key), None
        )

    def take(self, ask: Ask) -> bool:
        """False for all but the first."""
        if ask.id in self._taken:
            return False
        self._taken.add(ask.id)
        return True

    def give_back(self, ask: Ask) -> None:
        """It could not be answered after all."""
        self._taken.discard(ask.id)

    def settle(self, ask: Ask, outcome: dict[str, Any]) -> None:
        self._outcomes[ask.call if self._is_compat else ask.id] = outcome
        while len(self._outcomes) > COMPLETED:
            del self._outcomes[next(iter(self._outcomes))]

    def state(self, there: dict[str, Any]) -> dict[str, Any]:
        """The agent state as it should be, given what is there."""
        open_key, done_key = KEYS[self._is_compat]
        asked, done = table(there.get(open_key)), table(there.get(done_key))
        waiting = {ask.id: self._entry(ask) for ask in self._open.values()}
        if self._is_compat:
            waiting = {ask.call: self._entry(ask) for ask in self._open.values()}
        for key, entry in asked.items():
            if key not in waiting and isinstance(entry, dict):
                outcome = self._outcomes.get(key) or CANCELLED[self._is_compat]
                done[key] = {**entry, **outcome, "completedAt": now_ms()}
        for key in waiting:
            done.pop(key, None)
        shown = dict(list(done.items())[-COMPLETED:])
        return {**there, "controlledByUser": False, open_key: waiting, done_key: shown}

    def _entry(self, ask: Ask) -> dict[str, Any]:
        if self._is_compat:
            return {
                "tool": "AskUserQuestion",
                "arguments": {"questions": [compat_question(q) for q in ask.questions]},
                "createdAt": ask.at,
                "toolUseId": ask.call,
            }
        return {
            "kind": "form",
            "createdAt": ask.at,
            "toolUseId": ask.call,
            "form": {
                "questions": [
                    {"id": f"q{number}", **compat_question(question), "allowCustom": True}
                    for number, question in enumerate(ask.questions)
                ]
            },
        }


KEYS = {
    False: ("communications", "completedCommunications"),
    True: ("requests", "completedRequests"),
}
CANCELLED: dict[bool, dict[str, Any]] = {
    False: {"status": "cancelled", "answers": {}},
    True: {"status": "canceled"},
}


def compat_question(question: Any) -> dict[str, Any]:
    return {
        "question": question.question,
        "header": question.header,
        "options": [
            {"label": option.label, "description": option.description}
            for option in question.options
        ],
        "multiSelect": question.multi_select,
    }


def table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def now_ms() -> int:
    return time.time_ns() // 1_000_000
