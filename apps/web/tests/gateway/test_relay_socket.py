"""The socket to the relay: whoever waits for an answer gets one, or is told that none will come."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from crabtalk_web.gateway.errors import RelayAwayError
from crabtalk_web.gateway.relay_socket import QUESTIONS, RelaySocket


class Mute:
    """A relay that takes questions and answers none."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.news = asyncio.Event()
        self.hangs_up = asyncio.Event()

    async def talk(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)
        await ws.send_str('0{"pingInterval":25000,"pingTimeout":20000}')
        await ws.receive_str()
        await ws.send_str('40{"sid":"s"}')
        hanging = asyncio.ensure_future(self.hang_up(ws))
        async for message in ws:
            self.asked.append(message.data)
            self.news.set()
        hanging.cancel()
        return ws

    async def hang_up(self, ws: web.WebSocketResponse) -> None:
        await self.hangs_up.wait()
        await ws.close()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.asked) < count:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Mute, RelaySocket]]:
    mute, app = Mute(), web.Application()
    app.router.add_get("/v1/updates/", mute.talk)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        async with RelaySocket(url, "token", lambda name, it: None, nobody) as socket:
            yield mute, socket


async def nobody(method: str, params: str) -> None: ...


@pytest.mark.req("gateway.socket")
async def test_who_waits_for_an_answer_is_told_when_the_socket_closes() -> None:
    async with connected() as (mute, socket):
        asking: asyncio.Future[Any] = asyncio.ensure_future(socket.ask("update-state", {}))
        await mute.until(1)
        await socket.__aexit__(None, None, None)
        # Not cancelled: whoever asked goes on with its work.
        with pytest.raises(RelayAwayError):
            await asking


@pytest.mark.req("gateway.socket")
async def test_the_time_of_an_answer_runs_from_when_it_was_asked() -> None:
    async with connected() as (mute, socket):
        async with asyncio.timeout(20):
            many = [
                asyncio.ensure_future(socket.ask("update-state", {}, within=0.2))
                for _ in range(QUESTIONS + 1)
            ]
            await mute.until(QUESTIONS)
            assert len(mute.asked) == QUESTIONS
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert all(isinstance(outcome, RelayAwayError) for outcome in outcomes)
        assert len(mute.asked) == QUESTIONS + 1


@pytest.mark.req("gateway.socket")
async def test_a_relay_that_hangs_up_ends_the_listening() -> None:
    async with connected() as (mute, socket):
        listening = asyncio.ensure_future(socket.listen())
        mute.hangs_up.set()
        with pytest.raises(RelayAwayError):
            async with asyncio.timeout(20):
                await listening
