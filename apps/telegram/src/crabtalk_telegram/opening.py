"""Opening: a bot from its settings, and what it needs to talk."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import telegram
from telegram.error import InvalidToken, TelegramError

from crabtalk.component.gateway import GatewayError, Refused, Settings

from .line import Asking, Line
from .pace import Pace
from .polling import Polling
from .refusals import TOKEN_REFUSED, is_token, meaning
from .service import Source, Telegram
from .webhook import Webhook, address

BASE_URL = "https://api.telegram.org"
# Seconds. An upload has a minute, and who finds no free connection waits as long.
CONNECT, READ, WRITE, MEDIA, POOL = 10.0, 30.0, 30.0, 60.0, 60.0
CONNECTIONS = 64
# They log addresses, and the token is part of them.
TALKATIVE = ("httpx", "httpcore", "telegram")

L = TypeVar("L", bound=Line)


@asynccontextmanager
async def open_telegram(settings: Settings, *, pace: Pace | None = None) -> AsyncIterator[Telegram]:
    """Raises GatewayError for settings that cannot work."""
    timeout = httpx.Timeout(READ, connect=CONNECT)
    asking = line(1, Asking)
    async with opened_bot(settings, asking) as bot, httpx.AsyncClient(timeout=timeout) as http:
        source = source_of(settings, bot, asking)
        service = Telegram(bot, http, source, pace, settings.owners)
        async with aclosing(service):
            yield service


async def who_am_i(settings: Settings) -> str:
    """Raises GatewayError, and what the service raises."""
    asking = line(1, Asking)
    async with opened_bot(settings, asking) as bot:
        source_of(settings, bot, asking)
        try:
            me = await bot.get_me()
        except TelegramError as error:
            raise (Refused(TOKEN_REFUSED) if is_token(error) else meaning(error)) from None
    return f"@{me.username}"


@asynccontextmanager
async def opened_bot(settings: Settings, asking: Asking) -> AsyncIterator[telegram.Bot]:
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    base = checked("base_url", settings.base_url or BASE_URL, ("https", "http"))
    telling = line(CONNECTIONS, Line)
    try:
        yield telegram.Bot(
            settings.token,
            base_url=f"{base}/bot",
            base_file_url=f"{base}/file/bot",
            request=telling,
            get_updates_request=asking,
        )
    except InvalidToken:
        raise Refused(TOKEN_REFUSED) from None
    finally:
        await asking.shutdown()
        await telling.shutdown()


def line(connections: int, kind: type[L]) -> L:
    return kind(
        connection_pool_size=connections,
        connect_timeout=CONNECT,
        read_timeout=READ,
        write_timeout=WRITE,
        media_write_timeout=MEDIA,
        pool_timeout=POOL,
    )


def source_of(settings: Settings, bot: telegram.Bot, asking: Asking) -> Source:
    """Polling, unless there is an address to be reached at."""
    url, listen = settings.extra.get("webhook_url", ""), settings.extra.get("webhook_listen", "")
    if not url:
        return Polling(bot, asking)
    checked("webhook_url", url, ("https",))
    address(listen)
    return Webhook(bot, url, listen)


def checked(key: str, url: str, schemes: tuple[str, ...]) -> str:
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname:
        raise GatewayError(f"{key} must begin with {schemes[0]}://, not be {url!r}")
    return url.rstrip("/")
