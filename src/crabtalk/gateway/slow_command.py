"""A gateway command that may take a while, such as /compact and /new. /stop stops it.

The daemon finishes a compaction even if this process dies. The next process waits for its end and
learns the result from the archives of the conversation.
"""

import asyncio

from crabtalk.client import ServerError

from .agent_bindings import AGENT_NOT_ALLOWED
from .errors import is_daemon_unavailable
from .gateway_context import GatewayContext
from .gateway_turn import STOPPED_NOTE
from .journal_records import DaemonRequest, PendingUpdate
from .outgoing_messages import wait_for_daemon
from .question_answers import send_answer
from .slash_commands import ParsedCommand, SlashCommandHandler, describe_compaction

COMPACTION_INTERRUPTED = "This was cut off, and nothing has changed. Send /{name} again."


class SlowCommand:
    def __init__(
        self,
        context: GatewayContext,
        commands: SlashCommandHandler,
        item: PendingUpdate,
        command: ParsedCommand,
    ) -> None:
        self._context = context
        self._commands = commands
        self._item = item
        self._command = command
        self._is_stopped = False
        self._wait_task: asyncio.Future[None] | None = None  # waits for the daemon

    @property
    def agent(self) -> str:
        ask = self._item.ask
        return ask.agent if ask is not None else self._context.agent_for(self._item.update)

    async def run(self) -> None:
        """Run until it is answered. Raises ChatBlockedError. Cancelled, the journal has the state
        it reached."""
        while (text := await self._attempt()) is None:
            if not await self._wait_for_daemon():
                text = STOPPED_NOTE
                break
        await send_answer(self._context, self._item, text)

    def stop(self) -> None:
        """Stop waiting for the daemon. A run at the daemon has to be killed separately."""
        self._is_stopped = True
        if self._wait_task is not None:
            self._wait_task.cancel()

    async def _attempt(self) -> str | None:
        """The answer; None while the daemon is away."""
        ask = self._item.ask
        try:
            if ask is not None and not self._commands.is_allowed(self._item.update, ask.agent):
                return AGENT_NOT_ALLOWED.format(name=ask.agent)
            if ask is not None:
                return await self._resolve_compaction(ask)
            return await self._commands.run(self._item, self._command)
        except ServerError as error:
            if is_daemon_unavailable(error):
                return None
            return STOPPED_NOTE if self._is_stopped else f"⚠️ {error.message}"
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            return None

    async def _resolve_compaction(self, ask: DaemonRequest) -> str:
        """The result of a compaction whose end no process watched."""
        archive = await self._context.daemon.find_archive(ask.agent, ask.sender, ask.offset)
        if archive is not None:
            return describe_compaction(ask.text, archive.summary)
        return STOPPED_NOTE if self._is_stopped else COMPACTION_INTERRUPTED.format(name=ask.text)

    async def _wait_for_daemon(self) -> bool:
        """False when it was stopped first."""
        if self._is_stopped:
            return False
        task = asyncio.ensure_future(wait_for_daemon(self._context, self._item.update.chat))
        self._wait_task = task
        try:
            await asyncio.wait([task])
        finally:
            self._wait_task = None
            task.cancel()
        if task.cancelled():
            return False
        task.result()
        return True
