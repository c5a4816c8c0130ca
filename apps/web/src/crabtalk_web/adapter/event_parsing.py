"""Parses events from their two sources: the stream of one turn, and the feed of all
conversations."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from crabtalk.client.events import Event
from crabtalk.protocol import wire

from .run_events import (
    AgentQuestion,
    AnswerOption,
    AnyRunEvent,
    CallApproval,
    ConversationCompacted,
    EndReason,
    ParentCall,
    QuestionsAsked,
    ReceivedEvent,
    RunBegan,
    RunEnded,
    RunSteered,
    SegmentEnded,
    StepEnded,
    TextPiece,
    TokensUsed,
    ToolCallRequest,
    ToolReturned,
    ToolsCalled,
)

END_REASONS = {
    wire.STOP_REASON_COMPLETED: EndReason.COMPLETED,
    wire.STOP_REASON_LENGTH: EndReason.COMPLETED,
    wire.STOP_REASON_CANCELLED: EndReason.CANCELLED,
    wire.STOP_REASON_MAX_ITERATIONS: EndReason.MAX_ITERATIONS,
    wire.STOP_REASON_NO_ACTION: EndReason.NO_ACTION,
    wire.STOP_REASON_ERROR: EndReason.ERROR,
}


class TurnStreamReader:
    """Reads one stream. `text` is the message that the turn answers, unless the readers have it
    already."""

    def __init__(self, agent: str, sender: str, *, text: str = "", run: str = "") -> None:
        self._agent = agent
        self._sender = sender
        self._text = text
        self._run = run
        self._guest = ""

    def parse_event(self, event: wire.StreamEvent | Event, at: int) -> ReceivedEvent | None:
        """Return None for an event that the adapter does not need."""
        if isinstance(event, wire.StreamEvent):
            name = event.WhichOneof("event")
            return self.parse_event(getattr(event, name), at) if name is not None else None
        if isinstance(event, wire.StreamStart):
            self._run = event.run_id or self._run or f"stream:{at}"
            self._guest = event.agent if event.agent != self._agent else ""
        what = self._parse_payload(event)
        if what is None:
            return None
        return ReceivedEvent(
            run=self._run,
            event=what,
            at=at,
            guest=self._guest,
            agent=self._agent,
            sender=self._sender,
            is_streamed=True,
        )

    def _parse_payload(self, event: Event) -> AnyRunEvent | None:
        if isinstance(event, wire.StreamStart):
            return RunBegan(self._text)
        parse = STREAM_PARSERS.get(type(event))
        return parse(event) if parse is not None else None


def parse_feed_event(message: wire.AgentEventMsg) -> ReceivedEvent | None:
    """Return None for an event that the adapter does not need."""
    parse = FEED_PARSERS.get(message.kind)
    what = parse(message) if parse is not None else None
    if what is None:
        return None
    parent = None
    if message.HasField("parent"):
        parent = ParentCall(message.parent.run_id, message.parent.call_id, message.parent.task)
    return ReceivedEvent(
        run=message.run_id,
        event=what,
        at=parse_timestamp(message.timestamp),
        parent=parent,
        guest=message.guest,
        agent=message.agent,
        sender=message.sender,
        missed=message.missed,
    )


def parse_timestamp(timestamp: str) -> int:
    """Return milliseconds; 0 if it is not RFC 3339. The envelope then gets the time of the one
    before it."""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def parse_calls(infos: Iterable[wire.ToolCallInfo]) -> ToolsCalled:
    return ToolsCalled(tuple(ToolCallRequest(info.id, info.name, info.arguments) for info in infos))


def parse_tool_start(event: wire.ToolStartEvent) -> ToolsCalled | None:
    return None if event.early else parse_calls(event.calls)


def parse_ask(event: wire.AskUserEvent) -> QuestionsAsked:
    questions = tuple(
        AgentQuestion(
            q.question,
            q.header,
            tuple(AnswerOption(o.label, o.description) for o in q.options),
            q.multi_select,
            parse_approval(q.approval) if q.HasField("approval") else None,
        )
        for q in event.questions
    )
    return QuestionsAsked(event.ask_id, questions)


def parse_approval(request: wire.ApprovalRequest) -> CallApproval:
    return CallApproval(
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


def parse_usage(usage: wire.TokenUsage) -> TokensUsed:
    return TokensUsed(usage.prompt_tokens, usage.completion_tokens, usage.cache_hit_tokens)


def parse_end(event: wire.StreamEnd | wire.AgentEventMsg) -> RunEnded:
    return RunEnded(END_REASONS.get(event.stop_reason, EndReason.UNKNOWN), event.error)


def parse_done(message: wire.AgentEventMsg) -> RunEnded:
    usage = parse_usage(message.usage) if message.HasField("usage") else None
    return msgspec.structs.replace(parse_end(message), usage=usage)


STREAM_PARSERS: dict[type[Any], Callable[[Any], AnyRunEvent | None]] = {
    wire.StreamChunk: lambda event: TextPiece(event.content),
    wire.StreamThinking: lambda event: TextPiece(event.content, thinking=True),
    wire.TextEndEvent: lambda event: SegmentEnded(),
    wire.ThinkingEndEvent: lambda event: SegmentEnded(),
    wire.ToolStartEvent: parse_tool_start,
    wire.ToolResultEvent: lambda event: ToolReturned(
        event.call_id, event.output, event.is_error, event.duration_ms
    ),
    wire.ToolsCompleteEvent: lambda event: StepEnded(),
    wire.AskUserEvent: parse_ask,
    wire.UserSteeredEvent: lambda event: RunSteered(event.content),
    wire.ContextUsageEvent: lambda event: parse_usage(event.usage),
    wire.StreamEnd: parse_end,
}
FEED_PARSERS: dict[int, Callable[[wire.AgentEventMsg], AnyRunEvent | None]] = {
    wire.TURN_START: lambda message: RunBegan(message.content),
    wire.TEXT_DELTA: lambda message: TextPiece(message.content),
    wire.THINKING_DELTA: lambda message: TextPiece(message.content, thinking=True),
    wire.TEXT_END: lambda message: SegmentEnded(),
    wire.THINKING_END: lambda message: SegmentEnded(),
    wire.TOOL_START: lambda message: parse_calls(message.tool_calls),
    wire.TOOL_RESULT: lambda message: ToolReturned(
        message.call_id, message.tool_output, message.tool_is_error
    ),
    wire.TOOLS_COMPLETE: lambda message: StepEnded(),
    wire.ASK_USER: lambda message: parse_ask(message.ask),
    wire.USER_STEERED: lambda message: RunSteered(message.content),
    wire.CONTEXT_USAGE: lambda message: parse_usage(message.usage),
    wire.COMPACTED: lambda message: ConversationCompacted(message.content),
    wire.DONE: parse_done,
}
