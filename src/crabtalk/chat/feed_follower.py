"""Follower: the feed of everything agents do, and what of it concerns the chat.

Runs that the chat's turns set off, questions that wait for its person, and others who speak in its
conversation. The turns themselves are streamed, not followed.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from crabtalk.cli.event_formatting import EventFormatter
from crabtalk.client import Client, ServerError
from crabtalk.protocol import wire
from crabtalk.service.command_line import to_one_line

from .conversation_reader import ConversationReader
from .own_runs import OwnRuns
from .pending_questions import ChatQuestion, ChatQuestions
from .reconnecting_client import CONNECTION_ERRORS, ReconnectingClient

MAX_RECENT = 200  # things that happened; runs of others
MAX_LINE = 300  # characters; what happened may carry megabytes
# Between two tries to follow a daemon that has too many followers.
RETRY_SECONDS = 5.0
# Seconds of events handled in one go: keys are read in between.
MAX_BATCH_SECONDS = 0.004
LOGGED_KINDS = frozenset(
    {wire.TOOL_START, wire.TOOL_RESULT, wire.DONE, wire.ASK_USER, wire.REFUSED}
)
# Of the chat's own runs, what their streams do not have.
UNSTREAMED = frozenset({wire.REFUSED, wire.TOOL_PROGRESS})


class ChatFeedFollower:
    """`followed` hears of kin, `changed` of questions, `returned` when the daemon is another,
    `requested` of approvals in other people's runs, `mode_changed` of the conversation's mode."""

    def __init__(
        self,
        reach: ReconnectingClient,
        *,
        followed: Callable[[wire.AgentEventMsg], None],
        changed: Callable[[], None],
        returned: Callable[[], None],
        requested: Callable[[ChatQuestion], None],
        mode_changed: Callable[[str], None],
    ) -> None:
        self.questions = ChatQuestions()
        self.approvals = ChatQuestions()  # for the owner, of runs that are not the chat's
        self.own_runs = OwnRuns()
        self.recent_events: deque[str] = deque(maxlen=MAX_RECENT)  # a line each
        self.other_runs: set[str] = set()  # runs in the conversation that somebody else began
        self._daemon = reach
        self._on_feed_event = followed
        self._on_change = changed
        self._on_return = returned
        self._on_approval = requested
        self._on_mode_change = mode_changed
        self._conversation: ConversationReader | None = None

    def set_conversation(self, conversation: ConversationReader) -> None:
        self._conversation = conversation
        self.other_runs.clear()

    def add_own_run(self, run_id: str) -> None:
        """A turn of the chat's own."""
        self.own_runs.add_run(run_id)
        self.other_runs.discard(run_id)

    def add_question(self, question: ChatQuestion) -> None:
        if self.questions.add_question(question):
            self._on_change()

    def settle_run(self, run_id: str) -> None:
        has_settled = self.questions.remove_run(run_id)
        if self.approvals.remove_run(run_id) or has_settled:
            self._on_change()

    async def follow_feed(self) -> None:
        """For as long as the chat lasts; ends when it is cancelled."""
        while True:
            try:
                await self._read_feed(self._daemon.client)
            except ServerError:
                if await self._daemon.is_answering():  # too many follow it
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                await self._recover()
            except CONNECTION_ERRORS:
                await self._recover()

    async def _recover(self) -> None:
        await self._daemon.recover(wanted=False)
        self.questions.clear()  # those that still wait come first in the next feed
        self.approvals.clear()
        self.other_runs.clear()
        self._on_return()

    async def _read_feed(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with aclosing(client.subscribe_events(all_kinds=True)) as events:
            async for event in events:
                self._handle_event(event)
                if loop.time() - since > MAX_BATCH_SECONDS:
                    await asyncio.sleep(0)
                    since = loop.time()

    def _handle_event(self, event: wire.AgentEventMsg) -> None:
        here = self._conversation
        is_here = here is not None and here.matches(event.agent, event.sender)
        is_own = self.own_runs.is_own(event.run_id)
        is_kin = self.own_runs.is_descendant(event)
        if event.kind in LOGGED_KINDS:
            self.recent_events.append(to_one_line(EventFormatter().format_event(event), MAX_LINE))
        if event.kind == wire.ASK_USER and (is_here or is_kin):
            self.add_question(ChatQuestion(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.ASK_USER:
            self._add_approval(ChatQuestion(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.MODE_CHANGED and is_here:
            self._on_mode_change(event.content)
        elif event.kind in (wire.TOOLS_COMPLETE, wire.DONE):
            self.settle_run(event.run_id)
        if is_here and not is_own:
            self._track_other_run(event)
        if is_kin or (is_own and event.kind in UNSTREAMED):
            self._on_feed_event(event)

    def _add_approval(self, question: ChatQuestion) -> None:
        if question.needs_owner and self.approvals.add_question(question):
            self._on_approval(question)
            self._on_change()

    def _track_other_run(self, event: wire.AgentEventMsg) -> None:
        if event.kind == wire.MODE_CHANGED:
            return  # it belongs to no run
        if event.kind in (wire.DONE, wire.COMPACTED):
            self.other_runs.discard(event.run_id)
        elif len(self.other_runs) < MAX_RECENT:
            self.other_runs.add(event.run_id)
