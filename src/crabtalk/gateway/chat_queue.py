"""The updates of one chat, handled one after another in order of arrival.

While a turn runs, some updates go into it: an answer to its question, a steering message, or /stop,
which never waits. All other updates wait for the end of the turn.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress

from crabtalk.client import ServerError

from .agent_bindings import AGENT_NOT_ALLOWED, AGENT_WITHDRAWN
from .chat_service import ChatBlockedError
from .errors import NOT_FOUND, is_daemon_unavailable
from .gateway_context import GatewayContext
from .gateway_turn import GatewayTurn, append_files
from .journal_records import (
    AgentChosen,
    AnswerPrepared,
    DaemonRequest,
    PendingUpdate,
    RequestNotSent,
    RequestStarted,
    TextDelivered,
    UpdateHandled,
)
from .outgoing_messages import send_notice, wait_for_daemon
from .question_answers import (
    answer_with_text,
    handle_button,
    is_form_answer,
    reply_to_ask,
    send_answer,
)
from .slash_commands import (
    COMMAND_NAMES,
    IMMEDIATE_COMMANDS,
    ParsedCommand,
    SlashCommandHandler,
    parse_command,
    parse_guest,
)
from .slow_command import SlowCommand

# Seconds until a message is offered again to a turn that was not ready for it.
RETRY_INTERVAL = 0.25
NOTHING_RUNNING = "Nothing is going on."
INTERNAL_ERROR = "⚠️ Something is wrong in this program; its log has the details."
# Requests of an earlier release have no key: whether the daemon got them cannot be known.
UPGRADED_MEANWHILE = (
    "⚠️ This program was upgraded while it worked on your message. "
    "If you have no answer to it, send it again."
)

log = logging.getLogger(__name__)


class ChatQueue:
    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._commands = SlashCommandHandler(context)
        self._queue: deque[PendingUpdate] = deque()
        self._changed = asyncio.Event()
        self._current_item: PendingUpdate | None = None  # of the turn or command that runs
        self._task: asyncio.Future[None] | None = None
        self._turn: GatewayTurn | None = None
        self._slow_command: SlowCommand | None = None
        self._stop_targets: dict[str, PendingUpdate] = {}  # the item that each /stop is to stop
        self._should_retry_soon = False  # a running turn may accept a waiting update in a moment

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: PendingUpdate) -> None:
        self._queue.append(item)
        self._changed.set()

    async def run(self) -> None:
        """Run until no update is left. Cancelled, the journal has the updates that are."""
        try:
            while True:
                self._changed.clear()
                self._should_retry_soon = False
                self._collect_result()
                if not self._queue and self._task is None:
                    return
                if not await self._handle_next():
                    await self._wait_for_change()
        finally:
            await self._cancel_task()

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_INTERVAL if self._should_retry_soon else None):
                await self._changed.wait()

    def _start_task(self, item: PendingUpdate, job: GatewayTurn | SlowCommand) -> None:
        self._current_item = item
        self._turn = job if isinstance(job, GatewayTurn) else None
        self._slow_command = job if isinstance(job, SlowCommand) else None
        self._task = asyncio.ensure_future(job.run())
        self._task.add_done_callback(lambda _: self._changed.set())

    def _collect_result(self) -> None:
        """Clear the finished task, and handle its failure."""
        if self._task is None or not self._task.done():
            return
        error, item = self._task.exception(), self._current_item
        self._task = self._turn = self._slow_command = self._current_item = None
        if error is not None and item is not None:
            self._handle_failure(item, error)

    async def _cancel_task(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if (
            self._current_item is not None
            and self._current_item.id in self._context.journal.state.pending
        ):
            self._queue.appendleft(self._current_item)
        self._task = self._turn = self._slow_command = self._current_item = None

    def _handle_failure(self, item: PendingUpdate, error: BaseException) -> None:
        if isinstance(error, ChatBlockedError):
            log.info("a chat does not want us any more: %s", error)
            self._context.journal.append(UpdateHandled(item.id))
            return
        log.error("an update could not be answered", exc_info=error)
        if item.id not in self._context.journal.state.pending:
            return
        if item.text is None:
            self._context.journal.append(
                RequestNotSent(item.id),
                TextDelivered(item.id, 0),
                AnswerPrepared(item.id, INTERNAL_ERROR),
            )
            self._queue.appendleft(item)
        else:
            self._context.journal.append(UpdateHandled(item.id))

    async def _handle_next(self) -> bool:
        """Handle one update. False if none can be handled now."""
        for item in list(self._queue):
            if item is not self._queue[0] and not is_urgent(item):
                continue
            try:
                is_done = await self._handle_item(item)
            except Exception as error:
                self._queue.remove(item)
                self._handle_failure(item, error)
                return True
            if is_done:
                self._queue.remove(item)
                return True
        return False

    async def _handle_item(self, item: PendingUpdate) -> bool:
        """False if the item has to wait."""
        await self._announce_withdrawn_agent(item)
        if item.text is not None:
            return await send_answer(self._context, item, item.text)
        if item.ask is not None:
            return await self._resume_request(item, item.ask)
        if item.update.press:
            return await self._handle_button(item)
        command = parse_command(item.update.text)
        if command is not None and command.name == "stop":
            return await self._handle_stop(item)
        if command is not None and command.name in IMMEDIATE_COMMANDS:
            return await self._run_immediately(item, command)
        if self._task is None:
            return await self._handle_when_idle(item, command)
        if self._turn is not None and (
            command is None or is_answer_to_question(self._turn, command)
        ):
            return await self._handle_during_turn(self._turn, item)
        return False

    async def _announce_withdrawn_agent(self, item: PendingUpdate) -> None:
        """Tell the chat, once, that the agent it had chosen is not allowed any more."""
        agent = self._context.withdrawn_agent(item.update)
        if not agent:
            return
        await self._context.journal.append_and_flush(AgentChosen(item.update.chat.id, ""))
        answering = self._context.agent_for(item.update)
        text = AGENT_WITHDRAWN.format(name=agent, answering=answering)
        await send_notice(self._context, item.update.chat, text)

    # ── No turn runs ────────────────────────────────────────────────────────────────────────

    async def _handle_when_idle(self, item: PendingUpdate, command: ParsedCommand | None) -> bool:
        try:
            guest_call = await self._find_guest(item, command)
            if guest_call is not None and not self._commands.is_allowed(
                item.update, guest_call.name
            ):
                text = AGENT_NOT_ALLOWED.format(name=guest_call.name)
                return await send_answer(self._context, item, text)
            if guest_call is not None:
                self._start_turn(item, guest_call.arguments, guest_call.name)
            elif command is None or await self._is_skill(command):
                self._start_turn(item, item.update.text)
            else:
                self._start_task(item, SlowCommand(self._context, self._commands, item, command))
            return True
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            return await self._retry_when_available(item)

    async def _find_guest(
        self, item: PendingUpdate, command: ParsedCommand | None
    ) -> ParsedCommand | None:
        """The guest agent that is called, and its message; None if no such agent is called."""
        if command is not None and command.name == "guest":
            guest_call = parse_guest(f"@{command.arguments}")
        else:
            guest_call = parse_guest(item.update.text)
        return (
            guest_call
            if guest_call and await self._commands.agent_exists(guest_call.name)
            else None
        )

    async def _is_skill(self, command: ParsedCommand) -> bool:
        return command.name not in COMMAND_NAMES and await self._commands.skill_exists(command.name)

    def _start_turn(self, item: PendingUpdate, text: str, guest: str = "") -> None:
        self._start_task(item, GatewayTurn(self._context, item, text, guest, self._changed.set))

    async def _resume_request(self, item: PendingUpdate, ask: DaemonRequest) -> bool:
        """Continue a request that was cut off by a crash here or at the daemon. A request with a
        key is sent again: the daemon recognises it."""
        if not self._is_ready_for(ask):
            return False
        if ask.kind in ("turn", "steer") and not ask.key:
            self._context.journal.append(RequestNotSent(item.id))
            return await send_answer(self._context, item, UPGRADED_MEANWHILE)
        refused = [
            name
            for name in (ask.agent, ask.guest)
            if name and not self._commands.is_allowed(item.update, name)
        ]
        try:
            if refused and ask.kind == "turn":
                return await self._end_forbidden_turn(item, ask, refused[0])
            match ask.kind:
                case "turn":
                    self._start_turn(item, item.update.text)
                    return True
                case "compact":
                    self._start_task(
                        item,
                        SlowCommand(self._context, self._commands, item, ParsedCommand(ask.text)),
                    )
                    return True
                case "answer":  # the daemon counts an answer once, even if it is sent twice
                    await reply_to_ask(self._context, ask)
                    was_sent = True
                case "steer":
                    was_sent = await self._steer_run(ask)
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            if self._task is None:
                return await self._retry_when_available(item)
            self._should_retry_soon = True
            return False
        if was_sent:
            await self._context.journal.append_and_flush(UpdateHandled(item.id))
        else:
            self._context.journal.append(RequestNotSent(item.id))
            self._changed.set()
        return was_sent

    async def _end_forbidden_turn(self, item: PendingUpdate, ask: DaemonRequest, name: str) -> bool:
        """End a turn with an agent that this chat may not talk to any more."""
        try:
            await self._context.daemon.client.kill(ask.agent, sender=ask.sender)
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
        self._context.journal.append(RequestNotSent(item.id), TextDelivered(item.id, 0))
        return await send_answer(self._context, item, AGENT_NOT_ALLOWED.format(name=name))

    def _is_ready_for(self, ask: DaemonRequest) -> bool:
        """Whether the request can be sent now. Turns and compactions wait for the running task,
        steering waits for the turn to begin."""
        if ask.kind == "answer" or self._task is None:
            return True
        return ask.kind == "steer" and self._turn is not None and self._turn.has_begun

    async def _steer_run(self, ask: DaemonRequest) -> bool:
        """Steer the run. True also if that was done before; False if no run can take it."""
        try:
            await self._context.daemon.client.steer_session(
                ask.agent, ask.text, sender=ask.sender, key=ask.key
            )
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    async def _retry_when_available(self, item: PendingUpdate) -> bool:
        """Wait for the daemon; the item is tried again afterwards."""
        await wait_for_daemon(self._context, item.update.chat)
        self._changed.set()
        return False

    # ── While a turn runs ───────────────────────────────────────────────────────────────────

    async def _handle_button(self, item: PendingUpdate) -> bool:
        is_done = await handle_button(self._context, self._turn, item)
        self._should_retry_soon = self._should_retry_soon or not is_done
        return is_done

    async def _handle_during_turn(self, turn: GatewayTurn, item: PendingUpdate) -> bool:
        if turn.awaits_repeated_question:
            self._should_retry_soon = True
        if turn.awaits_repeated_question or not turn.has_begun:
            return False
        try:
            if await self._find_guest(item, None) is not None:
                return False
            if not is_form_answer(self._context, turn, item):
                return await self._steer_turn(turn, item)
            is_done = await answer_with_text(self._context, turn, item)
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            self._should_retry_soon = True  # the journal has the message: it is sent again
            return False
        if not is_done:  # the question is closed: this is an ordinary message
            self._changed.set()
        return is_done

    async def _steer_turn(self, turn: GatewayTurn, item: PendingUpdate) -> bool:
        turn_request = turn.item.ask
        assert turn_request is not None  # noqa: S101 - the turn has begun
        journal = self._context.journal
        text = await append_files(self._context, item.update, item.update.text, turn_request.sender)
        ask = DaemonRequest(
            kind="steer",
            agent=turn_request.agent,
            sender=turn_request.sender,
            text=text,
            key=self._context.message_key(item.update),
        )
        await journal.append_and_flush(RequestStarted(item.id, ask))
        if not await self._steer_run(ask):
            journal.append(RequestNotSent(item.id))
            self._should_retry_soon = True
            return False
        await journal.append_and_flush(UpdateHandled(item.id))
        return True

    # ── Commands that do not wait ───────────────────────────────────────────────────────────

    async def _handle_stop(self, item: PendingUpdate) -> bool:
        job, running = self._turn or self._slow_command, self._current_item
        target = self._stop_targets.setdefault(item.id, running) if running is not None else None
        if job is None or running is None:
            if item.id not in self._stop_targets:
                return await send_answer(self._context, item, NOTHING_RUNNING)
        elif running is target:
            job.stop()
            if await self._kill_needs_retry(job, running):
                self._should_retry_soon = True
                return False
        # Otherwise the work that /stop was meant for has ended, and what runs now came later.
        await self._context.journal.append_and_flush(UpdateHandled(item.id))
        self._stop_targets.pop(item.id, None)
        return True

    async def _kill_needs_retry(
        self, job: GatewayTurn | SlowCommand, running: PendingUpdate
    ) -> bool:
        """Have the daemon stop the run. True if the kill may have arrived before the run began."""
        try:
            await self._context.daemon.client.kill(
                job.agent, sender=self._context.sender_for(running.update)
            )
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            log.info("the daemon is away, and has stopped by that: %s", error)
            # A request that was not sent yet is sent when the daemon is back, and stopped then.
            return isinstance(job, GatewayTurn) and job.may_have_been_sent and not job.has_begun
        # The daemon does not report the start of a compaction, only its end.
        return isinstance(job, SlowCommand) or (job.may_have_been_sent and not job.has_begun)

    async def _run_immediately(self, item: PendingUpdate, command: ParsedCommand) -> bool:
        try:
            text = await self._commands.run(item, command)
        except ServerError as error:
            text = f"⚠️ {error.message}"
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            text = f"⚠️ {error}"
        return await send_answer(self._context, item, text)


def is_answer_to_question(turn: GatewayTurn, command: ParsedCommand) -> bool:
    """Whether the agent asks for words, such as a path: an unknown /command is then the answer."""
    form = turn.form
    return form is not None and not form.is_asking_approval and command.name not in COMMAND_NAMES


def is_urgent(item: PendingUpdate) -> bool:
    """Whether the item may overtake others: buttons and /stop."""
    if item.update.press:
        return True
    command = parse_command(item.update.text)
    return command is not None and command.name == "stop"
