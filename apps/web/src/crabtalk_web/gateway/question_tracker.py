"""The questions of agents, shown on every device until one of them has answered."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from crabtalk_web.adapter import OpenAsk, describe_question, is_whole, summarize_questions

# Answered questions that are still shown.
MAX_COMPLETED = 20
# Limits in bytes for all questions in the agent state, and for those of one ask. Calls that are
# larger, or that come when there is no room, are cut until others are answered.
MAX_BYTES, MAX_ASK_BYTES, MIN_ASK_BYTES = 500_000, 262_144, 8192


class QuestionTracker:
    """Tracks which questions are pending and which device answered first, and builds the agent
    state."""

    def __init__(self, *, is_compat: bool = False) -> None:
        self._is_compat = is_compat
        self._pending: dict[str, OpenAsk] = {}
        self._claimed: set[str] = set()  # being answered, or answered
        self._cut_asks: set[str] = set()  # asks that devices do not see in full
        self._outcomes: dict[str, dict[str, Any]] = {}

    def update(self, asks: Sequence[OpenAsk]) -> list[OpenAsk]:
        """Set the pending asks, and return the new ones."""
        pending = {ask.id: ask for ask in asks}
        new = [ask for ask in asks if ask.id not in self._pending]
        for ask_id in self._pending.keys() - pending.keys():
            self._claimed.discard(ask_id)
        self._pending = pending
        return new

    def find(self, key: str) -> OpenAsk | None:
        """Find an ask by its own id, or by that of the call that asks."""
        return self._pending.get(key) or next(
            (ask for ask in self._pending.values() if ask.call == key), None
        )

    def claim(self, ask: OpenAsk) -> bool:
        """Return True for the first caller only."""
        if ask.id in self._claimed:
            return False
        self._claimed.add(ask.id)
        return True

    def release(self, ask: OpenAsk) -> None:
        """The answer could not be delivered."""
        self._claimed.discard(ask.id)

    def is_shown_in_full(self, ask: OpenAsk) -> bool:
        """Return whether devices see all of the calls the ask is about."""
        return ask.id not in self._cut_asks

    def set_outcome(self, ask: OpenAsk, outcome: dict[str, Any]) -> None:
        self._outcomes[ask.call if self._is_compat else ask.id] = outcome
        while len(self._outcomes) > MAX_COMPLETED:
            del self._outcomes[next(iter(self._outcomes))]

    def build_state(self, current: dict[str, Any]) -> dict[str, Any]:
        """Return the new agent state, based on the current one."""
        open_key, done_key = STATE_KEYS[self._is_compat]
        shown_pending, completed = (
            copy_table(current.get(open_key)),
            copy_table(current.get(done_key)),
        )
        entries = self._build_entries()
        for key, entry in shown_pending.items():
            if key not in entries and isinstance(entry, dict):
                outcome = self._outcomes.get(key) or CANCELLED[self._is_compat]
                completed[key] = {**drop_calls(entry), **outcome, "completedAt": now_ms()}
        for key in entries:
            completed.pop(key, None)
        recent = dict(list(completed.items())[-MAX_COMPLETED:])
        return {**current, "controlledByUser": False, open_key: entries, done_key: recent}

    def _build_entries(self) -> dict[str, dict[str, Any]]:
        """Return the pending asks by the key devices answer with. The oldest get the most room."""
        room = MAX_BYTES
        entries: dict[str, dict[str, Any]] = {}
        self._cut_asks.clear()
        for ask in self._pending.values():
            limit = max(MIN_ASK_BYTES, min(MAX_ASK_BYTES, room)) // max(len(ask.questions), 1)
            questions = [describe_question(question, limit) for question in ask.questions]
            if not all(map(is_whole, questions)):
                self._cut_asks.add(ask.id)
            entry = self._build_entry(ask, questions)
            entries[ask.call if self._is_compat else ask.id] = entry
            room -= len(msgspec.json.encode(entry))
        return entries

    def _build_entry(self, ask: OpenAsk, questions: list[dict[str, Any]]) -> dict[str, Any]:
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
                    # A call is allowed or denied by a label, never by free text.
                    {"id": f"q{number}", **question, "allowCustom": "approval" not in question}
                    for number, question in enumerate(questions)
                ]
            },
        }


STATE_KEYS = {
    False: ("communications", "completedCommunications"),
    True: ("requests", "completedRequests"),
}
CANCELLED: dict[bool, dict[str, Any]] = {
    False: {"status": "cancelled", "answers": {}},
    True: {"status": "canceled"},
}


def drop_calls(entry: dict[str, Any]) -> dict[str, Any]:
    """Remove the calls, which are in the history."""
    parts = ("form", "arguments")
    return {
        key: summarize_questions(value) if key in parts and isinstance(value, dict) else value
        for key, value in entry.items()
    }


def copy_table(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def now_ms() -> int:
    return time.time_ns() // 1_000_000
