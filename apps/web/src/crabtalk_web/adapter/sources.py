"""Where happenings come from: the stream of a turn one runs oneself, and the feed of all others."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from crabtalk.client.events import Event
from crabtalk.protocol import wire

from .happenings import (
    AnyHappening,
    Approval,
    Asked,
    Began,
    Call,
    Called,
    Compacted,
    Ended,
    Heard,
    Option,
    Parent,
    Piece,
    Question,
    Reason,
    Returned,
    SegmentOver,
    Steered,
    StepOver,
    Used,
)

REASONS = {
    wire.STOP_REASON_COMPLETED: Reason.COMPLETED,
    wire.STOP_REASON_LENGTH: Reason.COMPLETED,
    wire.STOP_REASON_CANCELLED: Reason.CANCELLED,
    wire.STOP_REASON_MAX_ITERATIONS: Reason.MAX_ITERATIONS,
    wire.STOP_REASON_NO_ACTION: Reason.NO_ACTION,
    wire.STOP_REASON_ERROR: Reason.ERROR,
}


class StreamReader:
    """Reads one stream. `said` is what its turn answers, if nobody who follows has it yet."""

    def __init__(self, agent: str, sender: str, *, said: str = "", run: str = "") -> None:
        self._agent = agent
        self._sender = sender
        self._said = said
        self._run = run
        self._guest = ""

    def read(self, event: wire.StreamEvent | Event, at: int) -> Heard | None:
        """None for what says nothing to the adapter."""
        if isinstance(event, wire.StreamEvent):
            name = event.WhichOneof("event")
            return self.read(getattr(event, name), at) if name is not None else None
        if isinstance(event, wire.StreamStart):
            self._run = event.run_id or self._run or f"stream:{at}"
            self._guest = event.agent if event.agent != self._agent else ""
        what = self._happening(event)
        if what is None:
            return None
        return Heard(
            run=self._run,
            what=what,
            at=at,
            guest=self._guest,
            agent=self._agent,
            sender=self._sender,
            is_streamed=True,
        )

    def _happening(self, event: Event) -> AnyHappening | None:
        if isinstance(event, wire.StreamStart):
            return Began(self._said)
        read = STREAMED.get(type(event))
        return read(event) if read is not None else None


def from_feed(message: wire.AgentEventMsg) -> Heard | None:
    """None for what says nothing to the adapter."""
    read = FED.get(message.kind)
    what = read(message) if read is not None else None
    if what is None:
        return None
    parent = None
    if message.HasField("parent"):
        parent = Parent(message.parent.run_id, message.parent.call_id, message.parent.task)
    return Heard(
        run=message.run_id,
        what=what,
        at=milliseconds(message.timestamp),
        parent=parent,
        guest=message.guest,
        agent=message.agent,
        sender=message.sender,
        missed=message.missed,
    )


def milliseconds(timestamp: str) -> int:
    """0 for what is no RFC 3339: the time before it is then the one that counts."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def calls(infos: Iterable[wire.ToolCallInfo]) -> Called:
    return Called(tuple(Call(info.id, info.name, info.arguments) for info in infos))


def tool_start(event: wire.ToolStartEvent) -> Called | None:
    return None if event.early else calls(event.calls)


def asked(event: wire.AskUserEvent) -> Asked:
    questions = tuple(
        Question(
            q.question,
            q.header,
            tuple(Option(o.label, o.description) for o in q.options),
            q.multi_select,
            read_approval(q.approval) if q.HasField("approval") else None,
        )
        for q in event.questions
    )
    return Asked(event.ask_id, questions)


def read_approval(request: wire.ApprovalRequest) -> Approval:
    return Approval(
        tool=request.tool,
        call=request.call,
        agent=request.agent,
        cwd=request.cwd,
        env=tuple(sorted(request.env.items())),
        always=request.always,
        digest=request.digest,
        requested_by=request.requested_by,
        for_owner=request.for_owner,
        reason=request.reason,
    )


def used(usage: wire.TokenUsage) -> Used:
    return Used(usage.prompt_tokens, usage.completion_tokens, usage.cache_hit_tokens)


def ended(event: wire.StreamEnd | wire.AgentEventMsg) -> Ended:
    return Ended(REASONS.get(event.stop_reason, Reason.UNKNOWN), event.error)


def done(message: wire.AgentEventMsg) -> Ended:
    counted = used(message.usage) if message.HasField("usage") else None
    return msgspec.structs.replace(ended(message), used=counted)


STREAMED: dict[type[Any], Callable[[Any], AnyHappening | None]] = {
    wire.StreamChunk: lambda event: Piece(event.content),
    wire.StreamThinking: lambda event: Piece(event.content, thinking=True),
    wire.TextEndEvent: lambda event: SegmentOver(),
    wire.ThinkingEndEvent: lambda event: SegmentOver(),
    wire.ToolStartEvent: tool_start,
    wire.ToolResultEvent: lambda event: Returned(
        event.call_id, event.output, event.is_error, event.duration_ms
    ),
    wire.ToolsCompleteEvent: lambda event: StepOver(),
    wire.AskUserEvent: asked,
    wire.UserSteeredEvent: lambda event: Steered(event.content),
    wire.ContextUsageEvent: lambda event: used(event.usage),
    wire.StreamEnd: ended,
}
FED: dict[int, Callable[[wire.AgentEventMsg], AnyHappening | None]] = {
    wire.TURN_START: lambda message: Began(message.content),
    wire.TEXT_DELTA: lambda message: Piece(message.content),
    wire.THINKING_DELTA: lambda message: Piece(message.content, thinking=True),
    wire.TEXT_END: lambda message: SegmentOver(),
    wire.THINKING_END: lambda message: SegmentOver(),
    wire.TOOL_START: lambda message: calls(message.tool_calls),
    wire.TOOL_RESULT: lambda message: Returned(
        message.call_id, message.tool_output, message.tool_is_error
    ),
    wire.TOOLS_COMPLETE: lambda message: StepOver(),
    wire.ASK_USER: lambda message: asked(message.ask),
    wire.USER_STEERED: lambda message: Steered(message.content),
    wire.CONTEXT_USAGE: lambda message: used(message.usage),
    wire.COMPACTED: lambda message: Compacted(message.content),
    wire.DONE: done,
}
