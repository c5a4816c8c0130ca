"""Turn: one message on its way, from the moment it is sent until it is known what came of it."""

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from crabtalk.client import Client, ServerError, UnexpectedReplyError
from crabtalk.protocol import wire

from .conversation_reader import ConversationReader
from .feed_follower import MAX_BATCH_SECONDS

NOT_FOUND = 404
TurnEventHandler = Callable[
    ["StreamedTurn", str, wire.StreamEvent], None
]  # with the name of the event


class TurnResult(NamedTuple):
    """What became of something said. `unsent` is what the agent never heard: for the input."""

    end: wire.StreamEnd | None
    unsent_text: str = ""


@dataclass(slots=True)
class StreamedTurn:
    text: str
    guest: str = ""
    tool_choice: str = ""
    mode: str = ""  # of this turn alone; empty for the conversation's
    run_id: str = ""
    has_begun: bool = False  # it no longer waits for an earlier turn
    is_given_up: bool = False
    unsent_steers: list[str] = field(default_factory=list)  # that found no daemon
    key: str = field(default_factory=lambda: os.urandom(16).hex())

    async def is_stored(self, client: Client, conversation: ConversationReader) -> bool:
        """Whether the daemon has a turn that failed. True where it does not say. Raises what
        requests do."""
        events = client.attach(conversation.agent, sender=conversation.sender, key=self.key)
        try:
            async with aclosing(events):
                await anext(events)
        except ServerError as error:
            return error.code != NOT_FOUND
        return True

    async def stream(
        self, client: Client, conversation: ConversationReader, hear: TurnEventHandler
    ) -> wire.StreamEnd:
        """Follows the turn to its end, from one daemon to the next where one goes away.

        Raises ServerError; CannotConnectError when it was not sent; ConnectionClosedError when the
        daemon knows no keys, or the message seems to take daemons down. Cancelled, or when the
        hearer raises, the daemon cancels the turn."""
        request = wire.StreamMsg(
            agent=conversation.agent,
            content=self.text,
            sender=conversation.sender or None,
            cwd=get_working_directory(),
            guest=self.guest or None,
            tool_choice=self.tool_choice or None,
            mode=self.mode or None,
            key=self.key,
        )
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with aclosing(client.stream_events(request)) as events:
            async for event in events:
                name = event.WhichOneof("event") or ""
                self._track_event(name, event)
                hear(self, name, event)
                if name == "end":
                    return event.end
                if loop.time() - since > MAX_BATCH_SECONDS:
                    await asyncio.sleep(0)
                    since = loop.time()
        raise UnexpectedReplyError("the stream of a turn had no end")

    def _track_event(self, name: str, event: wire.StreamEvent) -> None:
        match name:
            case "start":
                self.run_id = event.start.run_id
            case "ask_user":
                pass  # that of the turn before this one, perhaps
            case _:
                self.has_begun = True

    def get_unsent_text(self) -> str:
        """What may never have been kept. A turn that has begun was, before it began."""
        return self.join_unsent_text(is_kept=self.has_begun)

    def join_unsent_text(self, *, is_kept: bool) -> str:
        """For the input: the message unless it is kept, and what found no daemon."""
        return "\n\n".join([*([] if is_kept else [self.text]), *self.unsent_steers])

    def make_missing_end(self, agent: str) -> wire.StreamEnd:
        """For a turn whose own never came. Why is told beside it, unless a person stopped it."""
        reason = wire.STOP_REASON_CANCELLED if self.is_given_up else wire.STOP_REASON_UNKNOWN
        return wire.StreamEnd(agent=self.guest or agent, stop_reason=reason)


def get_working_directory() -> str | None:
    """Where tools work; None when it was removed meanwhile."""
    with suppress(OSError):
        return os.getcwd()  # noqa: PTH109 - a name for the daemon, not a path of ours
    return None
