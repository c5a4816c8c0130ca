"""Opening: a bot from its settings, and what it needs to talk."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import telegram
from telegram.error import InvalidToken, TelegramError

from crabtalk.gateway import GatewayError, GatewaySettings, RejectedError

from .bot_requests import BotApiRequest, UpdatesRequest
from .error_mapping import TOKEN_REFUSED, is_token_error, to_service_error
from .polling import TelegramPolling
from .rate_limiter import RateLimiter
from .service import TelegramService, UpdateSource
from .webhook import TelegramWebhook, parse_listen_address

BASE_URL = "https://api.telegram.org"
# Seconds. An upload has a minute, and who finds no free connection waits as long.
CONNECT_TIMEOUT, READ_TIMEOUT, WRITE_TIMEOUT, MEDIA_TIMEOUT, POOL_TIMEOUT = (
    10.0,
    30.0,
    30.0,
    60.0,
    60.0,
)
MAX_CONNECTIONS = 64
# They log addresses, and the token is part of them.
NOISY_LOGGERS = ("httpx", "httpcore", "telegram")

L = TypeVar("L", bound=BotApiRequest)


@asynccontextmanager
async def open_telegram(
    settings: GatewaySettings, *, pace: RateLimiter | None = None
) -> AsyncIterator[TelegramService]:
    """Raises GatewayError for settings that cannot work."""
    timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
    asking = make_request(1, UpdatesRequest)
    async with open_bot(settings, asking) as bot, httpx.AsyncClient(timeout=timeout) as http:
        source = make_source(settings, bot, asking)
        service = TelegramService(bot, http, source, pace, settings.owners)
        async with aclosing(service):
            yield service


async def fetch_identity(settings: GatewaySettings) -> str:
    """Raises GatewayError, and what the service raises."""
    asking = make_request(1, UpdatesRequest)
    async with open_bot(settings, asking) as bot:
        make_source(settings, bot, asking)
        try:
            me = await bot.get_me()
        except TelegramError as error:
            raise (
                RejectedError(TOKEN_REFUSED) if is_token_error(error) else to_service_error(error)
            ) from None
    return f"@{me.username}"


@asynccontextmanager
async def open_bot(
    settings: GatewaySettings, asking: UpdatesRequest
) -> AsyncIterator[telegram.Bot]:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    base = check_url("base_url", settings.base_url or BASE_URL, ("https", "http"))
    telling = make_request(MAX_CONNECTIONS, BotApiRequest)
    try:
        yield telegram.Bot(
            settings.token,
            base_url=f"{base}/bot",
            base_file_url=f"{base}/file/bot",
            request=telling,
            get_updates_request=asking,
        )
    except InvalidToken:
        raise RejectedError(TOKEN_REFUSED) from None
    finally:
        await asking.shutdown()
        await telling.shutdown()


def make_request(connections: int, kind: type[L]) -> L:
    return kind(
        connection_pool_size=connections,
        connect_timeout=CONNECT_TIMEOUT,
        read_timeout=READ_TIMEOUT,
        write_timeout=WRITE_TIMEOUT,
        media_write_timeout=MEDIA_TIMEOUT,
        pool_timeout=POOL_TIMEOUT,
    )


def make_source(
    settings: GatewaySettings, bot: telegram.Bot, asking: UpdatesRequest
) -> UpdateSource:
    """Polling, unless there is an address to be reached at."""
    url, listen = settings.extra.get("webhook_url", ""), settings.extra.get("webhook_listen", "")
    if not url:
        return TelegramPolling(bot, asking)
    check_url("webhook_url", url, ("https",))
    parse_listen_address(listen)
    return TelegramWebhook(bot, url, listen)


def check_url(key: str, url: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise GatewayError(f"{key} must begin with {schemes[0]}://, not be {url!r}")
    return url.rstrip("/")
