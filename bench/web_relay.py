"""The web relay: latency and rate of messages, and the memory of sockets.

The relay has a core to itself and flushes to disk before it answers; all other processes share the
other core. Messages are encrypted beforehand and as long as a sentence of an agent.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import aiohttp
import uvloop

from crabtalk_web.sealing import DataSealer, MasterSecret, new_key, to_base64

from .processes import compute_percentile, pin_to_core, read_clock, read_rss
from .tables import BenchTable

POSTS = 1000
BATCHES = 100
SESSIONS = 20
SECONDS = 5
SOCKETS = 1000
WORDS = "Found three places where the handler is called. "
SEALED = DataSealer(new_key()).seal({"role": "session", "content": {"text": WORDS * 3}})


@contextmanager
def run_relay() -> Iterator[tuple[str, int]]:
    """Run a real relay; yields its address and process id."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "crabtalk_web.relay", scratch, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().strip(), process.pid
            finally:
                process.terminate()


@contextmanager
def run_relay_on_core() -> Iterator[tuple[str, int]]:
    """Run a relay on one core, and this process on the other."""
    with ExitStack() as stack:
        with pin_to_core(0):
            started = stack.enter_context(run_relay())
        stack.enter_context(pin_to_core(-1))
        yield started


class BenchDevice:
    """A device with an account of its own."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._count = 0
        self.token = ""

    async def log_in(self) -> None:
        secret, challenge = MasterSecret(new_key()), os.urandom(32)
        login = {
            "publicKey": to_base64(secret.account_key),
            "challenge": to_base64(challenge),
            "signature": to_base64(secret.sign(challenge)),
        }
        async with self._http.post("/v1/auth", json=login) as response:
            self.token = (await response.json())["token"]
        self._headers = {"Authorization": f"Bearer {self.token}"}

    async def create_session(self, tag: str = "bench") -> str:
        body = {"tag": tag, "metadata": SEALED}
        async with self._http.post("/v1/sessions", json=body, headers=self._headers) as response:
            return str((await response.json())["session"]["id"])

    async def post(self, session: str, count: int) -> None:
        messages = []
        for _ in range(count):
            self._count += 1
            messages.append({"content": SEALED, "localId": f"{session}{self._count}"})
        path, body = f"/v3/sessions/{session}/messages", json.dumps({"messages": messages})
        async with self._http.post(path, data=body, headers=self._headers) as response:
            assert response.status == 200, await response.text()
            await response.read()

    async def read_page(self, session: str) -> None:
        path = f"/v3/sessions/{session}/messages?after_seq=100"
        async with self._http.get(path, headers=self._headers) as response:
            assert len((await response.json())["messages"]) == 100

    async def listen(self) -> aiohttp.ClientWebSocketResponse:
        ws = await self._http.ws_connect("/v1/updates/?EIO=4&transport=websocket")
        await ws.receive_str()
        await ws.send_str("40" + json.dumps({"token": self.token}))
        assert (await ws.receive_str()).startswith("40")
        return ws


@asynccontextmanager
async def open_device(url: str) -> AsyncIterator[BenchDevice]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as http:
        device = BenchDevice(http)
        await device.log_in()
        yield device


async def measure_latency(url: str, pid: int) -> BenchTable:
    table = BenchTable("Relay: one device after the other, ms", ["", "p50", "p95"])
    posts, arrivals, batches, pages = [], [], [], []
    async with open_device(url) as speaker:
        session = await speaker.create_session()
        listener = await speaker.listen()
        for _ in range(POSTS):
            start = read_clock()
            arrival = asyncio.ensure_future(listener.receive_str())
            await speaker.post(session, 1)
            posts.append((read_clock() - start) * 1e3)
            while not (await arrival).startswith('42["update"'):
                arrival = asyncio.ensure_future(listener.receive_str())
            arrivals.append((read_clock() - start) * 1e3)
        await listener.close()
        for _ in range(BATCHES):
            start = read_clock()
            await speaker.post(session, 100)
            batches.append((read_clock() - start) * 1e3)
        for _ in range(BATCHES):
            start = read_clock()
            await speaker.read_page(session)
            pages.append((read_clock() - start) * 1e3)
    for name, samples in (
        ("a message, until it is kept", posts),
        ("a message, until another device has it", arrivals),
        ("a batch of 100, until it is kept", batches),
        ("a page of 100", pages),
    ):
        table.add_row(
            name,
            f"{compute_percentile(samples, 0.5):.1f}",
            f"{compute_percentile(samples, 0.95):.1f}",
        )
    return table


async def measure_rate(url: str, count: int) -> list[str]:
    """Run twenty sessions at once, each waiting for its answer before the next request."""
    async with AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(open_device(url)) for _ in range(SESSIONS)]
        sessions = [await device.create_session() for device in devices]
        listeners = [await device.listen() for device in devices]
        sent, received, times = 0, 0, []
        news = asyncio.Event()

        async def speak(device: BenchDevice, session: str, until: float) -> None:
            nonlocal sent
            while read_clock() < until:
                start = read_clock()
                await device.post(session, count)
                times.append((read_clock() - start) * 1e3)
                sent += count

        async def hear(ws: aiohttp.ClientWebSocketResponse) -> None:
            nonlocal received
            async for message in ws:
                received += message.data.startswith('42["update"')
                news.set()

        listen_tasks = [asyncio.ensure_future(hear(listener)) for listener in listeners]
        start = read_clock()
        await asyncio.gather(
            *(
                speak(device, session, start + SECONDS)
                for device, session in zip(devices, sessions, strict=True)
            )
        )
        rate = sent / (read_clock() - start)
        while received < sent:
            news.clear()
            await news.wait()
        assert received == sent
        for task in listen_tasks:
            task.cancel()
    return [
        f"{rate:,.0f}",
        f"{compute_percentile(times, 0.5):.1f}",
        f"{compute_percentile(times, 0.95):.1f}",
    ]


async def measure_memory(url: str, pid: int) -> BenchTable:
    table = BenchTable("Relay: resident memory, MB", ["sockets", "RSS", "KB each"])
    base = read_rss(pid)
    table.add_row("0", f"{base:.0f}", "")
    async with open_device(url) as device:
        sockets = [await device.listen() for _ in range(SOCKETS)]
        full = read_rss(pid)
        table.add_row(f"{SOCKETS:,}", f"{full:.0f}", f"{(full - base) * 1024 / SOCKETS:.0f}")
        session = await device.create_session()
        await device.post(session, 1)
        for ws in sockets:
            # The first update is about the session, the second about the message.
            while "new-message" not in await ws.receive_str():
                pass
        table.add_row(f"{SOCKETS:,}, each told of a message", f"{read_rss(pid):.0f}", "")
        await asyncio.gather(*(ws.close() for ws in sockets))
    return table


def run_benchmark() -> list[BenchTable]:
    many = BenchTable(
        f"Relay: {SESSIONS} sessions at once, each with a device that listens",
        ["messages a request", "messages /s", "p50 ms", "p95 ms"],
        note="Every message was flushed to disk before it was answered, and reached its listener.",
    )
    tables = []
    for measure in (measure_latency, measure_memory):
        with run_relay_on_core() as (url, pid):
            tables.append(uvloop.run(measure(url, pid)))
    for count in (1, 10, 100):
        with run_relay_on_core() as (url, _):
            many.add_row(str(count), *uvloop.run(measure_rate(url, count)))
    return [tables[0], many, tables[1]]
