"""Polling: fetches updates with getUpdates. Updates that are in the journal are confirmed by the
next call."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import telegram
from telegram.error import TelegramError

from crabtalk.gateway import Backoff, RejectedError, RetryLaterError

from .bot_requests import UpdatesRequest
from .error_mapping import TOKEN_REFUSED, is_token_error, to_service_error

UPDATE_KINDS = ("message", "callback_query")
# Seconds that Telegram may wait before an empty reply, and that the reply may take beyond that.
POLL_SECONDS, READ_TIMEOUT = 30, 10.0

T = TypeVar("T")
log = logging.getLogger(__name__)


class TelegramPolling:
    """`updates_request` is the HTTP class the bot uses for getUpdates."""

    port = 0  # polling listens on no port

    def __init__(
        self, bot: telegram.Bot, updates_request: UpdatesRequest, *, wait: int = POLL_SECONDS
    ) -> None:
        self._bot = bot
        self._request = updates_request
        self._poll_seconds = wait
        self._unacknowledged: set[int] = set()  # yielded, and not in the journal yet
        self._all_acknowledged = asyncio.Event()

    def acknowledge(self, number: int) -> None:
        self._unacknowledged.discard(number)
        if not self._unacknowledged:
            self._all_acknowledged.set()

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        await retry_until_done(self._bot.delete_webhook)
        offset: int | None = None
        backoff = Backoff()
        while True:
            fetch = partial(self._fetch_updates, offset)
            received = await retry_until_done(fetch)
            # The update ids are in the order of events.
            batch = sorted(filter(is_numbered, received), key=get_update_number)
            self._unacknowledged = set(map(get_update_number, batch))
            for update in batch:
                yield update
            while self._unacknowledged:
                self._all_acknowledged.clear()
                await self._all_acknowledged.wait()
            if received and not batch:  # they cannot be confirmed, so they would come again at once
                log.error("what Telegram gives has no number, and is left out")
                await backoff.wait()
            # Sent once: after a quiet week Telegram starts again with other ids, which may be below
            # an offset that was confirmed before.
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
    """Whether it is an update with an id, so that it can be recognised and confirmed."""
    return isinstance(update, dict) and type(update.get("update_id")) is int


def get_update_number(update: dict[str, Any]) -> int:
    number: int = update["update_id"]
    return number


async def retry_until_done(work: Callable[[], Awaitable[T]]) -> T:
    """Retry work that everything else depends on, as often as it takes.

    Raises RejectedError when a retry cannot help.
    """
    backoff = Backoff()
    while True:
        try:
            return await work()
        except TelegramError as error:
            if is_token_error(error):
                raise RejectedError(TOKEN_REFUSED) from None
            service_error = to_service_error(error)
        if isinstance(service_error, RejectedError):
            raise service_error
        log.warning("Telegram does not answer: %s", service_error)
        await backoff.wait(
            service_error.seconds if isinstance(service_error, RetryLaterError) else 0.0
        )
