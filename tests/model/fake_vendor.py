"""A vendor's API on loopback, byte for byte as scripted: what a provider and an SDK both talk to.

A test gives an answer per request; the server records what was asked. Bodies are sent as chunked
HTTP/1.1, in exactly the pieces given, each written and flushed on its own.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class VendorRequest:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)  # the client hung up

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class VendorAnswer:
    """What to send back. `hang` keeps the connection open after the last piece, silent."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    cut: bool = False  # close the connection without the final chunk
    silent: bool = False  # send nothing, not even headers
    pause: Callable[[int], Awaitable[None]] | None = None  # awaited before piece number n

    @classmethod
    def from_json(cls, document: Any, status: int = 200, **headers: str) -> "VendorAnswer":
        return cls(
            [json.dumps(document).encode()],
            status,
            "application/json",
            {name.replace("_", "-"): value for name, value in headers.items()},
        )


Respond = Callable[[VendorRequest], VendorAnswer]


class FakeVendor:
    """Answers each request with what `respond` returns, or with the next of a list."""

    def __init__(self, respond: Respond | list[VendorAnswer]) -> None:
        self.requests: list[VendorRequest] = []
        self.connections = 0
        self._respond = respond
        self._handlers: set[asyncio.Task[None]] = set()
        self.url = ""

    def _answer(self, vendor_request: VendorRequest) -> VendorAnswer:
        if isinstance(self._respond, list):
            return self._respond.pop(0)
        return self._respond(vendor_request)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (vendor_request := await self._read(reader)) is not None:
                self.requests.append(vendor_request)
                await self._send(self._answer(vendor_request), vendor_request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if self.requests:
                self.requests[-1].closed.set()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> VendorRequest | None:
        head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
        if not head:
            return None
        first, *lines = head.decode().split("\r\n")[:-2]
        method, path, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = b""
        if "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int((await reader.readline()).strip(), 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        return VendorRequest(method, path, headers, body)

    async def _send(
        self,
        answer: VendorAnswer,
        vendor_request: VendorRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if answer.silent:
            await self._watch(reader, vendor_request)
            raise ConnectionResetError
        head = [
            f"HTTP/1.1 {answer.status} Scripted",
            f"Content-Type: {answer.content_type}",
            "Transfer-Encoding: chunked",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
        ]
        writer.write("\r\n".join([*head, "", ""]).encode())
        watcher = (
            asyncio.ensure_future(self._watch(reader, vendor_request)) if answer.hang else None
        )
        for number, piece in enumerate(answer.pieces):
            if answer.pause is not None:
                await answer.pause(number)
            if piece:
                writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                await writer.drain()
        if watcher is not None:
            await watcher
            raise ConnectionResetError
        if answer.cut:
            raise ConnectionResetError
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _watch(self, reader: asyncio.StreamReader, vendor_request: VendorRequest) -> None:
        """Wait until the client closes the connection."""
        while await reader.read(1024):
            pass
        vendor_request.closed.set()

    def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)


@asynccontextmanager
async def run_vendor(respond: Respond | list[VendorAnswer]) -> AsyncIterator[FakeVendor]:
    fake = FakeVendor(respond)
    server = await asyncio.start_server(fake._start, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()
        for task in list(fake._handlers):
            task.cancel()
        await asyncio.gather(*fake._handlers, return_exceptions=True)


def split_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
