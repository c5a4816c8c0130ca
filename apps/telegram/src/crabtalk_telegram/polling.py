"""Polling: updates by asking for them. What is in the journal is confirmed as the next are asked
for."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import telegram
from telegram.error import TelegramError

from crabtalk.component.gateway import Backoff, Refused, TryLater

from .line import BAD_GATEWAY, RefusalError
from .refusals import TOKEN_REFUSED, is_token, meaning

KINDS = ("message", "callback_query")
# Seconds that Telegram may take to say that there is nothing, and that it has beyond that.
WAIT, GRACE = 30, 10.0

T = TypeVar("T")
log = logging.getLogger(__name__)


class Polling:
    port = 0  # nobody comes here

    def __init__(self, bot: telegram.Bot, *, wait: int = WAIT) -> None:
        self._bot = bot
        self._wait = wait
        self._open: set[int] = set()  # given, and not in the journal yet
        self._settled = asyncio.Event()

    def taken(self, number: int) -> None:
        self._open.discard(number)
        if not self._open:
            self._settled.set()

    async def updates(self) -> AsyncGenerator[telegram.Update, None]:
        await patiently(self._bot.delete_webhook)
        offset: int | None = None
        while True:
            batch = await patiently(lambda confirmed=offset: self._ask(confirmed))  # type: ignore[misc]
            self._open = {update.update_id for update in batch}
            for update in batch:
                yield update
            while self._open:
                self._settled.clear()
                await self._settled.wait()
            # Said once, and then not any more: ids that begin anew, as they do after a quiet week,
            # may be below what was confirmed before it.
            offset = max(update.update_id for update in batch) + 1 if batch else None

    async def _ask(self, confirmed: int | None) -> tuple[telegram.Update, ...]:
        try:
            return await self._bot.get_updates(
                offset=confirmed, timeout=self._wait, allowed_updates=KINDS, read_timeout=GRACE
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # Of what the library cannot read; those who were heard before it are still answered.
            raise RefusalError(BAD_GATEWAY, f"updates cannot be read: {error!r}", 0.0, "") from None


async def patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Does what has to be done before anything else can be, however often it takes.

    Raises Refused when it is no use to try again.
    """
    backoff = Backoff()
    while True:
        try:
            return await work()
        except TelegramError as error:
            if is_token(error):
                raise Refused(TOKEN_REFUSED) from None
            meant = meaning(error)
        if isinstance(meant, Refused):
            raise meant
        log.warning("Telegram does not answer: %s", meant)
        await backoff.wait(meant.seconds if isinstance(meant, TryLater) else 0.0)
