"""Turns: the latency the daemon adds to a model's answer, for one and for many conversations.

The model is a scripted server in a process of its own that stamps each chunk when it is written;
the client compares the stamp with its own clock, which is the same on one machine. The bare relay
passes on the same bytes without parsing them.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from crabtalk.protocol import FrameDecoder, encode_frame, wire
from crabtalk.transport import RunFiles
from tests.model_server import model_process

from .processes import compute_percentile, pin_to_core, read_rss
from .tables import BenchTable

STAMP_PATTERN = re.compile(rb"\b(\d{19})\b")
# This share of a crowd's chunks is not counted, while connections and conversations are created.
WARM_UP = 0.2


# ── Clients ────────────────────────────────────────────────────────────────────────────────────


class ChunkReader(asyncio.Protocol):
    """Sends one request and notes when each chunk of the answer arrives."""

    def __init__(self, request: bytes, chunks: int) -> None:
        self._request = request
        self._left = chunks
        self.lags: list[float] = []  # milliseconds
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def find_stamps(self, data: bytes) -> Iterator[int]:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        for stamp in self.find_stamps(data):
            self.lags.append((now - stamp) / 1e6)
            self._left -= 1
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the stream broke"))

    def close(self) -> None:
        self._transport.close()


class RawChunkReader(ChunkReader):
    """Reads from the relay: finds stamps anywhere in the bytes."""

    def find_stamps(self, data: bytes) -> Iterator[int]:
        return map(int, STAMP_PATTERN.findall(data))


class FramedChunkReader(ChunkReader):
    """Reads from the daemon: frames with events, up to the end event."""

    def __init__(self, request: bytes, chunks: int) -> None:
        super().__init__(request, chunks + 1)
        self._decoder = FrameDecoder()

    def find_stamps(self, data: bytes) -> Iterator[int]:
        for frame in self._decoder.feed(data):
            message = wire.ServerMessage.FromString(bytes(frame))
            event = message.stream.WhichOneof("event")
            if event == "chunk":
                yield int(message.stream.chunk.content)
            elif event == "end":
                assert not message.stream.end.error, message.stream.end.error
                self._left -= 1
            assert message.WhichOneof("msg") == "stream", message


async def open_reader(
    path: Path, kind: type[ChunkReader], request: bytes, chunks: int
) -> ChunkReader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_unix_connection(lambda: kind(request, chunks), str(path))
    return reader


def encode_turn(script: str, sender: str) -> bytes:
    message = wire.StreamMsg(agent="crab", content=script, sender=sender)
    return encode_frame(wire.ClientMessage(stream=message))


async def run_crowd(
    path: Path, kind: type[ChunkReader], conversations: int, chunks: int, rate: int
) -> list[float]:
    """Run conversations at once, begun evenly over a second; return the lags of all chunks."""
    script = f"!chunks {chunks} {rate}"
    loop = asyncio.get_running_loop()
    start = loop.time()
    readers = []
    for number in range(conversations):
        request = (
            encode_turn(script, f"s{number}") if kind is FramedChunkReader else script.encode()
        )
        readers.append(await open_reader(path, kind, request, chunks))
        await asyncio.sleep(max(0.0, start + (number + 1) / conversations - loop.time()))
    await asyncio.gather(*(reader.done for reader in readers))
    for reader in readers:
        reader.close()
    skip = int(chunks * WARM_UP)
    return [lag for reader in readers for lag in reader.lags[skip:]]


# ── Processes ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class TurnServer:
    name: str
    socket: Path
    pid: int
    kind: type[ChunkReader]
    cpu: float = field(default=0.0)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def run_daemon(model_url: str, home: Path) -> Iterator[TurnServer]:
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.toml").write_text(f'[llm]\nbase_url = "{model_url}"\nmodel = "scripted"\n')
    crabtalkd = str(Path(sys.executable).with_name("crabtalkd"))
    command = [crabtalkd, "run", "--home", str(home), "--tcp", "off"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "ready" in line, line
            yield TurnServer(
                "crabtalk", RunFiles.for_home(home).socket_path, process.pid, FramedChunkReader
            )
        finally:
            process.terminate()


@contextmanager
def run_relay(model_url: str, scratch: Path) -> Iterator[TurnServer]:
    path = scratch / "relay.sock"
    command = [sys.executable, "-m", "bench.bare_relay", str(path), str(urlsplit(model_url).port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield TurnServer("bare relay", path, process.pid, RawChunkReader)
        finally:
            process.terminate()


# ── Measurements ───────────────────────────────────────────────────────────────────────────────


def measure_first_byte(contenders: list[TurnServer]) -> BenchTable:
    """Measure many turns of one conversation, from the model's first byte to the client's."""
    table = BenchTable(
        "Added latency: the model's first chunk to the client's, ms",
        ["", "p50", "p99", "whole turn p50"],
        note="200 turns one after the other, in one conversation, each message flushed to disk.",
    )
    for contender in contenders:

        async def turns(contender: TurnServer = contender) -> tuple[list[float], list[float]]:
            lags, totals = [], []
            for _ in range(220):
                request = (
                    encode_turn("!chunks 1 0", "one")
                    if contender.kind is FramedChunkReader
                    else b"!chunks 1 0"
                )
                start = time.monotonic_ns()
                reader = await open_reader(contender.socket, contender.kind, request, 1)
                await reader.done
                totals.append((time.monotonic_ns() - start) / 1e6)
                lags.append(reader.lags[0])
                reader.close()
            return lags[20:], totals[20:]

        lags, totals = uvloop.run(turns())
        table.add_row(
            contender.name,
            f"{compute_percentile(lags, 0.5):.2f}",
            f"{compute_percentile(lags, 0.99):.2f}",
            f"{compute_percentile(totals, 0.5):.2f}",
        )
    return table


def measure_crowds(contenders: list[TurnServer], sizes: list[tuple[int, int, int]]) -> BenchTable:
    table = BenchTable(
        "Many conversations at once, the daemon on one core",
        [
            "",
            "conversations",
            "chunks/s each",
            "lag p50 ms",
            "p99",
            "max",
            "µs a chunk",
            "RSS MB",
        ],
        note=(
            "The model server and the clients share the other core. Lag is from the model's write "
            "to the client's read; µs a chunk is CPU, RSS is after the run."
        ),
    )
    for conversations, chunks, rate in sizes:
        for contender in contenders:
            before = contender.cpu_seconds()
            lags = uvloop.run(
                run_crowd(contender.socket, contender.kind, conversations, chunks, rate)
            )
            spent = contender.cpu_seconds() - before
            table.add_row(
                contender.name,
                f"{conversations:,}",
                str(rate),
                f"{compute_percentile(lags, 0.5):.2f}",
                f"{compute_percentile(lags, 0.99):.2f}",
                f"{max(lags):.1f}",
                f"{spent / (conversations * chunks) * 1e6:.0f}",
                f"{read_rss(contender.pid):.0f}",
            )
    return table


def run_benchmark() -> list[BenchTable]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pin_to_core(-1):
            url, _ = stack.enter_context(model_process("--no-record"))
        with pin_to_core(0):
            contenders = [
                stack.enter_context(run_relay(url, scratch)),
                stack.enter_context(run_daemon(url, scratch / "home")),
            ]
        stack.enter_context(pin_to_core(-1))
        return [
            measure_first_byte(contenders),
            measure_crowds(
                contenders, [(1000, 60, 5), (150, 400, 50), (300, 300, 50), (400, 300, 50)]
            ),
        ]
