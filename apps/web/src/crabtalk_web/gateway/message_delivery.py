"""Delivers messages of devices to the daemon, each one once.

Each message has a key, and the daemon runs each key once. So after a crash or a lost connection a
message whose outcome is unknown can be sent again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk_web.adapter import OpenAsk

from .backoff import RetryBackoff
from .conversation_journal import ConversationJournal
from .errors import DAEMON_AWAY_ERRORS
from .inbox import build_key_prefix
from .journal_entries import DeliveryAttempt, DeliveryFinished, EnvelopesWritten, InboundMessage
from .log_follower import LogFollower

log = logging.getLogger(__name__)

FetchFiles = Callable[[InboundMessage], Awaitable[list[Path]]]

QUEUED = "**Queued:** the agent is at work; this is next."
QUEUED_BEHIND_APPROVAL = "**Queued:** a call waits for your answer above; this is next."
OUTCOME_UNKNOWN = (
    "**Error:** it is not known whether the agent got a message that was on its way when the"
    " gateway was upgraded; look above, and say it again if it is not there."
)
# In seconds: how often it is checked whether a message can be delivered, and whether the daemon
# still has a run that is not in the log yet.
RETRY_EVERY = 0.2
ASK_EVERY = 2.0
NOT_FOUND, CONFLICT, UNAVAILABLE = 404, 409, 503


class MessageDelivery:
    """The delivery for one conversation. `fetch` downloads the files of a message."""

    def __init__(
        self,
        follower: LogFollower,
        journal: ConversationJournal,
        fetch: FetchFiles,
        *,
        cwd: Path,
        steers: bool,
    ) -> None:
        self._follower = follower
        self._journal = journal
        self._fetch_files = fetch
        self._cwd = cwd
        self._steers = steers
        self._wakeup = asyncio.Event()
        self._client: Client | None = None
        self._announced_seq = -1  # the message that was announced as queued
        self._asked_at = 0.0  # when the daemon was last asked for a run that is not in the log yet

    def set_client(self, client: Client | None) -> None:
        self._client = client
        self.wake()

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Run until cancelled. An attempt in progress is then in the journal."""
        backoff = RetryBackoff()
        while True:
            self._wakeup.clear()
            state = self._journal.state
            if not state.inbound or self._client is None:
                await self._wakeup.wait()
                continue
            try:
                if await self._deliver(self._client, state.inbound[0]):
                    backoff.reset()
                else:
                    await self._wait_briefly()
            except DAEMON_AWAY_ERRORS as error:
                log.info("the daemon did not take a message: %s", error)
                await backoff.wait()

    async def _wait_briefly(self) -> None:
        try:
            async with asyncio.timeout(RETRY_EVERY):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    async def _deliver(self, client: Client, inbound: InboundMessage) -> bool:
        """Return False if the message has to wait. Raises what the client raises."""
        if self._follower.is_behind:
            return False
        if (attempt := self._journal.state.attempt) is not None:
            await self._retry(client, inbound, attempt)
            return True
        if not await self._is_previous_logged(client):
            return False
        # Text answers questions. Only the buttons of an approval allow or deny a call.
        asks = [ask for ask in self._follower.pending_asks if not ask.is_approval]
        ask = asks[0] if asks and not inbound.files else None
        steers = self._follower.is_busy and self._may_steer(inbound)
        if self._follower.is_busy and ask is None and not steers:
            self._announce_queued(inbound)
            return False
        text = await self._build_text(inbound)
        if ask is not None:
            return await self._answer_ask(client, ask, text)
        await self._save_attempt(DeliveryAttempt(text, key=self._message_key(inbound)))
        if not (steers and await self._try_steering(client, text, self._message_key(inbound))):
            await self._begin_turn(client, inbound, text)
        return True

    def _may_steer(self, inbound: InboundMessage) -> bool:
        return self._steers and not inbound.guest

    def _message_key(self, inbound: InboundMessage) -> str:
        """Journals of earlier versions have no keys."""
        return inbound.key or f"{build_key_prefix(self._journal.state.session)}{inbound.seq}"

    async def _is_previous_logged(self, client: Client) -> bool:
        """Return whether the log has the last delivered message: they go one at a time. If the
        daemon has lost it, for example because the conversation was cleared, it is not waited
        for."""
        pending = self._journal.state.pending_keys
        if not pending:
            return True
        now = asyncio.get_running_loop().time()
        if self._follower.is_busy or now - self._asked_at < ASK_EVERY:
            return False
        self._asked_at = now
        self._follower.request_read()
        for key in list(pending):
            if not await self._is_running(client, key) and key in pending:
                self._journal.append(EnvelopesWritten(run=self._journal.state.open_run, seen=key))
        return not pending

    async def _is_running(self, client: Client, key: str) -> bool:
        """Return whether the daemon has an unfinished run with this key."""
        identity = self._follower.identity
        stream = client.attach(identity.agent, sender=identity.sender, key=key)
        try:
            async with aclosing(stream) as events:
                _, event = await anext(events)
        except ServerError as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return not is_stored(event)

    def _announce_queued(self, inbound: InboundMessage) -> None:
        if self._announced_seq < inbound.seq and self._follower.is_turn_open:
            self._announced_seq = inbound.seq
            is_asking = any(ask.is_approval for ask in self._follower.pending_asks)
            self._follower.writer.write_notice(QUEUED_BEHIND_APPROVAL if is_asking else QUEUED)

    async def _build_text(self, inbound: InboundMessage) -> str:
        """Return the text with a list of the local file paths."""
        paths = await self._fetch_files(inbound) if inbound.files else []
        file_list = "\n".join(f"- {path}" for path in paths)
        body_text = inbound.text if inbound.text.strip() else "See these files."
        return f"{body_text}\n\nFiles:\n{file_list}" if file_list else inbound.text

    async def _save_attempt(self, attempt: DeliveryAttempt) -> None:
        self._journal.append(attempt)
        await self._journal.flush()

    async def _retry(
        self, client: Client, inbound: InboundMessage, attempt: DeliveryAttempt
    ) -> None:
        """Repeat an attempt that a crash of the gateway or the daemon interrupted. It uses the same
        text, because the paths of the files may have changed."""
        if attempt.ask:
            ask = next((ask for ask in self._follower.pending_asks if ask.id == attempt.ask), None)
            if ask is not None:
                await reply_to_ask(client, ask, attempt.text)
                self._follower.writer.close_ask(ask.id)
            await self._finish_attempt()
        elif not attempt.key:
            await self._finish_attempt(is_refused=True)
            self._follower.writer.write_notice(OUTCOME_UNKNOWN)
        elif attempt.key not in self._journal.state.pending_keys:
            await self._finish_attempt()  # it is in the log
        elif not (
            self._may_steer(inbound) and await self._try_steering(client, attempt.text, attempt.key)
        ):
            await self._begin_turn(client, inbound, attempt.text)

    async def _finish_attempt(self, *, is_refused: bool = False, is_in_log: bool = False) -> None:
        attempt = self._journal.state.attempt
        self._journal.append(DeliveryFinished(is_refused))
        if is_in_log and attempt is not None:
            self._journal.append(
                EnvelopesWritten(run=self._journal.state.open_run, seen=attempt.key)
            )
        await self._journal.flush()

    async def _begin_turn(self, client: Client, inbound: InboundMessage, text: str) -> None:
        """Start a detached turn, which continues without this process. Its events come from the
        feed."""
        stream = client.stream(
            self._follower.identity.agent,
            text,
            sender=self._follower.identity.sender,
            guest=inbound.guest or None,
            cwd=str(self._cwd) if self._cwd.is_dir() else None,
            detach=True,
            key=self._message_key(inbound),
        )
        try:
            async with aclosing(stream) as events:
                is_over = is_stored(await anext(events))
        except ServerError as error:
            if error.code == UNAVAILABLE:  # the next attempt can be the same
                raise
            if error.code != CONFLICT:
                await self._report_refusal(error)
                return
            is_over = True  # it was delivered before, with other file paths
        await self._finish_attempt(is_in_log=is_over)

    async def _report_refusal(self, error: ServerError) -> None:
        await self._finish_attempt(is_refused=True)
        self._follower.writer.write_notice(f"**Error:** {error.message}")

    async def _try_steering(self, client: Client, text: str, key: str) -> bool:
        """Return False if no turn is open."""
        identity = self._follower.identity
        try:
            await client.steer_session(identity.agent, text, sender=identity.sender, key=key)
        except ServerError as error:
            if error.code == NOT_FOUND:  # it has just ended
                return False
            raise
        await self._finish_attempt()
        return True

    async def _answer_ask(self, client: Client, ask: OpenAsk, text: str) -> bool:
        """Answer a question with plain text."""
        self._journal.append(DeliveryAttempt(text, ask.id))
        await self._journal.flush()
        is_first = await reply_to_ask(client, ask, text)
        self._follower.writer.close_ask(ask.id)
        if is_first:
            await self._finish_attempt()
        else:  # another client has answered, so this text becomes a normal message
            self._journal.append(DeliveryFinished(is_refused=True, is_kept=True))
        return True


def is_stored(event: Event) -> bool:
    """Return whether a stream is of a run that is over."""
    return isinstance(event, wire.StreamStart) and event.stored


async def reply_to_ask(client: Client, ask: OpenAsk, text: str) -> bool:
    """Return False if another client answered first, or the question is gone."""
    try:
        await client.reply_to_ask(
            ask.agent,
            text,
            sender=ask.sender,
            ask_id=ask.id,
            as_owner=True if ask.is_for_owner else None,
        )
    except ServerError as error:
        if error.code == NOT_FOUND:
            return False
        raise
    return True
