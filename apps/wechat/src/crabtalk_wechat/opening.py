"""Opening: the service from its settings, and what it needs to talk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from crabtalk.component.gateway import GatewayError, Refused, Settings, load_settings

from .cli import EXTRA, NAME
from .ilink import BASE_URL, EXPIRED, ILink, RefusalError
from .polling import Pauses, Polling
from .service import WeChat
from .state import State
from .store import Store

TOKEN_REFUSED = "WeChat does not know this token; run `crabtalk-wechat setup`"  # noqa: S105
CONNECTIONS = 64


@asynccontextmanager
async def open_wechat(
    settings: Settings, own: Path, *, pauses: Pauses | None = None
) -> AsyncIterator[WeChat]:
    """`own` is the gateway's directory in the home. Raises GatewayError for settings that cannot
    work."""
    state = State(own / "state.json")
    state.load(settings.token)
    path = own.parent / "config" / f"{NAME}.toml"

    def renewed() -> tuple[str, str]:
        found = load_settings(path, EXTRA)
        return base_url(found), found.token

    store_url = checked("cdn_url", settings.extra["cdn_url"])
    async with opened_session() as http:
        ilink = ILink(http, base_url(settings), settings.token)
        polling = Polling(ilink, state, renewed, pauses)
        yield WeChat(ilink, Store(http, store_url), state, polling)


async def who_am_i(settings: Settings) -> str:
    """Raises GatewayError, and what the service raises."""
    async with opened_session() as http:
        try:
            # For nobody: whatever else it says to that, it has looked at the token.
            await ILink(http, base_url(settings), settings.token).config("", "")
        except RefusalError as error:
            if error.code == EXPIRED:
                raise Refused(TOKEN_REFUSED) from None
    return settings.extra["bot_id"] or "a bot"


@asynccontextmanager
async def opened_session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    headers = {"iLink-App-Id": "bot"}
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, trust_env=True, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        yield http


def base_url(settings: Settings) -> str:
    return checked("base_url", settings.base_url or BASE_URL)


def checked(key: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("https", "http") and bool(parts.hostname)
    except ValueError:
        is_right = False
    if not is_right:
        raise GatewayError(f"{key} must begin with https://, not be {url!r}")
    return url.rstrip("/")
