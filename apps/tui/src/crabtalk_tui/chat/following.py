"""Follower: the feed of everything agents do, and what of it concerns the chat.

Runs that the chat's turns set off, questions that wait for its person, and others who speak in its
conversation. The turns themselves are streamed, not followed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from crabtalk.client import Client, ServerError
from crabtalk.component.command import one_line
from crabtalk.protocol import wire
from crabtalk_tui.event_lines import EventLines

from .conversation import Conversation
from .kin import Kin
from .questions import Question, Questions
from .reach import AWAY, Reach

RECENT = 200  # things that happened; runs of others
LINE = 300  # characters; what happened may carry megabytes
# Between two tries to follow a daemon that has too many followers.
PAUSE = 5.0
# Seconds of events handled in one go: keys are read in between.
SLICE = 0.004
HAPPENINGS = frozenset({wire.TOOL_START, wire.TOOL_RESULT, wire.DONE, wire.ASK_USER, wire.REFUSED})
# Of the chat's own runs, what their streams do not have.
UNSTREAMED = frozenset({wire.REFUSED, wire.TOOL_PROGRESS})


class Follower:
    """`followed` hears of kin, `changed` of questions, `returned` when the daemon is another,
    `requested` of approvals in other people's runs, `mode_changed` of the conversation's mode."""

    def __init__(
        self,
        reach: Reach,
        *,
        followed: Callable[[wire.AgentEventMsg], None],
        changed: Callable[[], None],
        returned: Callable[[], None],
        requested: Callable[[Question], None],
        mode_changed: Callable[[str], None],
    ) -> None:
        self.questions = Questions()
        self.approvals = Questions()  # for the owner, of runs that are not the chat's
        self.kin = Kin()
        self.happened: deque[str] = deque(maxlen=RECENT)  # a line each
        self.others: set[str] = set()  # runs in the conversation that somebody else began
        self._reach = reach
        self._followed = followed
        self._changed = changed
        self._returned = returned
        self._requested = requested
        self._mode_changed = mode_changed
        self._conversation: Conversation | None = None

    def turn_to(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.others.clear()

    def begin(self, run_id: str) -> None:
        """A turn of the chat's own."""
        self.kin.begin(run_id)
        self.others.discard(run_id)

    def asked(self, question: Question) -> None:
        if self.questions.put(question):
            self._changed()

    def settled(self, run_id: str) -> None:
        has_settled = self.questions.settle(run_id)
        if self.approvals.settle(run_id) or has_settled:
            self._changed()

    async def follow(self) -> None:
        """For as long as the chat lasts; ends when it is cancelled."""
        while True:
            try:
                await self._hear_out(self._reach.client)
            except ServerError:
                if await self._reach.answers():  # too many follow it
                    await asyncio.sleep(PAUSE)
                    continue
                await self._begin_again()
            except AWAY:
                await self._begin_again()

    async def _begin_again(self) -> None:
        await self._reach.recover(wanted=False)
        self.questions.clear()  # those that still wait come first in the next feed
        self.approvals.clear()
        self.others.clear()
        self._returned()

    async def _hear_out(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with aclosing(client.subscribe_events(all_kinds=True)) as events:
            async for event in events:
                self._hear(event)
                if loop.time() - since > SLICE:
                    await asyncio.sleep(0)
                    since = loop.time()

    def _hear(self, event: wire.AgentEventMsg) -> None:
        here = self._conversation
        is_here = here is not None and here.is_of(event.agent, event.sender)
        is_own = self.kin.is_own(event.run_id)
        is_kin = self.kin.has(event)
        if event.kind in HAPPENINGS:
            self.happened.append(one_line(EventLines().line(event), LINE))
        if event.kind == wire.ASK_USER and (is_here or is_kin):
            self.asked(Question(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.ASK_USER:
            self._note_approval(Question(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.MODE_CHANGED and is_here:
            self._mode_changed(event.content)
        elif event.kind in (wire.TOOLS_COMPLETE, wire.DONE):
            self.settled(event.run_id)
        if is_here and not is_own:
            self._note_other(event)
        if is_kin or (is_own and event.kind in UNSTREAMED):
            self._followed(event)

    def _note_approval(self, question: Question) -> None:
        if question.needs_owner and self.approvals.put(question):
            self._requested(question)
            self._changed()

    def _note_other(self, event: wire.AgentEventMsg) -> None:
        if event.kind == wire.MODE_CHANGED:
            return  # it belongs to no run
        if event.kind in (wire.DONE, wire.COMPACTED):
            self.others.discard(event.run_id)
        elif len(self.others) < RECENT:
            self.others.add(event.run_id)
