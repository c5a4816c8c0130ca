"""A daemon, a chat service and a gateway between them. Everything is real except the model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from crabtalk.gateway import Gateway, GatewayBounds, GatewaySettings
from crabtalk.gateway.chat_service import ServiceLimits
from crabtalk.runtime import Hook
from tests.daemon.in_process_daemon import AGENTS, CONFIG, InProcessDaemon, prepare_home, run_daemon
from tests.gateway.pigeon_page import load_module
from tests.gateway.pigeon_server import PigeonServer, run_pigeon_server
from tests.model_server import model_server

PIGEON_MODULE = load_module()
# Settings that shorten waits, which are only quick on a quiet machine.
PATIENCE = 30


class GatewayWorld:
    def __init__(self, path: Path, service: PigeonServer) -> None:
        self.path = path
        self.home = path / "home"
        self.server = service
        self.daemon: InProcessDaemon | None = None
        self.serve_daemon: Callable[
            [], AbstractAsyncContextManager[InProcessDaemon]
        ]  # starts a new daemon
        self.gateway: Gateway | None = None
        self.task: asyncio.Future[None] | None = None
        self.bounds = GatewayBounds(notice_after=0.05)
        self.limits: ServiceLimits = replace(PIGEON_MODULE.Pigeon.limits, edit_every=0.02)
        self.settings = GatewaySettings(
            token=service.token,
            allowed_users=("7", "8", "9"),
            base_url=service.url,
            agents=("crab", "twin"),
        )

    @asynccontextmanager
    async def run_gateway(self, **changes: Any) -> AsyncIterator[Gateway]:
        """Run a gateway while the block runs, then cancel it, as SIGTERM does."""
        settings = replace(self.settings, **changes)
        async with PIGEON_MODULE.open_pigeon(settings, self.path) as service:
            service.limits = self.limits
            gateway = self.gateway = Gateway(self.home, service, settings, bounds=self.bounds)
            task = self.task = asyncio.ensure_future(gateway.run())
            try:
                yield gateway
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def wait_for_texts(self, *texts: str, chat: str = "7") -> None:
        """Wait until the chat has exactly these messages."""
        try:
            await self.server.wait_until(lambda: self.server.texts_in(chat) == list(texts))
        except TimeoutError:
            raise AssertionError(self.server.texts_in(chat)) from None

    async def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition that no service notifies about."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)

    async def list_messages(
        self, sender: str = "pg:7", agent: str = "crab"
    ) -> list[tuple[str, str]]:
        """Role and text of all messages of a conversation at the daemon."""
        assert self.daemon is not None
        messages: list[tuple[str, str]] = []
        async with self.daemon.client() as client:
            while True:
                page = await client.list_messages(agent, sender=sender, offset=len(messages))
                messages += [(message.role, message.content) for message in page.messages]
                if not page.HasField("next_offset"):
                    return messages

    async def list_user_messages(self, sender: str = "pg:7") -> list[str]:
        """The messages of people in the conversation."""
        return [text for role, text in await self.list_messages(sender) if role == "user"]

    async def wait_until_idle(self) -> None:
        """Wait until no update is left."""
        gateway = self.gateway
        assert gateway is not None
        await self.wait_until(
            lambda: not self.server.pending and not gateway.statistics()["waiting"]
        )


@asynccontextmanager
async def open_gateway_world(
    path: Path,
    *,
    has_daemon: bool = True,
    hooks: Mapping[str, Hook] | None = None,
    summary: str = "",
    **more: Any,
) -> AsyncIterator[GatewayWorld]:
    async with AsyncExitStack() as stack:
        world = GatewayWorld(path, await stack.enter_async_context(run_pigeon_server()))
        model = await stack.enter_async_context(model_server(summary=summary))
        world.serve_daemon = partial(run_daemon, path, model, hooks=hooks, **more)
        if has_daemon:
            world.daemon = await stack.enter_async_context(world.serve_daemon())
        else:
            prepare_home(world.home, AGENTS, CONFIG.replace("{url}", model.url))
        yield world
