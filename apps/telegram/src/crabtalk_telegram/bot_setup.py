"""Builds the Telegram service from the settings, and its bot and HTTP clients."""

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
# Seconds. An upload has a minute, and a request waits as long for a free connection.
CONNECT_TIMEOUT, READ_TIMEOUT, WRITE_TIMEOUT, MEDIA_TIMEOUT, POOL_TIMEOUT = (
    10.0,
    30.0,
    30.0,
    60.0,
    60.0,
)
MAX_CONNECTIONS = 64
# They log URLs, and the token is part of them.
NOISY_LOGGERS = ("httpx", "httpcore", "telegram")

L = TypeVar("L", bound=BotApiRequest)


@asynccontextmanager
async def open_telegram(
    settings: GatewaySettings, *, rate_limiter: RateLimiter | None = None
) -> AsyncIterator[TelegramService]:
    """Open the service. Raises GatewayError for settings that cannot work."""
    timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
    updates_request = make_request(1, UpdatesRequest)
    async with (
        open_bot(settings, updates_request) as bot,
        httpx.AsyncClient(timeout=timeout) as http,
    ):
        source = make_source(settings, bot, updates_request)
        service = TelegramService(bot, http, source, rate_limiter, settings.owners)
        async with aclosing(service):
            yield service


async def fetch_identity(settings: GatewaySettings) -> str:
    """The bot's name. Raises GatewayError, and what the service raises."""
    updates_request = make_request(1, UpdatesRequest)
    async with open_bot(settings, updates_request) as bot:
        make_source(settings, bot, updates_request)
        try:
            me = await bot.get_me()
        except TelegramError as error:
            raise (
                RejectedError(TOKEN_REFUSED) if is_token_error(error) else to_service_error(error)
            ) from None
    return f"@{me.username}"


@asynccontextmanager
async def open_bot(
    settings: GatewaySettings, updates_request: UpdatesRequest
) -> AsyncIterator[telegram.Bot]:
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    base_url = check_url("base_url", settings.base_url or BASE_URL, ("https", "http"))
    request = make_request(MAX_CONNECTIONS, BotApiRequest)
    try:
        yield telegram.Bot(
            settings.token,
            base_url=f"{base_url}/bot",
            base_file_url=f"{base_url}/file/bot",
            request=request,
            get_updates_request=updates_request,
        )
    except InvalidToken:
        raise RejectedError(TOKEN_REFUSED) from None
    finally:
        await updates_request.shutdown()
        await request.shutdown()


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
    settings: GatewaySettings, bot: telegram.Bot, updates_request: UpdatesRequest
) -> UpdateSource:
    """Polling, or a webhook if the settings have its URL."""
    url, listen = settings.extra.get("webhook_url", ""), settings.extra.get("webhook_listen", "")
    if not url:
        return TelegramPolling(bot, updates_request)
    check_url("webhook_url", url, ("https",))
    parse_listen_address(listen)
    return TelegramWebhook(bot, url, listen)


def check_url(key: str, url: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise GatewayError(f"{key} must begin with {schemes[0]}://, not be {url!r}")
    return url.rstrip("/")
