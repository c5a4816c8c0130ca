"""A test session: feeds events to an adapter and checks its envelopes against every rule."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from crabtalk_web.adapter import EnvelopeAdapter, ReceivedEvent
from crabtalk_web.adapter.run_events import (
    AnyRunEvent,
    EndReason,
    ParentCall,
    RunBegan,
    RunEnded,
    TextPiece,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)
from crabtalk_web.stream import Envelope, EnvelopeOrder, decode_envelope, encode_envelope

SESSION = "a session of its own"
DONE = RunEnded(EndReason.COMPLETED)
KILLED = RunEnded(EndReason.CANCELLED)


class AdapterSession:
    """Feeds an adapter; every envelope is checked as it would be sent, and for its order."""

    def __init__(self, adapter: EnvelopeAdapter | None = None, *, is_compat: bool = False) -> None:
        self.adapter = adapter or EnvelopeAdapter(SESSION, is_compat=is_compat)
        self.order = EnvelopeOrder()
        self.envelopes: list[Envelope] = []
        self.now = 1000
        self._is_compat = is_compat

    def handle_event(self, what: AnyRunEvent, run: str = "run", **parts: Any) -> list[Envelope]:
        self.now += 10
        return self.check_envelopes(
            self.adapter.handle_event(
                ReceivedEvent(run=run, event=what, **{"at": self.now, **parts})
            )
        )

    def handle_events(self, received: Iterable[ReceivedEvent]) -> list[Envelope]:
        return [
            envelope
            for one in received
            for envelope in self.check_envelopes(self.adapter.handle_event(one))
        ]

    def check_envelopes(self, envelopes: list[Envelope]) -> list[Envelope]:
        for envelope in envelopes:
            assert decode_envelope(encode_envelope(envelope, is_compat=self._is_compat)) == envelope
            self.order.check_next(envelope)
        self.envelopes += envelopes
        return envelopes

    @property
    def summaries(self) -> list[str]:
        return summarize_envelopes(self.envelopes)


def make_call(key: str, name: str = "bash", **arguments: Any) -> ToolCallRequest:
    return ToolCallRequest(key, name, json.dumps(arguments) if arguments else "")


def make_tools_called(*calls: ToolCallRequest) -> ToolsCalled:
    return ToolsCalled(calls)


def make_delegate_call(key: str, *tasks: dict[str, str], **more: Any) -> ToolCallRequest:
    return make_call(key, "delegate", tasks=list(tasks), **more)


def make_tool_returned(key: str, output: str = "ok", **parts: Any) -> ToolReturned:
    return ToolReturned(key, output, **parts)


def make_parent(run: str, call: str, task: int = 0) -> dict[str, Any]:
    return {"parent": ParentCall(run, call, task)}


def make_turn(*events: AnyRunEvent, run: str = "run", text: str = "") -> Iterable[ReceivedEvent]:
    for number, what in enumerate((RunBegan(text), *events, DONE)):
        yield ReceivedEvent(run=run, event=what, at=1000 + number)


def summarize_envelopes(envelopes: Sequence[Envelope]) -> list[str]:
    """Each envelope in a word or two; agents as letters, in the order they appear."""
    letters: dict[str, str] = {}
    return [summarize_envelope(envelope, letters) for envelope in envelopes]


def summarize_envelope(envelope: Envelope, letters: dict[str, str]) -> str:
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
    "AdapterSession",
    "TextPiece",
    "make_call",
    "make_delegate_call",
    "make_parent",
    "make_tool_returned",
    "make_tools_called",
    "make_turn",
    "summarize_envelopes",
]
