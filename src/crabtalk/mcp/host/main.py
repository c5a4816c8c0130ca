"""The host: the process that holds the peers, so that neither their SDK nor they touch the daemon.

Started by the daemon as `python -m crabtalk.mcp.host.main`. It does what standard input says, tells
what happens on standard output (messages.py), and ends with its parent, taking every server along.
"""

import asyncio
import ctypes
import logging
import os
import resource
import signal
import sys
from contextlib import suppress

import msgspec

from crabtalk.environment import hide_environment
from crabtalk.mcp.messages import (
    CallTool,
    CancelCall,
    ClosePeer,
    FromHost,
    HostFrameError,
    McpCallFailure,
    McpCallResult,
    OpenPeer,
    ToHost,
    encode_frame,
    read_frame,
)

PR_SET_PDEATHSIG = 1
# Bytes the daemon may be behind before we stop reading what it wants of us.
MAX_UNREAD_BYTES = 64 * 1024 * 1024


class McpHost:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from .peer import HostPeer  # the SDK: a second, and most of the memory

        self._new_peer = HostPeer
        self._reader = reader
        self._writer = writer
        self._peers: dict[int, HostPeer] = {}
        self._calls: dict[int, int] = {}  # to the peer that carries it out
        self._closing_tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Until there is nobody to serve."""
        decoder = msgspec.msgpack.Decoder(ToHost)
        while (order := await read_frame(self._reader, decoder)) is not None:
            self._handle_message(order)
            await self._writer.drain()

    async def close(self) -> None:
        closing = [peer.close() for peer in self._peers.values()]
        await asyncio.gather(*closing, *self._closing_tasks, return_exceptions=True)

    def _handle_message(self, order: ToHost) -> None:
        match order:
            case OpenPeer():
                self._peers[order.peer] = self._new_peer(order, self._send)
            case ClosePeer():
                if (peer := self._peers.pop(order.peer, None)) is not None:
                    task = asyncio.ensure_future(peer.close())
                    self._closing_tasks.add(task)
                    task.add_done_callback(self._closing_tasks.discard)
            case CallTool():
                if (peer := self._peers.get(order.peer)) is None:
                    self._send(McpCallFailure(order.call, "it is not connected", is_unheard=True))
                else:
                    peer.call(order)
                    self._calls[order.call] = order.peer
            case CancelCall():
                peer = self._peers.get(self._calls.pop(order.call, 0))
                if peer is not None:
                    peer.cancel(order.call)

    def _send(self, message: FromHost) -> None:
        if isinstance(message, McpCallResult | McpCallFailure):
            self._calls.pop(message.call, None)
        self._writer.write(encode_frame(message))


async def run_host(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)
    host = McpHost(reader, asyncio.StreamWriter(transport, protocol, None, loop))
    serving = asyncio.ensure_future(host.serve())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError, HostFrameError):
        await serving
    await host.close()


def main() -> None:
    die_with_parent()
    # Were it to crash, the image would hold secrets of every server; and one server must not read
    # those of another in our memory.
    hide_environment()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever prints must not be taken for a message.
    descriptor = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for name in ("mcp", "httpx2", "anyio"):
        # What goes wrong with a peer is told in its own words; these would be said twice.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Not uvloop: servers would inherit copies of our pipes, and keep them open when we are gone.
    asyncio.run(run_host(descriptor))


def die_with_parent() -> None:
    """A signal that can be answered, so that no server stays behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    main()
