"""Feed: sends the events of all runs to its subscribers. It never slows a run down.

Each subscriber has its own bounded queue. A subscriber that falls behind misses events; the next
one it gets says how many.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crabtalk.model import ToolCall, Usage
from crabtalk.protocol import UnavailableError, wire
from crabtalk.runtime import (
    AskUser,
    Clock,
    Compacted,
    ContextUsage,
    Done,
    Event,
    Run,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolProgress,
    ToolRefused,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserMessageReceived,
    UserSteered,
    require_positive_integers,
)
from crabtalk.storage import Pair

from .stream_events import WIRE_STOP_REASONS, to_ask_event, to_call_infos, to_token_usage

if TYPE_CHECKING:
    from crabtalk.daemon.fleet.feed_relay import FeedRelay

# Kinds from here on go only to subscribers that asked for all kinds.
FIRST_OPTIONAL_KIND = 101
# Bytes of a tool's output to show: to any subscriber, and to those that asked for all kinds.
SHORT_OUTPUT_BYTES = 2048
LONG_OUTPUT_BYTES = 16 * 1024
TRUNCATION_MARK = "…[truncated]"


@dataclass(frozen=True, slots=True)
class FeedLimits:
    # Concurrent subscribers; the next one is refused.
    feeds: int = 256
    # Events that may wait for a subscriber before it misses some.
    feed_events: int = 1024

    def __post_init__(self) -> None:
        require_positive_integers(self)


class FeedSubscriber:
    """A subscriber's filter and queue."""

    __slots__ = ("_agent", "_bound", "_missed", "_queue", "_waiting", "all_kinds", "sender")

    def __init__(self, agent: str, sender: str, bound: int, *, all_kinds: bool = False) -> None:
        self._agent = agent
        self.sender = sender
        self.all_kinds = all_kinds
        self._bound = bound
        self._queue: deque[wire.AgentEventMsg] = deque()
        self._missed = 0
        self._waiting: asyncio.Future[None] | None = None

    def matches_run(self, run: Run) -> bool:
        return self._matches(*run.pair, is_guest=run.is_guest)

    def _matches(self, agent: str, sender: str, *, is_guest: bool) -> bool:
        if is_guest and not self.all_kinds:
            return False
        return self._agent in ("", agent) and self.sender in ("", sender)

    def offer_remote(self, message: wire.AgentEventMsg) -> None:
        """Queue an event of a run in another daemon, if it matches."""
        if not self._matches(message.agent, message.sender, is_guest=bool(message.guest)):
            return
        if not self.all_kinds and len(message.tool_output) > SHORT_OUTPUT_BYTES:
            short = wire.AgentEventMsg()
            short.CopyFrom(message)
            short.tool_output = truncate_output(message.tool_output, SHORT_OUTPUT_BYTES)
            message = short
        self.offer(message)

    def offer(self, message: wire.AgentEventMsg) -> None:
        if message.kind >= FIRST_OPTIONAL_KIND and not self.all_kinds:
            return
        if len(self._queue) >= self._bound:
            self._missed += 1
            return
        if self._missed:
            late = wire.AgentEventMsg()
            late.CopyFrom(message)
            late.missed, self._missed = self._missed, 0
            message = late
        self._queue.append(message)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> wire.AgentEventMsg:
        while not self._queue:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._queue.popleft()


class Feed:
    def __init__(self, limits: FeedLimits, clock: Clock) -> None:
        self._limits = limits
        self.clock = clock
        self._subscribers: set[FeedSubscriber] = set()
        self.relay: FeedRelay | None = None  # to and from other daemons

    def __len__(self) -> int:
        return len(self._subscribers)

    def publish(self, run: Run, event: Event) -> None:
        """Cheap while there are no subscribers."""
        interested = self.relay.find_interested(run.pair) if self.relay is not None else ()
        if self.relay is not None and interested:
            if (message := to_agent_event(run, event, self.clock)) is None:
                return
            self.relay.send(interested, message)
        if not self._subscribers:
            return
        messages: dict[bool, wire.AgentEventMsg] = {}
        for subscriber in self._subscribers:
            if subscriber.matches_run(run):
                message = messages.get(subscriber.all_kinds)
                if message is None:
                    message = to_agent_event(run, event, self.clock, whole=subscriber.all_kinds)
                    if message is None:
                        return
                    messages[subscriber.all_kinds] = message
                subscriber.offer(message)

    def is_watched(self, run: Run, by_owner: bool = False) -> bool:
        """Whether a subscriber here or at another daemon follows all events of a run, and so could
        answer its questions. With `by_owner`, only programs of the owner count: a subscriber that
        follows a single sender is a gateway, which serves that sender."""
        if any(
            subscriber.all_kinds
            and subscriber.matches_run(run)
            and not (by_owner and subscriber.sender)
            for subscriber in self._subscribers
        ):
            return True
        return self.relay is not None and bool(self.relay.find_interested(run.pair))

    def publish_mode_change(self, pair: Pair, mode: str) -> None:
        """Report that the permission mode of a conversation was changed."""
        message = wire.AgentEventMsg(
            agent=pair.agent,
            sender=pair.sender,
            kind=wire.MODE_CHANGED,
            content=mode,
            timestamp=self.clock.now(),
        )
        if self.relay is not None and (interested := self.relay.find_interested(pair)):
            self.relay.send(interested, message)
        self.publish_remote(message)

    def publish_remote(self, message: wire.AgentEventMsg) -> None:
        """Publish an event of a run in another daemon."""
        for subscriber in self._subscribers:
            subscriber.offer_remote(message)

    async def subscribe(
        self,
        agent: str,
        sender: str,
        *,
        all_kinds: bool = False,
        waiting: Iterable[tuple[Run, AskUser]] = (),
    ) -> AsyncGenerator[wire.AgentEventMsg, None]:
        """All events from now on, until it is closed. With all kinds, the open questions in
        `waiting` come first: the client that got them may be gone."""
        if len(self._subscribers) >= self._limits.feeds:
            raise UnavailableError(f"{len(self._subscribers)} feeds are open already; close one")
        subscriber = FeedSubscriber(agent, sender, self._limits.feed_events, all_kinds=all_kinds)
        self._subscribers.add(subscriber)
        for run, ask in waiting:
            message = to_agent_event(run, ask, self.clock) if subscriber.matches_run(run) else None
            if message is not None:
                subscriber.offer(message)
        if self.relay is not None:
            self.relay.add_interest(agent, sender)
            if all_kinds:
                self.relay.request_questions(subscriber)
        try:
            while True:
                yield await subscriber.next()
        finally:
            self._subscribers.discard(subscriber)
            if self.relay is not None:
                self.relay.remove_interest(agent, sender)


