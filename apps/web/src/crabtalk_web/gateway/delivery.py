"""Delivery: what people say on their devices goes to the daemon, each of it once.

Each message has a key, which the daemon runs once: whoever was killed, or lost the connection,
before it knew what became of a message sends it again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk_web.adapter import Ask

from .backoff import Backoff
from .entries import Handed, Inbound, Said, Trying
from .errors import AWAY
from .inbox import key_prefix
from .journal import Journal
from .mirror import Mirror

log = logging.getLogger(__name__)

Fetch = Callable[[Inbound], Awaitable[list[Path]]]

QUEUED = "**Queued:** the agent is at work; this is next."
QUEUED_BEHIND_APPROVAL = "**Queued:** a call waits for your answer above; this is next."
NOT_KNOWN = (
    "**Error:** it is not known whether the agent got a message that was on its way when the"
    " gateway was upgraded; look above, and say it again if it is not there."
)
# Seconds: between two looks whether a message can go now, and whether the daemon still has one that
# is not in the log yet.
LOOK_EVERY = 0.2
ASK_EVERY = 2.0
NOT_FOUND, CONFLICT, UNAVAILABLE = 404, 409, 503


class Delivery:
    """Of one conversation. `fetch` brings the files of a message."""

    def __init__(
        self,
        mirror: Mirror,
        journal: Journal,
        fetch: Fetch,
        *,
        cwd: Path,
        steers: bool,
    ) -> None:
        self._mirror = mirror
        self._journal = journal
        self._fetch = fetch
        self._cwd = cwd
        self._steers = steers
        self._news = asyncio.Event()
        self._client: Client | None = None
        self._noted = -1  # the message of which it was said that it waits
        self._asked_at = 0.0  # when the daemon was asked for what the log does not have yet

    def follow(self, client: Client | None) -> None:
        self._client = client
        self.wake()

    def wake(self) -> None:
        self._news.set()

    async def work(self) -> None:
        """Until cancelled. What was begun is then in the journal."""
        backoff = Backoff()
        while True:
            self._news.clear()
            book = self._journal.book
            if not book.waiting or self._client is None:
                await self._news.wait()
                continue
            try:
                if await self._deliver(self._client, book.waiting[0]):
                    backoff.reset()
                else:
                    await self._look_again()
            except AWAY as error:
                log.info("the daemon did not take a message: %s", error)
                await backoff.wait()

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _deliver(self, client: Client, inbound: Inbound) -> bool:
        """False when it has to wait. Raises what the client raises."""
        if self._mirror.is_behind:
            return False
        if (trying := self._journal.book.trying) is not None:
            await self._try_again(client, inbound, trying)
            return True
        if not await self._has_begun(client):
            return False
        # Words answer questions. A call is allowed or denied by the buttons of its approval alone.
        asks = [ask for ask in self._mirror.asks if not ask.is_approval]
        ask = asks[0] if asks and not inbound.files else None
        steers = self._mirror.is_busy and self._may_steer(inbound)
        if self._mirror.is_busy and ask is None and not steers:
            self._say_it_waits(inbound)
            return False
        text = await self._text(inbound)
        if ask is not None:
            return await self._reply(client, ask, text)
        await self._try(Trying(text, key=self._key_of(inbound)))
        if not (steers and await self._steered(client, text, self._key_of(inbound))):
            await self._begin(client, inbound, text)
        return True

    def _may_steer(self, inbound: Inbound) -> bool:
        return self._steers and not inbound.guest

    def _key_of(self, inbound: Inbound) -> str:
        """Journals of earlier versions have none."""
        return inbound.key or f"{key_prefix(self._journal.book.session)}{inbound.seq}"

    async def _has_begun(self, client: Client) -> bool:
        """Whether the log has what the daemon was given last: one thing at a time. What it does
        not have any more, such as a turn of a conversation that was cleared, is not waited for."""
        pending = self._journal.book.pending
        if not pending:
            return True
        now = asyncio.get_running_loop().time()
        if self._mirror.is_busy or now - self._asked_at < ASK_EVERY:
            return False
        self._asked_at = now
        self._mirror.read_again()
        for key in list(pending):
            if not await self._is_coming(client, key) and key in pending:
                self._journal.note(Said(run=self._journal.book.run, seen=key))
        return not pending

    async def _is_coming(self, client: Client, key: str) -> bool:
        """Whether the daemon has a run with this key that is not over."""
        identity = self._mirror.identity
        stream = client.attach(identity.agent, sender=identity.sender, key=key)
        try:
            async with aclosing(stream) as events:
                _, event = await anext(events)
        except ServerError as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return not is_stored(event)

    def _say_it_waits(self, inbound: Inbound) -> None:
        if self._noted < inbound.seq and self._mirror.is_thinking:
            self._noted = inbound.seq
            is_asking = any(ask.is_approval for ask in self._mirror.asks)
            self._mirror.teller.say(QUEUED_BEHIND_APPROVAL if is_asking else QUEUED)

    async def _text(self, inbound: Inbound) -> str:
        """With a list of the files, where they are now."""
        paths = await self._fetch(inbound) if inbound.files else []
        listed = "\n".join(f"- {path}" for path in paths)
        said = inbound.text if inbound.text.strip() else "See these files."
        return f"{said}\n\nFiles:\n{listed}" if listed else inbound.text

    async def _try(self, trying: Trying) -> None:
        self._journal.note(trying)
        await self._journal.flush()

    async def _try_again(self, client: Client, inbound: Inbound, trying: Trying) -> None:
        """A try that was cut off, by a crash of ours or of the daemon. In the words it was said in:
        where its files are may have changed."""
        if trying.ask:
            ask = next((ask for ask in self._mirror.asks if ask.id == trying.ask), None)
            if ask is not None:
                await reply(client, ask, trying.text)
                self._mirror.teller.answered(ask.id)
            await self._handed()
        elif not trying.key:
            await self._handed(is_refused=True)
            self._mirror.teller.say(NOT_KNOWN)
        elif trying.key not in self._journal.book.pending:
            await self._handed()  # the log has it
        elif not (
            self._may_steer(inbound) and await self._steered(client, trying.text, trying.key)
        ):
            await self._begin(client, inbound, trying.text)

    async def _handed(self, *, is_refused: bool = False, is_in_log: bool = False) -> None:
        trying = self._journal.book.trying
        self._journal.note(Handed(is_refused))
        if is_in_log and trying is not None:
            self._journal.note(Said(run=self._journal.book.run, seen=trying.key))
        await self._journal.flush()

    async def _begin(self, client: Client, inbound: Inbound, text: str) -> None:
        """A turn of its own, which goes on without us. Its events come by the feed."""
        stream = client.stream(
            self._mirror.identity.agent,
            text,
            sender=self._mirror.identity.sender,
            guest=inbound.guest or None,
            cwd=str(self._cwd) if self._cwd.is_dir() else None,
            detach=True,
            key=self._key_of(inbound),
        )
        try:
            async with aclosing(stream) as events:
                is_over = is_stored(await anext(events))
        except ServerError as error:
            if error.code == UNAVAILABLE:  # the next try is as good as the first
                raise
            if error.code != CONFLICT:
                await self._refused(error)
                return
            is_over = True  # it was said already, when its files were somewhere else
        await self._handed(is_in_log=is_over)

    async def _refused(self, error: ServerError) -> None:
        await self._handed(is_refused=True)
        self._mirror.teller.say(f"**Error:** {error.message}")

    async def _steered(self, client: Client, text: str, key: str) -> bool:
        """False when there is no turn to say it into."""
        identity = self._mirror.identity
        try:
            await client.steer_session(identity.agent, text, sender=identity.sender, key=key)
        except ServerError as error:
            if error.code == NOT_FOUND:  # it has just ended
                return False
            raise
        await self._handed()
        return True

    async def _reply(self, client: Client, ask: Ask, text: str) -> bool:
        """Plain words, in answer to a question."""
        self._journal.note(Trying(text, ask.id))
        await self._journal.flush()
        is_first = await reply(client, ask, text)
        self._mirror.teller.answered(ask.id)
        if is_first:
            await self._handed()
        else:  # somebody else has answered, so these are words like any others
            self._journal.note(Handed(is_refused=True, is_kept=True))
        return True


def is_stored(event: Event) -> bool:
    """Whether a stream tells of a run that is over."""
    return isinstance(event, wire.StreamStart) and event.stored


async def reply(client: Client, ask: Ask, text: str) -> bool:
    """False when somebody else was first, or nobody asks any more."""
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
