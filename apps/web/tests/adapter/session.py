"""A session under test: what is heard goes in, and what comes out is held against every rule."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from crabtalk_web.adapter import Adapter, Heard
from crabtalk_web.adapter.happenings import (
    AnyHappening,
    Began,
    Call,
    Called,
    Ended,
    Parent,
    Piece,
    Reason,
    Returned,
)
from crabtalk_web.stream import Envelope, Order, decode, encode

SESSION = "a session of its own"
DONE = Ended(Reason.COMPLETED)
KILLED = Ended(Reason.CANCELLED)


class Session:
    """Feeds an adapter; every envelope is checked as it would be sent, and in its order."""

    def __init__(self, adapter: Adapter | None = None, *, is_compat: bool = False) -> None:
        self.adapter = adapter or Adapter(SESSION, is_compat=is_compat)
        self.order = Order()
        self.envelopes: list[Envelope] = []
        self.now = 1000
        self._is_compat = is_compat

    def hear(self, what: AnyHappening, run: str = "run", **parts: Any) -> list[Envelope]:
        self.now += 10
        return self.take(self.adapter.hear(Heard(run=run, what=what, **{"at": self.now, **parts})))

    def play(self, heard: Iterable[Heard]) -> list[Envelope]:
        return [envelope for one in heard for envelope in self.take(self.adapter.hear(one))]

    def take(self, envelopes: list[Envelope]) -> list[Envelope]:
        for envelope in envelopes:
            assert decode(encode(envelope, is_compat=self._is_compat)) == envelope
            self.order.follow(envelope)
        self.envelopes += envelopes
        return envelopes

    @property
    def told(self) -> list[str]:
        return told(self.envelopes)


def call(key: str, name: str = "bash", **arguments: Any) -> Call:
    return Call(key, name, json.dumps(arguments) if arguments else "")


def called(*calls: Call) -> Called:
    return Called(calls)


def delegated(key: str, *tasks: dict[str, str], **more: Any) -> Call:
    return call(key, "delegate", tasks=list(tasks), **more)


def returned(key: str, output: str = "ok", **parts: Any) -> Returned:
    return Returned(key, output, **parts)


def child_of(run: str, call: str, task: int = 0) -> dict[str, Any]:
    return {"parent": Parent(run, call, task)}


def turn(*happenings: AnyHappening, run: str = "run", said: str = "") -> Iterable[Heard]:
    for number, what in enumerate((Began(said), *happenings, DONE)):
        yield Heard(run=run, what=what, at=1000 + number)


def told(envelopes: Sequence[Envelope]) -> list[str]:
    """Each envelope in a word or two; agents by letters, in the order they appear."""
    letters: dict[str, str] = {}
    return [word(envelope, letters) for envelope in envelopes]


def word(envelope: Envelope, letters: dict[str, str]) -> str:
    event: dict[str, Any] = msgspec.to_builtins(envelope.ev)
    tag = event.pop("t")
    what = event.get("call") or event.get("status") or event.get("text") or event.get("title") or ""
    who = ""
    if envelope.subagent:
        letter = letters.setdefault(envelope.subagent, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[len(letters)])
        who = f"[{letter}]"
    if event.get("thinking"):
        tag = "thinking"
    if envelope.role == "user":
        tag = f"user-{tag}"
    return f"{tag}{who} {what}".strip()


__all__ = [
    "DONE",
    "KILLED",
    "SESSION",
    "Piece",
    "Session",
    "call",
    "called",
    "child_of",
    "delegated",
    "returned",
    "told",
    "turn",
]
