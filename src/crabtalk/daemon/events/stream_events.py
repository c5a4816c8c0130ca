"""Converts the events of a run to the stream messages of the wire."""

from collections.abc import Callable, Iterable
from typing import Any

from crabtalk.model import ToolCall, Usage
from crabtalk.protocol import wire
from crabtalk.runtime import (
    ApprovalRequest,
    AskUser,
    ContextUsage,
    Done,
    Event,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserSteered,
)

WIRE_STOP_REASONS = {
    StopReason.COMPLETED: wire.STOP_REASON_COMPLETED,
    StopReason.CANCELLED: wire.STOP_REASON_CANCELLED,
    StopReason.MAX_ITERATIONS: wire.STOP_REASON_MAX_ITERATIONS,
    StopReason.NO_ACTION: wire.STOP_REASON_NO_ACTION,
    StopReason.ERROR: wire.STOP_REASON_ERROR,
    StopReason.LENGTH: wire.STOP_REASON_LENGTH,
}
MAX_WIRE_COUNT = 2**32 - 1


def to_stream_event(event: Event) -> wire.StreamEvent | None:
    """None for events that a stream does not show."""
    convert = CONVERSIONS.get(type(event))
    return convert(event) if convert is not None else None


def to_chunk(event: TextDelta) -> wire.StreamEvent:
    # By far the most frequent event. Filling it in place costs half of building two messages.
    message = wire.StreamEvent()
    message.chunk.content = event.text
    return message


def to_thinking(event: ThinkingDelta) -> wire.StreamEvent:
    message = wire.StreamEvent()
    message.thinking.content = event.text
    return message


def to_start(event: Started) -> wire.StreamEvent:
    return wire.StreamEvent(
        start=wire.StreamStart(
            agent=event.agent,
            run_id=event.run_id,
            mode=event.mode or None,
            stored=event.is_stored or None,
        )
    )


def to_tool_start(event: ToolStart) -> wire.StreamEvent:
    calls = to_call_infos(event.calls)
    return wire.StreamEvent(
        tool_start=wire.ToolStartEvent(calls=calls, early=True if event.early else None)
    )


def to_ask_user(event: AskUser) -> wire.StreamEvent:
    return wire.StreamEvent(ask_user=to_ask_event(event))


def to_ask_event(event: AskUser) -> wire.AskUserEvent:
    questions = [
        wire.AskQuestion(
            question=q.question,
            header=q.header,
            options=[wire.AskOption(label=o.label, description=o.description) for o in q.options],
            multi_select=q.multi_select,
            approval=to_approval_request(q.approval) if q.approval is not None else None,
        )
        for q in event.questions
    ]
    return wire.AskUserEvent(questions=questions, ask_id=event.ask_id)


def to_approval_request(approval: ApprovalRequest) -> wire.ApprovalRequest:
    return wire.ApprovalRequest(
        agent=approval.agent,
        tool=approval.tool,
        call=approval.call,
        cwd=approval.cwd,
        env=approval.env,
        always=approval.always,
        digest=approval.digest,
        requested_by=approval.requested_by,
        for_owner=approval.for_owner,
        reason=approval.reason,
    )


def to_tool_result(event: ToolResult) -> wire.StreamEvent:
    return wire.StreamEvent(
        tool_result=wire.ToolResultEvent(
            call_id=event.call_id,
            output=event.output,
            duration_ms=event.duration_ms,
            is_error=event.is_error,
        )
    )


def to_end(event: Done) -> wire.StreamEvent:
    return wire.StreamEvent(
        end=wire.StreamEnd(
            agent=event.agent,
            error=event.error,
            model=event.model,
            usage=to_token_usage(event.usage),
            stop_reason=WIRE_STOP_REASONS[event.reason],
        )
    )


def to_call_infos(calls: Iterable[ToolCall]) -> list[wire.ToolCallInfo]:
    return [
        wire.ToolCallInfo(name=call.name, arguments=call.arguments, id=call.id or None)
        for call in calls
    ]


def to_token_usage(usage: Usage | None) -> wire.TokenUsage | None:
    """Counts that the wire cannot hold become the largest it can, rather than none."""
    if usage is None:
        return None

    known = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.total,
        "cache_hit_tokens": usage.cache_hit,
        "cache_miss_tokens": usage.cache_miss,
        "reasoning_tokens": usage.reasoning,
    }
    return wire.TokenUsage(
        **{
            name: max(0, min(count, MAX_WIRE_COUNT))
            for name, count in known.items()
            if count is not None
        }
    )


CONVERSIONS: dict[type[Any], Callable[[Any], wire.StreamEvent]] = {
    TextDelta: to_chunk,
    ThinkingDelta: to_thinking,
    Started: to_start,
    TextStart: lambda e: wire.StreamEvent(text_start=wire.TextStartEvent(agent=e.agent)),
    TextEnd: lambda e: wire.StreamEvent(text_end=wire.TextEndEvent(agent=e.agent)),
    ThinkingStart: lambda e: wire.StreamEvent(
        thinking_start=wire.ThinkingStartEvent(agent=e.agent)
    ),
    ThinkingEnd: lambda e: wire.StreamEvent(thinking_end=wire.ThinkingEndEvent(agent=e.agent)),
    ToolStart: to_tool_start,
    ToolResult: to_tool_result,
    AskUser: to_ask_user,
    ToolsComplete: lambda e: wire.StreamEvent(tools_complete=wire.ToolsCompleteEvent()),
    UserSteered: lambda e: wire.StreamEvent(user_steered=wire.UserSteeredEvent(content=e.text)),
    ContextUsage: lambda e: wire.StreamEvent(
        context_usage=wire.ContextUsageEvent(usage=to_token_usage(e.usage))
    ),
    Done: to_end,
}
