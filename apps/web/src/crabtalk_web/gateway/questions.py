"""Questions: what agents ask people, where every device sees it until one of them has answered."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from crabtalk_web.adapter import Ask, describe_question, is_whole, summarize_questions

# Answered questions that are still shown.
COMPLETED = 20
# Bytes that all questions together may take in the agent state, and those of one of them. Calls
# that are larger, or come when there is no room, are cut until others are answered.
MOST_BYTES, MOST_OF_ONE, LEAST_OF_ONE = 500_000, 262_144, 8192


class Questions:
    """Which questions wait, and who answered first. Gives what the agent state is to be."""

    def __init__(self, *, is_compat: bool = False) -> None:
        self._is_compat = is_compat
        self._open: dict[str, Ask] = {}
        self._taken: set[str] = set()  # somebody is answering, or has
        self._cut: set[str] = set()  # asks that devices do not see all of
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

    def is_shown_whole(self, ask: Ask) -> bool:
        """Whether devices see all of the calls that it is about."""
        return ask.id not in self._cut

    def settle(self, ask: Ask, outcome: dict[str, Any]) -> None:
        self._outcomes[ask.call if self._is_compat else ask.id] = outcome
        while len(self._outcomes) > COMPLETED:
            del self._outcomes[next(iter(self._outcomes))]

    def state(self, there: dict[str, Any]) -> dict[str, Any]:
        """The agent state as it should be, given what is there."""
        open_key, done_key = KEYS[self._is_compat]
        asked, done = table(there.get(open_key)), table(there.get(done_key))
        waiting = self._entries()
        for key, entry in asked.items():
            if key not in waiting and isinstance(entry, dict):
                outcome = self._outcomes.get(key) or CANCELLED[self._is_compat]
                done[key] = {**shortened(entry), **outcome, "completedAt": now_ms()}
        for key in waiting:
            done.pop(key, None)
        shown = dict(list(done.items())[-COMPLETED:])
        return {**there, "controlledByUser": False, open_key: waiting, done_key: shown}

    def _entries(self) -> dict[str, dict[str, Any]]:
        """Those that wait, by the key that devices answer by; the oldest have the most room."""
        room = MOST_BYTES
        entries: dict[str, dict[str, Any]] = {}
        self._cut.clear()
        for ask in self._open.values():
            most = max(LEAST_OF_ONE, min(MOST_OF_ONE, room)) // max(len(ask.questions), 1)
            questions = [describe_question(question, most) for question in ask.questions]
            if not all(map(is_whole, questions)):
                self._cut.add(ask.id)
            entry = self._entry(ask, questions)
            entries[ask.call if self._is_compat else ask.id] = entry
            room -= len(msgspec.json.encode(entry))
        return entries

    def _entry(self, ask: Ask, questions: list[dict[str, Any]]) -> dict[str, Any]:
        if self._is_compat:
            return {
                "tool": "AskUserQuestion",
                "arguments": {"questions": questions},
                "createdAt": ask.at,
                "toolUseId": ask.call,
            }
        return {
            "kind": "form",
            "createdAt": ask.at,
            "toolUseId": ask.call,
            "form": {
                "questions": [
                    # A call is allowed or denied by a label, and by no words.
                    {"id": f"q{number}", **question, "allowCustom": "approval" not in question}
                    for number, question in enumerate(questions)
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


def shortened(entry: dict[str, Any]) -> dict[str, Any]:
    """Without the calls it was about, which the history has."""
    parts = ("form", "arguments")
    return {
        key: summarize_questions(value) if key in parts and isinstance(value, dict) else value
        for key, value in entry.items()
    }


def table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def now_ms() -> int:
    return time.time_ns() // 1_000_000
