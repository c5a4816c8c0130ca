"""A daemon, a relay, a gateway and a phone, with everything real but the model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.web.tests.gateway.phone import Phone, phone
from crabtalk_web.gateway import Credentials, Gateway, GatewayConfig, Pairing, RelayHttp, Store
from crabtalk_web.relay import Limits, Relay, RelayConfig
from tests.daemon.served import PATIENCE, Served, served

AGENTS = {
    "crab": 'prompt = "You are crab."\n',
    "owl": 'prompt = "You are owl."\n',
}


@dataclass
class World:
    daemon: Served
    relay: Relay
    phone: Phone
    credentials: Credentials
    config: GatewayConfig
    gateway: Gateway | None = None
    task: asyncio.Task[None] | None = None

    async def start_gateway(self, **config: Any) -> Gateway:
        self.config = GatewayConfig(**{**plain(self.config), **config})
        self.gateway, self.task = await started(self.daemon.home, self.credentials, self.config)
        return self.gateway

    async def release(self) -> None:
        """Has the model go on, once it waits."""
        async with asyncio.timeout(PATIENCE):
            while not self.daemon.model.release():
                await asyncio.sleep(0.005)

    async def stop_gateway(self) -> None:
        if self.task is not None:
            task, self.task = self.task, None
            await stopped(task)


async def started(
    home: Path, credentials: Credentials, config: GatewayConfig
) -> tuple[Gateway, asyncio.Task[None]]:
    """A gateway in this process, once daemon and relay have it."""
    gateway = Gateway(home, credentials, config, grace=0.5, audit_every=1.0)
    task = asyncio.ensure_future(gateway.run())
    async with asyncio.timeout(PATIENCE):
        await gateway.is_following.wait()
        await gateway.is_connected.wait()
    return gateway, task


async def stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def plain(config: GatewayConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


async def let_in(device: Phone, url: str, *, in_the_old_way: bool = False) -> Credentials:
    """A machine that `device` has let into its account."""
    async with RelayHttp(url) as http:
        pairing = Pairing(http)
        assert await pairing.ask() is None
        await device.approve(pairing.link, in_the_old_way=in_the_old_way)
        found = await pairing.ask()
        assert found is not None
        return found


@asynccontextmanager
async def world(path: Path, *, starts: bool = True, **config: Any) -> AsyncIterator[World]:
    work = path / "work"
    work.mkdir(exist_ok=True)
    options = {key: config.pop(key) for key in ("agents", "hooks", "feed_limits") if key in config}
    limits = config.pop("limits", None) or Limits()
    options = {"agents": AGENTS, "hooks": {}, **options}
    settings = GatewayConfig(**{"cwd": str(work), **config})
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(served(path, **options))
        relay = await stack.enter_async_context(
            Relay(RelayConfig(path / "relay", port=0, durability="os", limits=limits))
        )
        device = await stack.enter_async_context(phone(relay.url))
        credentials = await let_in(device, relay.url)
        Store(daemon.home).prepare()
        credentials.save(Store(daemon.home).credentials)
        made = World(daemon, relay, device, credentials, settings)
        try:
            if starts:
                await made.start_gateway()
            yield made
        finally:
            await made.stop_gateway()