TEXT_EVENT_KINDS = {
    TextDelta: wire.TEXT_DELTA,
    ThinkingDelta: wire.THINKING_DELTA,
    UserMessageReceived: wire.TURN_START,
    UserSteered: wire.USER_STEERED,
}
BARE_EVENT_KINDS = {
    TextStart: wire.TEXT_START,
    TextEnd: wire.TEXT_END,
    ThinkingStart: wire.THINKING_START,
    ThinkingEnd: wire.THINKING_END,
    ToolsComplete: wire.TOOLS_COMPLETE,
}


def to_agent_event(
    run: Run, event: Event, clock: Clock, *, whole: bool = True
) -> wire.AgentEventMsg | None:
    """None for events that a feed does not show. Tool outputs are shorter unless `whole`."""
    message = wire.AgentEventMsg(
        agent=run.pair.agent, sender=run.pair.sender, timestamp=clock.now(), run_id=run.id
    )
    match event:
        case TextDelta() | ThinkingDelta() | UserMessageReceived() | UserSteered():
            message.kind, message.content = TEXT_EVENT_KINDS[type(event)], event.text
        case TextStart() | TextEnd() | ThinkingStart() | ThinkingEnd() | ToolsComplete():
            message.kind = BARE_EVENT_KINDS[type(event)]
        case ToolStart(calls=calls, early=False):
            message.kind = wire.TOOL_START
            message.content = ", ".join(describe_call(call) for call in calls)
            message.tool_calls.extend(to_call_infos(calls))
        case ToolResult():
            message.kind = wire.TOOL_RESULT
            message.content = f"{event.duration_ms}ms"
            message.call_id = event.call_id
            limit = LONG_OUTPUT_BYTES if whole else SHORT_OUTPUT_BYTES
            message.tool_output = truncate_output(event.output, limit)
            message.tool_is_error = event.is_error
        case AskUser():
            message.kind = wire.ASK_USER
            message.content = ", ".join(question.header for question in event.questions)
            message.ask.CopyFrom(to_ask_event(event))
        case ToolRefused():
            message.kind, message.content = wire.REFUSED, event.reason
            message.call_id = event.call_id
            message.tool_calls.append(wire.ToolCallInfo(name=event.tool, id=event.call_id or None))
        case ToolProgress():
            message.kind, message.content = wire.TOOL_PROGRESS, event.text
            message.call_id = event.call_id
            if event.progress is not None:
                message.progress = event.progress
            if event.total is not None:
                message.total = event.total
        case ContextUsage(usage=usage):
            message.kind = wire.CONTEXT_USAGE
            add_usage(message, usage)
        case Compacted(archive=archive):
            message.kind, message.content = wire.COMPACTED, archive.title
        case Done():
            message.kind, message.content = wire.DONE, describe_usage(event)
            message.stop_reason = WIRE_STOP_REASONS[event.reason]
            message.model = event.model
            if event.error:
                message.error = event.error
            add_usage(message, event.usage)
        case _:
            return None
    if run.is_guest:
        message.guest = run.speaker
    if (parent := run.parent) is not None:
        message.parent.agent, message.parent.sender = parent.pair
        message.parent.run_id, message.parent.call_id = parent.run_id, parent.call_id
        message.parent.task = parent.task
    return message


def add_usage(message: wire.AgentEventMsg, usage: Usage | None) -> None:
    if (counted := to_token_usage(usage)) is not None:
        message.usage.CopyFrom(counted)


def describe_call(call: ToolCall) -> str:
    """The name of a call, and for bash the first line of its command."""
    if call.name != "bash":
        return call.name
    try:
        command = json.loads(call.arguments)["command"]
        # JSON escapes can spell lone surrogates, which UTF-8, and so the wire, cannot encode.
        return f"bash({command.splitlines()[0].encode(errors='replace').decode()})"
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return call.name


def truncate_output(output: str, limit: int) -> str:
    data = output.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(TRUNCATION_MARK.encode())].decode(errors="ignore") + TRUNCATION_MARK


def describe_usage(done: Done) -> str:
    if not done.steps:
        return ""
    usage = done.usage
    read, written = (usage.prompt, usage.completion) if usage is not None else (0, 0)
    cached = usage.cache_hit if usage is not None else None
    hit = f" ({format_count(cached)} cached)" if cached else ""
    return f"{done.model} {format_count(read)} in{hit} / {format_count(written)} out"


def format_count(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1_000_000:.1f}M"
    return f"{count / 1000:.1f}k" if count >= 1000 else str(count)
