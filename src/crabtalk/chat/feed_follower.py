"""Follow the feed of everything agents do, and pick out what concerns the chat.

That is runs started by the chat's turns, questions for its person, and other clients' runs in its
conversation. The chat's own turns are streamed, not followed.
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
from .pending_questions import ChatQuestion, ChatQuestions
from .reconnecting_client import CONNECTION_ERRORS, ReconnectingClient

MAX_RECENT = 200  # recent events, and runs of other clients
MAX_LINE = 300  # characters; an event may carry megabytes
# Seconds between two tries to follow a daemon that has too many followers.
RETRY_SECONDS = 5.0
# Seconds of handling events before keys are read.
MAX_BATCH_SECONDS = 0.004
LOGGED_KINDS = frozenset(
    {wire.TOOL_START, wire.TOOL_RESULT, wire.DONE, wire.ASK_USER, wire.REFUSED}
)
# Events of the chat's own runs that their streams do not have.
UNSTREAMED = frozenset({wire.REFUSED, wire.TOOL_PROGRESS})
MAX_RUNS = 4096  # runs remembered; background tasks outlive their turn


class ChatFeedFollower:
    """Calls back for what concerns the chat.

    `on_feed_event` gets events of runs that the chat's turns started, `on_change` is called when
    questions change, `on_return` after a reconnect, `on_approval` for an approval in other people's
    runs, and `on_mode_change` with the conversation's new mode.
    """

    def __init__(
        self,
        daemon: ReconnectingClient,
        *,
        on_feed_event: Callable[[wire.AgentEventMsg], None],
        on_change: Callable[[], None],
        on_return: Callable[[], None],
        on_approval: Callable[[ChatQuestion], None],
        on_mode_change: Callable[[str], None],
    ) -> None:
        self.questions = ChatQuestions()
        self.approvals = ChatQuestions()  # for the owner, of runs that are not the chat's
        self.own_runs = OwnRuns()
        self.recent_events: deque[str] = deque(maxlen=MAX_RECENT)  # a line each
        self.other_runs: set[str] = set()  # runs in the conversation that another client began
        self._daemon = daemon
        self._on_feed_event = on_feed_event
        self._on_change = on_change
        self._on_return = on_return
        self._on_approval = on_approval
        self._on_mode_change = on_mode_change
        self._conversation: ConversationReader | None = None

    def set_conversation(self, conversation: ConversationReader) -> None:
        self._conversation = conversation
        self.other_runs.clear()

    def add_own_run(self, run_id: str) -> None:
        """Record the run of one of the chat's own turns."""
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
        """Follow the feed until cancelled, across reconnects."""
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
        self.questions.clear()  # the next feed begins with those that still wait
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
        conversation = self._conversation
        is_here = conversation is not None and conversation.matches(event.agent, event.sender)
        is_own = self.own_runs.is_own(event.run_id)
        is_descendant = self.own_runs.is_descendant(event)
        if event.kind in LOGGED_KINDS:
            self.recent_events.append(to_one_line(EventFormatter().format_event(event), MAX_LINE))
        if event.kind == wire.ASK_USER and (is_here or is_descendant):
            self.add_question(ChatQuestion(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.ASK_USER:
            self._add_approval(ChatQuestion(event.agent, event.sender, event.run_id, event.ask))
        elif event.kind == wire.MODE_CHANGED and is_here:
            self._on_mode_change(event.content)
        elif event.kind in (wire.TOOLS_COMPLETE, wire.DONE):
            self.settle_run(event.run_id)
        if is_here and not is_own:
            self._track_other_run(event)
        if is_descendant or (is_own and event.kind in UNSTREAMED):
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


class OwnRuns:
    """The runs the chat began, and all runs that descend from them."""

    def __init__(self) -> None:
        self._roots: dict[str, None] = {}  # began here, oldest first
        self._descendants: dict[str, None] = {}  # started by one of ours

    def add_run(self, run_id: str) -> None:
        add_bounded(self._roots, run_id)

    def is_own(self, run_id: str) -> bool:
        return run_id in self._roots

    def is_descendant(self, event: wire.AgentEventMsg) -> bool:
        """Whether the event's run descends from one of ours; if so, the run is remembered."""
        if event.run_id in self._descendants:
            return True
        if not event.HasField("parent"):
            return False
        parent = event.parent.run_id
        if parent not in self._roots and parent not in self._descendants:
            return False
        add_bounded(self._descendants, event.run_id)
        return True


def add_bounded(runs: dict[str, None], run_id: str) -> None:
    runs[run_id] = None
    if len(runs) > MAX_RUNS:
        del runs[next(iter(runs))]
