"""Builds the WeChat service from the settings, and its HTTP session."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from crabtalk.gateway import GatewayError, GatewaySettings, RejectedError, load_settings

from .cli import EXTRA_SETTINGS, SERVICE_NAME
from .file_store import WeChatFileStore
from .ilink import BASE_URL, EXPIRED_CODE, ILinkClient, ILinkError
from .polling import PollDelays, WeChatPolling
from .service import WeChatService
from .state import WeChatState

TOKEN_REFUSED = "WeChat does not know this token; run `crabtalk-wechat setup`"  # noqa: S105
MAX_CONNECTIONS = 64


@asynccontextmanager
async def open_wechat(
    settings: GatewaySettings, directory: Path, *, delays: PollDelays | None = None
) -> AsyncIterator[WeChatService]:
    """`directory` is the gateway's directory in the home. Raises GatewayError for settings that
    cannot work."""
    state = WeChatState(directory / "state.json")
    state.load(settings.token)
    path = directory.parent / "config" / f"{SERVICE_NAME}.toml"

    def load_login() -> tuple[str, str]:
        current = load_settings(path, EXTRA_SETTINGS)
        return get_base_url(current), current.token

    store_url = check_url("cdn_url", settings.extra["cdn_url"])
    async with open_session() as http:
        ilink = ILinkClient(http, get_base_url(settings), settings.token)
        polling = WeChatPolling(ilink, state, load_login, delays)
        yield WeChatService(ilink, WeChatFileStore(http, store_url), state, polling)


async def fetch_identity(settings: GatewaySettings) -> str:
    """The bot's name. Raises GatewayError, and what the service raises."""
    async with open_session() as http:
        try:
            # A request without a person: whatever the reply, it shows whether the token is valid.
            await ILinkClient(http, get_base_url(settings), settings.token).get_config("", "")
        except ILinkError as error:
            if error.code == EXPIRED_CODE:
                raise RejectedError(TOKEN_REFUSED) from None
    return settings.extra["bot_id"] or "a bot"


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS)
    headers = {"iLink-App-Id": "bot"}
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, trust_env=True, cookie_jar=aiohttp.DummyCookieJar()
    ) as http:
        yield http


def get_base_url(settings: GatewaySettings) -> str:
    return check_url("base_url", settings.base_url or BASE_URL)


def check_url(key: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("https", "http") and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise GatewayError(f"{key} must begin with https://, not be {url!r}")
    return url.rstrip("/")
