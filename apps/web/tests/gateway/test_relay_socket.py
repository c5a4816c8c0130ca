"""The socket to the relay: every request gets an answer or an error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from crabtalk_web.gateway.errors import RelayUnavailableError
from crabtalk_web.gateway.relay_socket import MAX_REQUESTS, RelaySocket


class SilentRelay:
    """A relay that receives requests and answers none."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.message_arrived = asyncio.Event()
        self.hangs_up = asyncio.Event()

    async def handle_socket(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str('0{"pingInterval":25000,"pingTimeout":20000}')
        await ws.receive_str()
        await ws.send_str('40{"sid":"s"}')
        hanging = asyncio.ensure_future(self.hang_up(ws))
        async for message in ws:
            self.received.append(message.data)
            self.message_arrived.set()
        hanging.cancel()
        return ws

    async def hang_up(self, ws: web.WebSocketResponse) -> None:
        await self.hangs_up.wait()
        await ws.close()

    async def wait_for_messages(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.received) < count:
                self.message_arrived.clear()
                await self.message_arrived.wait()


@asynccontextmanager
async def connect_silent_relay() -> AsyncIterator[tuple[SilentRelay, RelaySocket]]:
    mute, app = SilentRelay(), web.Application()
    app.router.add_get("/v1/updates/", mute.handle_socket)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        async with RelaySocket(url, "token", lambda name, it: None, refuse_call) as socket:
            yield mute, socket


async def refuse_call(method: str, params: str) -> None: ...


@pytest.mark.req("gateway.socket")
async def test_pending_requests_fail_when_the_socket_closes() -> None:
    async with connect_silent_relay() as (mute, socket):
        asking: asyncio.Future[Any] = asyncio.ensure_future(socket.request("update-state", {}))
        await mute.wait_for_messages(1)
        await socket.__aexit__(None, None, None)
        # Not cancelled: the caller continues its work.
        with pytest.raises(RelayUnavailableError):
            await asking


@pytest.mark.req("gateway.socket")
async def test_the_timeout_of_a_request_starts_when_it_is_sent() -> None:
    async with connect_silent_relay() as (mute, socket):
        async with asyncio.timeout(20):
            many = [
                asyncio.ensure_future(socket.request("update-state", {}, within=0.2))
                for _ in range(MAX_REQUESTS + 1)
            ]
            await mute.wait_for_messages(MAX_REQUESTS)
            assert len(mute.received) == MAX_REQUESTS
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert all(isinstance(outcome, RelayUnavailableError) for outcome in outcomes)
        assert len(mute.received) == MAX_REQUESTS + 1


@pytest.mark.req("gateway.socket")
async def test_listening_ends_when_the_relay_closes_the_socket() -> None:
    async with connect_silent_relay() as (mute, socket):
        listening = asyncio.ensure_future(socket.listen())
        mute.hangs_up.set()
        with pytest.raises(RelayUnavailableError):
            async with asyncio.timeout(20):
                await listening
