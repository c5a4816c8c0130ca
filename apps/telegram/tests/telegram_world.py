"""A daemon, a Bot API server and a gateway between them. Everything is real except the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from apps.telegram.tests.bot_api_server import PATIENCE, BotApiServer, run_bot_api
from crabtalk.client import ServerError
from crabtalk.gateway import Gateway, GatewayBounds, GatewaySettings
from crabtalk.runtime import Hook
from crabtalk_telegram.bot_setup import open_telegram
from crabtalk_telegram.cli import EXTRA_SETTINGS
from crabtalk_telegram.rate_limiter import RateLimiter
from crabtalk_telegram.service import TelegramService
from tests.daemon.in_process_daemon import InProcessDaemon, run_daemon
from tests.model_server import model_server

GROUP = {"id": -100500, "type": "supergroup", "title": "Shells"}


class TelegramWorld:
    def __init__(self, path: Path, api: BotApiServer, daemon: InProcessDaemon) -> None:
        self.path = path
        self.home = path / "home"
        self.api = api
        self.daemon = daemon
        self.gateway: Gateway | None = None
        self.service: TelegramService | None = None
        self.task: asyncio.Future[None] | None = None
        self.settings = GatewaySettings(
            token=api.token,
            allowed_users=("7", "8", "9"),
            base_url=api.url,
            agents=("crab", "twin"),
            extra={**EXTRA_SETTINGS, "webhook_listen": "127.0.0.1:0"},
        )

    @asynccontextmanager
    async def run_gateway(self, **changes: Any) -> AsyncIterator[TelegramService]:
        """Run a gateway while the block runs, then cancel it, as SIGTERM does."""
        settings = replace(self.settings, **changes)
        async with open_telegram(settings, rate_limiter=RateLimiter(500.0, 0.05)) as service:
            service.limits = replace(service.limits, edit_every=0.05)
            self.service = service
            gateway = self.gateway = Gateway(
                self.home, service, settings, bounds=GatewayBounds(notice_after=0.05)
            )
            task = self.task = asyncio.ensure_future(gateway.run())
            try:
                yield service
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def wait_for_texts(self, *texts: str, chat: str = "7") -> None:
        """Wait until the chat has exactly these messages."""
        try:
            await self.api.wait_until(lambda: self.api.texts_in(chat) == list(texts))
        except TimeoutError:
            raise AssertionError(self.api.texts_in(chat)) from None

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def list_user_messages(self, sender: str = "tg:7") -> list[str]:
        """The messages of people in a conversation at the daemon."""
        texts: list[str] = []
        offset: int | None = 0
        async with self.daemon.client() as client:
            while offset is not None:
                try:
                    page = await client.list_messages("crab", sender=sender, offset=offset)
                except ServerError:  # the conversation has not begun
                    break
                texts += [message.content for message in page.messages if message.role == "user"]
                offset = page.next_offset if page.HasField("next_offset") else None
        return texts

    async def wait_until_idle(self) -> None:
        """Wait until no update is left."""
        gateway = self.gateway
        assert gateway is not None
        await self.wait_until(lambda: not self.api.pending and not gateway.statistics()["waiting"])


@asynccontextmanager
async def open_telegram_world(
    path: Path, *, hooks: Mapping[str, Hook] | None = None, **more: Any
) -> AsyncIterator[TelegramWorld]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(run_bot_api())
        model = await stack.enter_async_context(model_server())
        daemon = await stack.enter_async_context(run_daemon(path, model, hooks=hooks, **more))
        yield TelegramWorld(path, api, daemon)
