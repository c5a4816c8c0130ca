"""Polling: updates by asking for them. What is in the journal is confirmed as the next are asked
for."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import telegram
from telegram.error import TelegramError

from crabtalk.component.gateway import Backoff, Refused, TryLater

from .line import Asking
from .refusals import TOKEN_REFUSED, is_token, meaning

KINDS = ("message", "callback_query")
# Seconds that Telegram may take to say that there is nothing, and that it has beyond that.
WAIT, GRACE = 30, 10.0

T = TypeVar("T")
log = logging.getLogger(__name__)


class Polling:
    """`asking` is the line on which the bot asks for updates."""

    port = 0  # nobody comes here

    def __init__(self, bot: telegram.Bot, asking: Asking, *, wait: int = WAIT) -> None:
        self._bot = bot
        self._asking = asking
        self._wait = wait
        self._open: set[int] = set()  # given, and not in the journal yet
        self._settled = asyncio.Event()

    def taken(self, number: int) -> None:
        self._open.discard(number)
        if not self._open:
            self._settled.set()

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        await patiently(self._bot.delete_webhook)
        offset: int | None = None
        odd = Backoff()
        while True:
            came = await patiently(lambda confirmed=offset: self._ask(confirmed))  # type: ignore[misc]
            # Their numbers say in which order they happened.
            batch = sorted(filter(is_numbered, came), key=number_of)
            self._open = set(map(number_of, batch))
            for update in batch:
                yield update
            while self._open:
                self._settled.clear()
                await self._settled.wait()
            if came and not batch:  # nor can it be confirmed: it would come again at once
                log.error("what Telegram gives has no number, and is left out")
                await odd.wait()
            # Said once, and then not any more: ids that begin anew, as they do after a quiet week,
            # may be below what was confirmed before it.
            offset = max(map(number_of, batch)) + 1 if batch else None

    async def _ask(self, confirmed: int | None) -> tuple[dict[str, Any], ...]:
        await self._bot.get_updates(
            offset=confirmed, timeout=self._wait, allowed_updates=KINDS, read_timeout=GRACE
        )
        return self._asking.found


def is_numbered(update: object) -> bool:
    """Whether it is an update at all: that much of it can be told apart, and confirmed."""
    return isinstance(update, dict) and type(update.get("update_id")) is int


def number_of(update: dict[str, Any]) -> int:
    number: int = update["update_id"]
    return number


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
