"""Webhook: receives updates from Telegram at a local listener, behind a proxy of the user's.

A request is answered when its update is in the journal; Telegram forgets the update then. It sends
an update again if it gets no answer.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import telegram

from crabtalk.gateway import GatewayError

from .polling import UPDATE_KINDS, get_update_number, is_numbered, retry_until_done

if TYPE_CHECKING:
    from aiohttp import web

AUTH_HEADER = "X-Telegram-Bot-Api-Secret-Token"
# Connections that Telegram may use at once, and room for requests it has given up on.
WEBHOOK_CONNECTIONS, MAX_WAITING = 40, 64
# Seconds until a request is answered with 503; Telegram waits for sixty.
ANSWER_DEADLINE = 50.0
MAX_REQUEST_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


class TelegramWebhook:
    """`listen` is like `127.0.0.1:8443`; `url` is the public address of the proxy."""

    def __init__(self, bot: telegram.Bot, url: str, listen: str) -> None:
        self._bot = bot
        self._url = url
        self._listen = listen
        # A new one for each run, so that it is in no file.
        self._secret = secrets.token_urlsafe(32)
        self._arrived: asyncio.Queue[dict[str, Any]] = asyncio.Queue(MAX_WAITING)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self.port = 0  # set when it listens

    def acknowledge(self, number: int) -> None:
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def updates(self) -> AsyncGenerator[dict[str, Any], None]:
        from aiohttp import web

        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            host, port = parse_listen_address(self._listen)
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise GatewayError(
                    f"cannot listen at {self._listen}: {error.strerror}; see to webhook_listen"
                ) from None
            self.port = runner.addresses[0][1]
            await retry_until_done(self._register)
            log.info("Telegram brings updates to %s, from there to port %d", self._url, self.port)
            while True:
                yield await self._arrived.get()
        finally:
            for future in self._waiting.values():
                future.cancel()
            self._waiting.clear()
            await runner.cleanup()

    async def _register(self) -> bool:
        return await self._bot.set_webhook(
            self._url,
            secret_token=self._secret,
            max_connections=WEBHOOK_CONNECTIONS,
            allowed_updates=UPDATE_KINDS,
        )

    async def _handle(self, request: "web.Request") -> "web.Response":
        from aiohttp import web

        secret = request.headers.get(AUTH_HEADER, "").encode(errors="replace")
        if not hmac.compare_digest(secret, self._secret.encode()):
            return web.Response(status=401)
        try:
            update = json.loads(await request.read())
        except ValueError:
            update = None
        if not is_numbered(update):
            return web.Response(status=400)
        return web.Response(status=200 if await self._wait_until_acknowledged(update) else 503)

    async def _wait_until_acknowledged(self, update: dict[str, Any]) -> bool:
        number = get_update_number(update)
        future = self._waiting.get(number)
        if future is None:
            if self._arrived.full():
                return False
            future = self._waiting[number] = asyncio.get_running_loop().create_future()
            self._arrived.put_nowait(update)
        try:
            async with asyncio.timeout(ANSWER_DEADLINE):
                # The future outlives this request: the same update may come with another.
                await asyncio.shield(future)
        except TimeoutError:
            return False
        return True


def parse_listen_address(listen: str) -> tuple[str, int]:
    """Parse `host:port`. Raises GatewayError for an address that is not on loopback."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]").replace("localhost", "127.0.0.1")
    try:
        is_own = ipaddress.ip_address(host).is_loopback
        number = int(port)
    except ValueError:
        is_own, number = False, -1
    if not is_own or not 0 <= number < 65536:
        raise GatewayError(
            f"webhook_listen must be like 127.0.0.1:8443, not {listen!r}: a proxy with a "
            "certificate brings what comes from outside"
        )
    return host, number
