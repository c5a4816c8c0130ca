"""Polling: updates by asking for them. What is in the journal is confirmed as the next are asked
for."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar

import telegram
from telegram.error import TelegramError

from crabtalk.gateway import Backoff, RejectedError, RetryLaterError

from .bot_requests import UpdatesRequest
from .error_mapping import TOKEN_REFUSED, is_token_error, to_service_error

UPDATE_KINDS = ("message", "callback_query")
# Seconds that Telegram may take to say that there is nothing, and that it has beyond that.
POLL_SECONDS, READ_TIMEOUT = 30, 10.0

T = TypeVar("T")
log = logging.getLogger(__name__)


class TelegramPolling:
    """`asking` is the line on which the bot asks for updates."""

    port = 0  # nobody comes here

    def __init__(
        self, bot: telegram.Bot, asking: UpdatesRequest, *, wait: int = POLL_SECONDS
    ) -> None:
        self._bot = bot
        self._request = asking
        self._poll_seconds = wait
        self._unacknowledged: set[int] = set()  # given, and not in the journal yet
        self._all_acknowledged = asyncio.Event()

    def acknowledge(self, number: int) -> None:
        self._unacknowledged.discard(number)
        if not self._unacknowledged:
            self._all_acknowledged.set()

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        await retry_until_done(self._bot.delete_webhook)
        offset: int | None = None
        odd = Backoff()
        while True:
            came = await retry_until_done(lambda confirmed=offset: self._fetch_updates(confirmed))  # type: ignore[misc]
            # Their numbers say in which order they happened.
            batch = sorted(filter(is_numbered, came), key=get_update_number)
            self._unacknowledged = set(map(get_update_number, batch))
            for update in batch:
                yield update
            while self._unacknowledged:
                self._all_acknowledged.clear()
                await self._all_acknowledged.wait()
            if came and not batch:  # nor can it be confirmed: it would come again at once
                log.error("what Telegram gives has no number, and is left out")
                await odd.wait()
            # Said once, and then not any more: ids that begin anew, as they do after a quiet week,
            # may be below what was confirmed before it.
            offset = max(map(get_update_number, batch)) + 1 if batch else None

    async def _fetch_updates(self, confirmed: int | None) -> tuple[dict[str, Any], ...]:
        await self._bot.get_updates(
            offset=confirmed,
            timeout=self._poll_seconds,
            allowed_updates=UPDATE_KINDS,
            read_timeout=READ_TIMEOUT,
        )
        return self._request.updates


def is_numbered(update: object) -> bool:
    """Whether it is an update at all: that much of it can be told apart, and confirmed."""
    return isinstance(update, dict) and type(update.get("update_id")) is int


def get_update_number(update: dict[str, Any]) -> int:
    number: int = update["update_id"]
    return number


async def retry_until_done(work: Callable[[], Awaitable[T]]) -> T:
    """Does what has to be done before anything else can be, however often it takes.

    Raises Refused when it is no use to try again.
    """
    backoff = Backoff()
    while True:
        try:
            return await work()
        except TelegramError as error:
            if is_token_error(error):
                raise RejectedError(TOKEN_REFUSED) from None
            meant = to_service_error(error)
        if isinstance(meant, RejectedError):
            raise meant
        log.warning("Telegram does not answer: %s", meant)
        await backoff.wait(meant.seconds if isinstance(meant, RetryLaterError) else 0.0)
