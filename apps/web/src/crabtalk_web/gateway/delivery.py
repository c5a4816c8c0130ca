"""Delivery: what people say on their devices goes to the daemon, each of it once.

Before the daemon is told, the journal is; afterwards it is told again. Who is killed in between
asks the conversation itself whether it was said.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from crabtalk.client import Client, ServerError
from crabtalk_web.adapter import Ask

from .backoff import Backoff
from .entries import Handed, Inbound, Said, Trying
from .errors import AWAY
from .journal import Journal
from .mirror import Mirror

log = logging.getLogger(__name__)

Fetch = Callable[[Inbound], Awaitable[list[Path]]]

QUEUED = "**Queued:** the agent is at work; this is next."
QUEUED_BEHIND_APPROVAL = "**Queued:** a call waits for your answer above; this is next."
# Between two looks at a daemon that is at work.
LOOK_EVERY = 0.2


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
        # A try that was cut off, by a crash or by the daemon's: what became of it is to be seen.
        self._is_unsure = journal.book.trying is not None

    def follow(self, client: Client | None) -> None:
        self._client = client
        self._is_unsure = self._journal.book.trying is not None
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
                self._is_unsure = book.trying is not None
                await backoff.wait()

    async def _look_again(self) -> None:
        try:
            async with asyncio.timeout(LOOK_EVERY):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _deliver(self, client: Client, inbound: Inbound) -> bool:
        """False when it has to wait. Raises what the client raises."""
        if self._is_unsure:
            return await self._settle(client)
        if self._mirror.is_behind or not await self._has_begun(client):
            return False
        # Words answer questions. A call is allowed or denied by the buttons of its approval alone.
        asks = [ask for ask in self._mirror.asks if not ask.is_approval]
        ask = asks[0] if asks and not inbound.files else None
        steers = self._mirror.is_busy and self._steers and not inbound.guest
        if self._mirror.is_busy and ask is None and not steers:
            self._say_it_waits(inbound)
            return False
        text = await self._text(inbound)
        if ask is not None:
            return await self._reply(client, ask, text)
        await self._try(Trying(text))
        if steers and await self._steered(client, text):
            await self._handed()
            return True
        await self._begin(client, inbound, text)
        return True

    async def _has_begun(self, client: Client) -> bool:
        """Whether the daemon has come to what it was handed last: one thing at a time."""
        book = self._journal.book
        if book.unseen and (await client.get_stats()).runs == 0 and not self._mirror.is_behind:
            for text in list(book.unseen):  # it never will
                self._journal.note(Said(run=book.run, seen=text))
        return not book.unseen

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
        if trying.text not in self._journal.book.unseen:
            self._mirror.teller.know(trying.text)
        self._journal.note(trying)
        await self._journal.flush()

    async def _handed(self, *, is_refused: bool = False) -> None:
        self._journal.note(Handed(is_refused))
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
        )
        try:
            async with aclosing(stream) as events:
                await anext(events)
        except ServerError as error:
            if error.code == 503:  # not said, then: the next try is as good as the first
                self._journal.note(Handed(is_refused=True, is_kept=True))
                raise
            await self._refused(error)
            return
        await self._handed()

    async def _refused(self, error: ServerError) -> None:
        await self._handed(is_refused=True)
        self._mirror.teller.say(f"**Error:** {error.message}")

    async def _steered(self, client: Client, text: str) -> bool:
        identity = self._mirror.identity
        try:
            await client.steer_session(identity.agent, text, sender=identity.sender)
        except ServerError as error:
            if error.code == 404:  # it has just ended
                return False
            raise
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

    async def _settle(self, client: Client) -> bool:
        """What became of a try that was cut off: if it was said, the conversation has it."""
        book = self._journal.book
        trying = book.trying
        if trying is None:
            self._is_unsure = False
            return True
        if self._mirror.is_behind:
            return False
        if trying.ask:
            ask = next((ask for ask in self._mirror.asks if ask.id == trying.ask), None)
            if ask is not None:
                await reply(client, ask, trying.text)
                self._mirror.teller.answered(ask.id)
        elif trying.text in book.unseen:
            if (await client.get_stats()).runs:
                return False  # it may be waiting there for its turn
            if self._mirror.is_busy:
                return False
            if trying.text in book.unseen:
                await self._begin(client, book.waiting[0], trying.text)
                self._is_unsure = False
                return True
        await self._handed()
        self._is_unsure = False
        return True


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
        if error.code == 404:
            return False
        raise
    return True
