"""A daemon, a relay, a gateway and a phone; everything is real but the model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.web.tests.gateway.device_client import DeviceClient, open_device
from crabtalk_web.gateway import (
    GatewayConfig,
    MachinePairing,
    RelayCredentials,
    RelayHttp,
    WebFolder,
    WebGateway,
)
from crabtalk_web.relay import RelayConfig, RelayLimits, RelayServer
from tests.daemon.in_process_daemon import PATIENCE, InProcessDaemon, run_daemon

AGENTS = {
    "crab": 'prompt = "You are crab."\n',
    "owl": 'prompt = "You are owl."\n',
}


@dataclass
class WebGatewayWorld:
    daemon: InProcessDaemon
    relay: RelayServer
    phone: DeviceClient
    credentials: RelayCredentials
    config: GatewayConfig
    gateway: WebGateway | None = None
    task: asyncio.Task[None] | None = None

    async def start_gateway(self, **config: Any) -> WebGateway:
        self.config = GatewayConfig(**{**read_config(self.config), **config})
        self.gateway, self.task = await start_gateway(
            self.daemon.home, self.credentials, self.config
        )
        return self.gateway

    async def release_model(self) -> None:
        """Let the model continue, once it is waiting."""
        async with asyncio.timeout(PATIENCE):
            while not self.daemon.model.release():
                await asyncio.sleep(0.005)

    async def stop_gateway(self) -> None:
        if self.task is not None:
            task, self.task = self.task, None
            await stop_gateway(task)


async def start_gateway(
    home: Path, credentials: RelayCredentials, config: GatewayConfig
) -> tuple[WebGateway, asyncio.Task[None]]:
    """Start a gateway in this process, and wait until it is connected."""
    gateway = WebGateway(home, credentials, config, grace=0.5, audit_every=1.0)
    task = asyncio.ensure_future(gateway.run())
    async with asyncio.timeout(PATIENCE):
        await gateway.is_following.wait()
        await gateway.is_connected.wait()
    return gateway, task


async def stop_gateway(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def read_config(config: GatewayConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


async def pair_with_device(
    device: DeviceClient, url: str, *, in_the_old_way: bool = False
) -> RelayCredentials:
    """Pair a machine with the account of `device`."""
    async with RelayHttp(url) as http:
        pairing = MachinePairing(http)
        assert await pairing.request_approval() is None
        await device.approve(pairing.link, in_the_old_way=in_the_old_way)
        found = await pairing.request_approval()
        assert found is not None
        return found


@asynccontextmanager
async def open_world(
    path: Path, *, starts: bool = True, **config: Any
) -> AsyncIterator[WebGatewayWorld]:
    work = path / "work"
    work.mkdir(exist_ok=True)
    options = {key: config.pop(key) for key in ("agents", "hooks", "feed_limits") if key in config}
    limits = config.pop("limits", None) or RelayLimits()
    options = {"agents": AGENTS, "hooks": {}, **options}
    settings = GatewayConfig(**{"cwd": str(work), **config})
    async with AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(run_daemon(path, **options))
        relay = await stack.enter_async_context(
            RelayServer(RelayConfig(path / "relay", port=0, durability="os", limits=limits))
        )
        device = await stack.enter_async_context(open_device(relay.url))
        credentials = await pair_with_device(device, relay.url)
        WebFolder(daemon.home).prepare()
        credentials.save(WebFolder(daemon.home).credentials_file)
        world = WebGatewayWorld(daemon, relay, device, credentials, settings)
        try:
            if starts:
                await world.start_gateway()
            yield world
        finally:
            await world.stop_gateway()
