"""A daemon, an iLink server and a gateway between them. Everything is real except the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from apps.wechat.tests.ilink_server import ANN, BO, PATIENCE, TOKEN, ILinkServer, run_ilink_server
from crabtalk.client import ServerError
from crabtalk.gateway import Gateway, GatewayBounds, GatewaySettings
from crabtalk.protocol import wire
from crabtalk.runtime import Hook
from crabtalk_wechat.cli import EXTRA_SETTINGS
from crabtalk_wechat.polling import PollDelays
from crabtalk_wechat.service import WeChatService
from crabtalk_wechat.service_setup import open_wechat
from tests.daemon.in_process_daemon import InProcessDaemon, run_daemon
from tests.model_server import model_server

TEST_DELAYS = PollDelays(expired=0.1, other=0.2)


class WeChatWorld:
    def __init__(self, path: Path, api: ILinkServer, daemon: InProcessDaemon) -> None:
        self.path = path
        self.home = path / "home"
        self.directory = self.home / "wechat"
        self.api = api
        self.daemon = daemon
        self.gateway: Gateway | None = None
        self.settings = make_settings(api, ANN, BO)

    @asynccontextmanager
    async def run_gateway(self) -> AsyncIterator[WeChatService]:
        """Run a gateway while the block runs, then cancel it, as SIGTERM does."""
        self.directory.mkdir(exist_ok=True)
        async with open_wechat(self.settings, self.directory, delays=TEST_DELAYS) as service:
            gateway = self.gateway = Gateway(
                self.home, service, self.settings, bounds=GatewayBounds(notice_after=0.05)
            )
            task = asyncio.ensure_future(gateway.run())
            try:
                yield service
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def wait_for_texts(self, *texts: str, person: str = ANN) -> None:
        """Wait until the person has exactly these messages."""
        try:
            await self.api.wait_until(lambda: self.api.texts_to(person) == list(texts))
        except TimeoutError:
            raise AssertionError(self.api.texts_to(person)) from None

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)

    async def list_user_messages(self, person: str = ANN) -> list[str]:
        """The person's messages in their conversation at the daemon."""
        messages: list[wire.ConversationMessage] = []
        async with self.daemon.client() as client:
            while True:
                try:
                    page = await client.list_messages(
                        "crab", sender=f"wx:{person}", offset=len(messages)
                    )
                except ServerError:  # the conversation has not begun
                    return []
                messages += page.messages
                if not page.HasField("next_offset"):
                    return [message.content for message in messages if message.role == "user"]

    async def wait_until_idle(self) -> None:
        """Wait until no update is left."""
        gateway = self.gateway
        assert gateway is not None
        await self.wait_until(lambda: self.api.is_read and not gateway.statistics()["waiting"])


def make_settings(api: ILinkServer, *allowed: str, token: str = TOKEN) -> GatewaySettings:
    extra = {**EXTRA_SETTINGS, "cdn_url": f"{api.url}/cdn"}
    return GatewaySettings(token=token, allowed_users=allowed, base_url=api.url, extra=extra)


@asynccontextmanager
async def open_wechat_world(
    path: Path, *, hooks: Mapping[str, Hook] | None = None, **more: Any
) -> AsyncIterator[WeChatWorld]:
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(run_ilink_server())
        model = await stack.enter_async_context(model_server())
        daemon = await stack.enter_async_context(run_daemon(path, model, hooks=hooks, **more))
        yield WeChatWorld(path, api, daemon)
