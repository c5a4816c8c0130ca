"""Models: the CPU time of reading a streamed chunk, for our client, bare clients and SDKs.

A raw server sends the same small chunks to all: in one burst, and one a millisecond as a fast
model would, where waking up costs more than reading. Each client runs in a process of its own;
litellm and the SDK in an environment of their own, installed on first use.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

from .tables import BenchTable

CHUNKS = 5000
ROOT = Path(__file__).resolve().parent.parent
TOOLS_DIRECTORY = ROOT / ".venv" / "bench-tools"
PINS_FILE = ROOT / "requirements" / "bench.txt"


def encode_chunk(fields: dict[str, str], finish: str | None = None) -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "m",
        "choices": [{"index": 0, "delta": fields, "finish_reason": finish}],
    }
    return f"data: {json.dumps(document)}\n\n".encode()


# All chunks differ, because litellm treats a model that repeats itself as broken.
PIECES = [encode_chunk({"content": f"word{n} "}) for n in range(CHUNKS)]
LAST = encode_chunk({}, "stop") + b"data: [DONE]\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def encode_http_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, paced: bool
) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))
        writer.write(HEAD)
        for piece in PIECES:
            writer.write(encode_http_chunk(piece))
            if paced:
                await asyncio.sleep(0.001)
            else:
                await writer.drain()
        writer.write(encode_http_chunk(LAST) + b"0\r\n\r\n")
        await writer.drain()


class ChunkServer:
    """Serves both paces, each on a port of its own, in a thread of this process."""

    def __enter__(self) -> dict[str, str]:
        self._loop = asyncio.new_event_loop()
        urls = {name: self._serve(paced) for name, paced in (("burst", False), ("paced", True))}
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return urls

    def _serve(self, paced: bool) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await answer_requests(reader, writer, paced)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = self._loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def install_tools() -> str:
    """Return a Python that has the SDK and litellm; installed once per set of pins."""
    python = TOOLS_DIRECTORY / "bin" / "python"
    stamp = TOOLS_DIRECTORY / ".pins"
    pins = PINS_FILE.read_text()
    if not stamp.exists() or stamp.read_text() != pins:
        uv = [sys.executable, "-m", "uv", "--quiet"]
        run = [*uv, "pip", "install", "--python", str(python)]
        subprocess.run(
            [*uv, "venv", "--clear", "--python", sys.executable, TOOLS_DIRECTORY], check=True
        )
        subprocess.run(
            [*run, "--require-hashes", "--compile-bytecode", "-r", PINS_FILE], check=True
        )
        stamp.write_text(pins)
    return str(python)


def measure_cost(python: str, contender: str, url: str) -> float:
    command = [python, "-m", "bench.stream_readers", contender, url, str(CHUNKS)]
    environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise RuntimeError(f"{contender} failed: {result.stderr[-500:]}")
    return float(result.stdout.split()[-1])


def measure_import(module: str) -> float:
    """Return the milliseconds of an import in a bare interpreter, best of several."""
    script = (
        f"import time; s = time.perf_counter(); import {module}; print(time.perf_counter() - s)"
    )
    command = [sys.executable, "-c", script]
    runs = (subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(7))
    return min(float(run.stdout) for run in runs) * 1e3


def run_benchmark() -> list[BenchTable]:
    table = BenchTable("CPU time a streamed chunk, µs", ["reader", "burst", "paced 1/ms"])
    our_python, tools_python = sys.executable, install_tools()
    with ChunkServer() as urls:
        for name in ("raw asyncio", "aiohttp", "ours", "openai SDK", "litellm"):
            python = tools_python if name in ("openai SDK", "litellm") else our_python
            table.add_row(name, *(f"{measure_cost(python, name, urls[pace]):.1f}" for pace in urls))
    imports = BenchTable("Import, ms", ["module", "time"])
    imports.add_row("crabtalk.model", f"{measure_import('crabtalk.model'):.0f}")
    return [table, imports]
