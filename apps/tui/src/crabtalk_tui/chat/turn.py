"""Turn: one message on its way, from the moment it is sent until it is known what came of it."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from crabtalk.client import Client, UnexpectedReplyError
from crabtalk.component.command import counted
from crabtalk.protocol import wire

from .conversation import Conversation
from .following import SLICE
from .reach import Kind

Hear = Callable[["Turn", str, wire.StreamEvent], None]  # with the name of the event


class Said(NamedTuple):
    """What became of something said. `unsent` is what the agent never heard: for the input."""

    end: wire.StreamEnd | None
    unsent: str = ""


class Verdict(NamedTuple):
    """On a turn that was cut off. Without `said` it is safe to send it again."""

    sentence: str
    kind: Kind
    said: Said | None
    answer: Sequence[wire.ConversationMessage] = ()


@dataclass(slots=True)
class Turn:
    text: str
    guest: str = ""
    tool_choice: str = ""
    mode: str = ""  # of this turn alone; empty for the conversation's
    run_id: str = ""
    has_begun: bool = False  # it no longer waits for an earlier turn
    given_up: bool = False
    steers: list[str] = field(default_factory=list)  # that the agent has not read

    async def stream(
        self, client: Client, conversation: Conversation, hear: Hear
    ) -> wire.StreamEnd:
        """Raises ServerError, OSError and ConnectionClosedError. Cancelled, or when the hearer
        raises, the daemon cancels the turn."""
        request = wire.StreamMsg(
            agent=conversation.agent,
            content=self.text,
            sender=conversation.sender or None,
            cwd=working_directory(),
            guest=self.guest or None,
            tool_choice=self.tool_choice or None,
            mode=self.mode or None,
        )
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with aclosing(client.request_stream(wire.ClientMessage(stream=request))) as replies:
            async for reply in replies:
                event = reply.stream
                if (name := event.WhichOneof("event")) is None:
                    continue  # of a newer daemon
                self._note(name, event)
                hear(self, name, event)
                if name == "end":
                    return event.end
                if loop.time() - since > SLICE:
                    await asyncio.sleep(0)
                    since = loop.time()
        raise UnexpectedReplyError("the stream of a turn had no end")

    def _note(self, name: str, event: wire.StreamEvent) -> None:
        match name:
            case "start":
                self.run_id = event.start.run_id
            case "ask_user":
                pass  # that of the turn before this one, perhaps
            case "user_steered":
                self.has_begun = True
                self.read(event.user_steered.content)
            case "end":
                self.has_begun = True
                self.steers.clear()  # the daemon keeps what the agent came too late for
            case _:
                self.has_begun = True

    def read(self, steer: str) -> None:
        with suppress(ValueError):
            self.steers.remove(steer)

    def unheard(self) -> str:
        """What may never have been kept. A turn that has begun was, before it began."""
        return "\n\n".join([*([] if self.has_begun else [self.text]), *self.steers])

    def judged(self, kept: Sequence[wire.ConversationMessage], *, is_safe: bool) -> Verdict:
        """By what the conversation has since the turn was sent.

        It is safe to send it again when another daemon does not have it: no model was asked, for
        what is said is kept before that. The same daemon may be about to keep it; and what somebody
        else seems to have said may be ours, in the words of a skill.
        """
        texts = [message.content for message in kept if message.role == "user"]
        unread = [text for text in self.steers if text not in texts]
        place = next((n for n, message in enumerate(kept) if self.is_said_by(message)), None)
        if place is not None:
            answer = kept[place + 1 :]
            also = f" and {counted(len(answer), 'message')} that followed it" if answer else ""
            return Verdict(
                f"the turn was cut off; your message{also} is kept and not sent again. "
                "“go on” has it finished",
                "hint",
                Said(None, "\n\n".join(unread)),
                answer,
            )
        self.has_begun = False
        if is_safe and not texts:
            return Verdict("your message had not been kept; it is sent again", "info", None)
        back = Said(None, "\n\n".join([self.text, *unread]))
        return Verdict("your message was not kept; it is in the input again", "hint", back)

    def is_said_by(self, message: wire.ConversationMessage) -> bool:
        """Whether it is what was said: as it was, or with the skill that it names."""
        said = message.content
        is_skill = self.text.lstrip().startswith("/") and said.endswith("</skill>")
        return message.role == "user" and (said == self.text or is_skill)

    def cut_end(self, agent: str) -> wire.StreamEnd:
        """For a turn whose own never came. Why is told beside it, unless a person stopped it."""
        reason = wire.STOP_REASON_CANCELLED if self.given_up else wire.STOP_REASON_UNKNOWN
        return wire.StreamEnd(agent=self.guest or agent, stop_reason=reason)


def working_directory() -> str | None:
    """Where tools work; None when it was removed meanwhile."""
    with suppress(OSError):
        return os.getcwd()  # noqa: PTH109 - a name for the daemon, not a path of ours
    return None
