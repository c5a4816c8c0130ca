"""A daemon, a server that speaks iLink and a gateway between them, all of it real but the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from apps.wechat.tests.ilink_api import ANN, BO, PATIENCE, TOKEN, ILinkApi, ilink_api
from crabtalk.client import ServerError
from crabtalk.component.gateway import Bounds, Gateway, Settings
from crabtalk.protocol import wire
from crabtalk.runtime import Hook
from crabtalk_wechat.cli import EXTRA
from crabtalk_wechat.opening import open_wechat
from crabtalk_wechat.polling import Pauses
from crabtalk_wechat.service import WeChat
from tests.daemon.served import Served, served
from tests.model_server import model_server

PAUSES = Pauses(expired=0.1, other=0.2)


class World:
    def __init__(self, path: Path, api: ILinkApi, daemon: Served) -> None:
        self.path = path
        self.home = path / "home"
        self.own = self.home / "wechat"
        self.api = api
        self.daemon = daemon
        self.gateway: Gateway | None = None
        self.settings = settings_of(api, ANN, BO)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[WeChat]:
        """A gateway, until the block is left. It is cancelled then, as by SIGTERM."""
        self.own.mkdir(exist_ok=True)
        async with open_wechat(self.settings, self.own, pauses=PAUSES) as service:
            gateway = self.gateway = Gateway(
                self.home, service, self.settings, bounds=Bounds(notice_after=0.05)
            )
            task = asyncio.ensure_future(gateway.run())
            try:
                yield service
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def told(self, *texts: str, person: str = ANN) -> None:
        """Until somebody has exactly these messages."""
        try:
            await self.api.until(lambda: self.api.texts(person) == list(texts))
        except TimeoutError:
            raise AssertionError(self.api.texts(person)) from None

    async def until(self, claim: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not claim():
                await asyncio.sleep(0.01)

    async def heard(self, person: str = ANN) -> list[str]:
        """What somebody said in their conversation, as the daemon has it."""
        found: list[wire.ConversationMessage] = []
        async with self.daemon.client() as client:
            while True:
                try:
                    page = await client.list_messages(
                        "crab", sender=f"wx:{person}", offset=len(found)
                    )
                except ServerError:  # it has not begun
                    return []
                found += page.messages
                if not page.HasField("next_offset"):
                    return [message.content for message in found if message.role == "user"]

    async def idle(self) -> None:
        """Until nothing is left to do."""
        gateway = self.gateway
        assert gateway is not None
        await self.until(lambda: self.api.is_read and not gateway.statistics()["waiting"])


def settings_of(api: ILinkApi, *allowed: str, token: str = TOKEN) -> Settings:
    extra = {**EXTRA, "cdn_url": f"{api.url}/cdn"}
    return Settings(token=token, allowed_users=allowed, base_url=api.url, extra=extra)


@asynccontextmanager
async def world(
    path: Path, *, hooks: Mapping[str, Hook] | None = None, **more: Any
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ilink_api())
        model = await stack.enter_async_context(model_server())
        daemon = await stack.enter_async_context(served(path, model, hooks=hooks, **more))
        yield World(path, api, daemon)
