"""The processes that benchmarks talk to: the real daemon, our transport, and bare peers.

Run as `python -m bench.processes callbacks|streams|ours SOCKET`. The bare peers move the same bytes
as ours on the same event loop and do nothing else: they echo pings, and answer a number with that
many chunk frames, encoded beforehand and written one at a time, as events are. `callbacks` is the
least Python can do, an asyncio.Protocol; `streams` is common asyncio code with write, drain and
readexactly.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvloop

from crabtalk.protocol import Server, encode_frame, wire
from crabtalk.transport import Listener, ListenOptions, listen_unix

CHUNK = "hello "
PING = encode_frame(wire.ClientMessage(ping=wire.Ping()))


def encode_chunk_frame() -> bytes:
    event = wire.StreamEvent(chunk=wire.StreamChunk(content=CHUNK))
    return encode_frame(wire.ServerMessage(stream=event))


# ── The bare peers ─────────────────────────────────────────────────────────────────────────────


class CallbackPeer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.write_resumed: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        if data.isdigit():
            self.task = asyncio.ensure_future(self.stream_chunks(int(data)))
        else:
            self.transport.write(data)

    async def stream_chunks(self, count: int) -> None:
        frame = encode_chunk_frame()
        for _ in range(count):
            self.transport.write(frame)
            if self.write_resumed is not None:
                await self.write_resumed

    def pause_writing(self) -> None:
        self.write_resumed = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self.write_resumed is not None:
            self.write_resumed.set_result(None)
            self.write_resumed = None


async def serve_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    frame = encode_chunk_frame()
    for _ in range(int(await reader.read(16))):
        writer.write(frame)
        await writer.drain()
    writer.close()


# ── Ours ───────────────────────────────────────────────────────────────────────────────────────


class ChunkStreamServer(Server):
    """Streams as many chunks as the content says."""

    async def stream(self, request: wire.StreamMsg) -> AsyncGenerator[wire.StreamEvent, None]:
        for _ in range(int(request.content)):
            event = wire.StreamEvent()
            event.chunk.content = CHUNK
            yield event
        yield wire.StreamEvent(end=wire.StreamEnd(agent=request.agent))


# ── Processes ──────────────────────────────────────────────────────────────────────────────────


async def serve_peer(kind: str, path: Path) -> None:
    loop = asyncio.get_running_loop()
    # Without a reference a server would be closed by the garbage collector.
    servers: list[asyncio.AbstractServer] = []
    if kind == "callbacks":
        server = await loop.create_server(CallbackPeer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        path.with_suffix(".port").write_text(str(port))
        servers = [server, await loop.create_unix_server(CallbackPeer, str(path))]
    elif kind == "streams":
        servers = [await asyncio.start_unix_server(serve_stream, path)]
    else:
        listener = Listener(ChunkStreamServer())
        listener.open(listen_unix(path), ListenOptions("unix", uid=os.geteuid()))
    print("ready", flush=True)
    await asyncio.Event().wait()
    servers.clear()


@contextmanager
def run_peer(kind: str) -> Iterator[Path]:
    """Run a peer process of the given kind; yields its socket."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / f"{kind}.sock"
        command = [sys.executable, "-m", "bench.processes", kind, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
                yield path
            finally:
                process.terminate()


@contextmanager
def pin_to_core(index: int) -> Iterator[None]:
    """Pin this process, and those it starts, to one of the cores it may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[index]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextmanager
def run_daemon() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Run a real `crabtalkd run` in a home of its own, and wait until it is ready."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        command = [str(Path(sys.executable).with_name("crabtalkd")), "run", "--home", str(home)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                line = process.stderr.readline()
                assert "ready" in line, line
                yield home, process
            finally:
                process.terminate()


def read_rss(pid: int) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def compute_percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[int(len(samples) * share)]


def read_clock() -> float:
    return time.perf_counter()


if __name__ == "__main__":
    uvloop.run(serve_peer(sys.argv[1], Path(sys.argv[2])))
