"""Lane: the updates of one chat, one after another in the order they came.

While a turn runs, what comes in goes into it: an answer to its question, a word to steer it by, or
/stop, which waits for nobody. What cannot go into a turn waits for its end.
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

# Seconds until something is said again into a turn that was not ready for it.
RETRY_INTERVAL = 0.25
NOTHING_RUNNING = "Nothing is going on."
INTERNAL_ERROR = "⚠️ Something is wrong in this program; its log has the details."
# What an earlier release was about to say had no key: whether it was said cannot be known.
UPGRADED_MEANWHILE = (
    "⚠️ This program was upgraded while it worked on your message. "
    "If you have no answer to it, send it again."
)

log = logging.getLogger(__name__)


class ChatQueue:
    def __init__(self, desk: GatewayContext) -> None:
        self._context = desk
        self._commands = SlashCommandHandler(desk)
        self._queue: deque[PendingUpdate] = deque()
        self._changed = asyncio.Event()
        self._current_item: PendingUpdate | None = None  # that of what runs: a turn or an errand
        self._task: asyncio.Future[None] | None = None
        self._turn: GatewayTurn | None = None
        self._slow_command: SlowCommand | None = None
        self._stop_targets: dict[str, PendingUpdate] = {}  # by the /stop: what it is to stop
        self._should_retry_soon = False  # something was refused that the turn may take in a moment

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: PendingUpdate) -> None:
        self._queue.append(item)
        self._changed.set()

    async def run(self) -> None:
        """Until nothing is left to do. Cancelled, the journal knows what is."""
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

    def _start_task(self, item: PendingUpdate, what: GatewayTurn | SlowCommand) -> None:
        self._current_item = item
        self._turn = what if isinstance(what, GatewayTurn) else None
        self._slow_command = what if isinstance(what, SlowCommand) else None
        self._task = asyncio.ensure_future(what.run())
        self._task.add_done_callback(lambda _: self._changed.set())

    def _collect_result(self) -> None:
        """Whether what runs is over."""
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
        """One update, if one can be dealt with now."""
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
        """False for what has to wait."""
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
        """Says once that the agent this chat had chosen is not allowed here any more."""
        agent = self._context.withdrawn_agent(item.update)
        if not agent:
            return
        await self._context.journal.append_and_flush(AgentChosen(item.update.chat.id, ""))
        answering = self._context.agent_for(item.update)
        text = AGENT_WITHDRAWN.format(name=agent, answering=answering)
        await send_notice(self._context, item.update.chat, text)

    # ── Nothing is going on ─────────────────────────────────────────────────────────────────

    async def _handle_when_idle(self, item: PendingUpdate, command: ParsedCommand | None) -> bool:
        try:
            called = await self._find_guest(item, command)
            if called is not None and not self._commands.is_allowed(item.update, called.name):
                text = AGENT_NOT_ALLOWED.format(name=called.name)
                return await send_answer(self._context, item, text)
            if called is not None:
                self._start_turn(item, called.arguments, called.name)
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
        """Who is to speak, and about what."""
        if command is not None and command.name == "guest":
            called = parse_guest(f"@{command.arguments}")
        else:
            called = parse_guest(item.update.text)
        return called if called and await self._commands.agent_exists(called.name) else None

    async def _is_skill(self, command: ParsedCommand) -> bool:
        return command.name not in COMMAND_NAMES and await self._commands.skill_exists(command.name)

    def _start_turn(self, item: PendingUpdate, text: str, guest: str = "") -> None:
        self._start_task(item, GatewayTurn(self._context, item, text, guest, self._changed.set))

    async def _resume_request(self, item: PendingUpdate, ask: DaemonRequest) -> bool:
        """Goes on with what a crash, or the daemon's, cut off. What has a key is said again: the
        daemon knows it."""
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
                case "answer":  # which counts once, however often it is given
                    await reply_to_ask(self._context, ask)
                    was_said = True
                case "steer":
                    was_said = await self._steer_run(ask)
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            if self._task is None:
                return await self._retry_when_available(item)
            self._should_retry_soon = True
            return False
        if was_said:
            await self._context.journal.append_and_flush(UpdateHandled(item.id))
        else:
            self._context.journal.append(RequestNotSent(item.id))
            self._changed.set()
        return was_said

    async def _end_forbidden_turn(self, item: PendingUpdate, ask: DaemonRequest, name: str) -> bool:
        """Ends a turn with an agent that this chat may not talk to any more."""
        try:
            await self._context.daemon.client.kill(ask.agent, sender=ask.sender)
        except ServerError as error:
            if error.code != NOT_FOUND:
                raise
        self._context.journal.append(RequestNotSent(item.id), TextDelivered(item.id, 0))
        return await send_answer(self._context, item, AGENT_NOT_ALLOWED.format(name=name))

    def _is_ready_for(self, ask: DaemonRequest) -> bool:
        """Turns and compactions wait for what runs, a steering message for the turn to be back."""
        if ask.kind == "answer" or self._task is None:
            return True
        return ask.kind == "steer" and self._turn is not None and self._turn.has_begun

    async def _steer_run(self, ask: DaemonRequest) -> bool:
        """Steers. True also when that was done before; False when nothing runs that takes it."""
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
        """When the daemon is back."""
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
            self._should_retry_soon = True  # what was about to be said is said again, with its key
            return False
        if not is_done:  # nobody asks any more: these are words like any others
            self._changed.set()
        return is_done

    async def _steer_turn(self, turn: GatewayTurn, item: PendingUpdate) -> bool:
        asked = turn.item.ask
        assert asked is not None  # noqa: S101 - the turn is said
        journal = self._context.journal
        text = await append_files(self._context, item.update, item.update.text, asked.sender)
        ask = DaemonRequest(
            kind="steer",
            agent=asked.agent,
            sender=asked.sender,
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

    # ── Commands that wait for nobody ───────────────────────────────────────────────────────

    async def _handle_stop(self, item: PendingUpdate) -> bool:
        what, running = self._turn or self._slow_command, self._current_item
        meant = self._stop_targets.setdefault(item.id, running) if running is not None else None
        if what is None or running is None:
            if item.id not in self._stop_targets:
                return await send_answer(self._context, item, NOTHING_RUNNING)
        elif running is meant:
            what.stop()
            if await self._kill_needs_retry(what, running):
                self._should_retry_soon = True
                return False
        # Else what it was to stop is over, and what runs now came later.
        await self._context.journal.append_and_flush(UpdateHandled(item.id))
        self._stop_targets.pop(item.id, None)
        return True

    async def _kill_needs_retry(
        self, what: GatewayTurn | SlowCommand, running: PendingUpdate
    ) -> bool:
        """Has the daemon stop it. True where that may have come before what it is to stop."""
        try:
            await self._context.daemon.client.kill(
                what.agent, sender=self._context.sender_for(running.update)
            )
        except Exception as error:
            if not is_daemon_unavailable(error):
                raise
            log.info("the daemon is away, and has stopped by that: %s", error)
            # Unless it was not told yet: then it is when it is back, and stopped then.
            return isinstance(what, GatewayTurn) and what.may_have_been_sent and not what.has_begun
        # Of an errand nobody says when it has begun: only that it is over.
        return isinstance(what, SlowCommand) or (what.may_have_been_sent and not what.has_begun)

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
    """Where an agent asks for a path, say: what is no command of ours is what it waits for."""
    form = turn.form
    return form is not None and not form.is_asking_approval and command.name not in COMMAND_NAMES


def is_urgent(item: PendingUpdate) -> bool:
    """What does not wait behind others."""
    if item.update.press:
        return True
    command = parse_command(item.update.text)
    return command is not None and command.name == "stop"
