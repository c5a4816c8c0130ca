"""One turn of the chat, from sending the message until its outcome is known."""

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
# The string is the name of the event.
TurnEventHandler = Callable[["StreamedTurn", str, wire.StreamEvent], None]


class TurnResult(NamedTuple):
    """The outcome of a turn. `unsent_text` never reached the agent and goes back to the input."""

    end: wire.StreamEnd | None
    unsent_text: str = ""


@dataclass(slots=True)
class StreamedTurn:
    text: str
    guest: str = ""
    tool_choice: str = ""
    mode: str = ""  # for this turn only; empty: the conversation's mode
    run_id: str = ""
    has_begun: bool = False  # it no longer waits for an earlier turn
    is_given_up: bool = False
    unsent_steers: list[str] = field(default_factory=list)  # steers that found no daemon
    key: str = field(default_factory=lambda: os.urandom(16).hex())

    async def is_stored(self, client: Client, conversation: ConversationReader) -> bool:
        """Whether the daemon has stored a turn that failed. True if it does not say.

        Raises what requests raise.
        """
        events = client.attach(conversation.agent, sender=conversation.sender, key=self.key)
        try:
            async with aclosing(events):
                await anext(events)
        except ServerError as error:
            return error.code != NOT_FOUND
        return True

    async def stream(
        self, client: Client, conversation: ConversationReader, on_event: TurnEventHandler
    ) -> wire.StreamEnd:
        """Send the message and follow the turn to its end, also across daemon restarts.

        Raises ServerError; CannotConnectError when the message was not sent; ConnectionClosedError
        when the daemon knows no keys, or the message seems to crash daemons. Cancelled, or when
        `on_event` raises, the daemon cancels the turn.
        """
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
                on_event(self, name, event)
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
                pass  # it may come from the turn before this one
            case _:
                self.has_begun = True

    def get_unsent_text(self) -> str:
        """Return text that may not be stored. The message is stored once the turn has begun."""
        return self.join_unsent_text(is_stored=self.has_begun)

    def join_unsent_text(self, *, is_stored: bool) -> str:
        """Join the message, unless it is stored, and the steers that found no daemon."""
        return "\n\n".join([*([] if is_stored else [self.text]), *self.unsent_steers])

    def make_missing_end(self, agent: str) -> wire.StreamEnd:
        """Make an end for a turn that got none.

        It carries no reason: a notice gives it, unless a person stopped the turn.
        """
        reason = wire.STOP_REASON_CANCELLED if self.is_given_up else wire.STOP_REASON_UNKNOWN
        return wire.StreamEnd(agent=self.guest or agent, stop_reason=reason)


def get_working_directory() -> str | None:
    """Return the directory tools work in; None if it was removed."""
    with suppress(OSError):
        return os.getcwd()  # noqa: PTH109 - a name for the daemon, not a path of ours
    return None
