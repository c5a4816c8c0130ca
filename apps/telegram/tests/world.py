"""A daemon, a Bot API server and a gateway between them, all of it real but the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from apps.telegram.tests.bot_api import PATIENCE, BotApi, bot_api
from crabtalk.client import ServerError
from crabtalk.component.gateway import Bounds, Gateway, Settings
from crabtalk.runtime import Hook
from crabtalk_telegram.cli import EXTRA
from crabtalk_telegram.opening import open_telegram
from crabtalk_telegram.pace import Pace
from crabtalk_telegram.service import Telegram
from tests.daemon.served import Served, served
from tests.model_server import model_server

GROUP = {"id": -100500, "type": "supergroup", "title": "Shells"}


class World:
    def __init__(self, path: Path, api: BotApi, daemon: Served) -> None:
        self.path = path
        self.home = path / "home"
        self.api = api
        self.daemon = daemon
        self.gateway: Gateway | None = None
        self.service: Telegram | None = None
        self.task: asyncio.Future[None] | None = None
        self.settings = Settings(
            token=api.token,
            allowed_users=("7", "8", "9"),
            base_url=api.url,
            agents=("crab", "twin"),
            extra={**EXTRA, "webhook_listen": "127.0.0.1:0"},
        )

    @asynccontextmanager
    async def running(self, **changes: Any) -> AsyncIterator[Telegram]:
        """A gateway, until the block is left. It is cancelled then, as by SIGTERM."""
        settings = replace(self.settings, **changes)
        async with open_telegram(settings, pace=Pace(500.0, 0.05)) as service:
            service.limits = replace(service.limits, edit_every=0.05)
            self.service = service
            gateway = self.gateway = Gateway(
                self.home, service, settings, bounds=Bounds(notice_after=0.05)
            )
            task = self.task = asyncio.ensure_future(gateway.run())
            try:
                yield service
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def told(self, *texts: str, chat: str = "7") -> None:
        """Until the chat has exactly these messages."""
        try:
            await self.api.until(lambda: self.api.texts(chat) == list(texts))
        except TimeoutError:
            raise AssertionError(self.api.texts(chat)) from None

    async def until(self, claim: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not claim():
                await asyncio.sleep(0.01)

    async def heard(self, sender: str = "tg:7") -> list[str]:
        """What people said in a conversation, as the daemon has it."""
        found: list[str] = []
        offset: int | None = 0
        async with self.daemon.client() as client:
            while offset is not None:
                try:
                    page = await client.list_messages("crab", sender=sender, offset=offset)
                except ServerError:  # it has not begun
                    break
                found += [one.content for one in page.messages if one.role == "user"]
                offset = page.next_offset if page.HasField("next_offset") else None
        return found

    async def idle(self) -> None:
        """Until nothing is left to do."""
        gateway = self.gateway
        assert gateway is not None
        await self.until(lambda: not self.api.waiting and not gateway.statistics()["waiting"])


@asynccontextmanager
async def world(
    path: Path, *, hooks: Mapping[str, Hook] | None = None, **more: Any
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(bot_api())
        model = await stack.enter_async_context(model_server())
        daemon = await stack.enter_async_context(served(path, model, hooks=hooks, **more))
        yield World(path, api, daemon)
