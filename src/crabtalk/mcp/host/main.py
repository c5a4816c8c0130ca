"""The MCP host process, which isolates the daemon from the MCP SDK and the servers.

The daemon starts it as `python -m crabtalk.mcp.host.main`. It reads messages from stdin and writes
messages to stdout (messages.py). When its parent ends, it stops all servers and ends too.
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
# Bytes of output the daemon may leave unread before we stop reading its messages.
MAX_UNREAD_BYTES = 64 * 1024 * 1024


class McpHost:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from .peer import HostPeer  # late: importing the SDK takes a second and most of the memory

        self._new_peer = HostPeer
        self._reader = reader
        self._writer = writer
        self._peers: dict[int, HostPeer] = {}
        self._calls: dict[int, int] = {}  # call → peer
        self._closing_tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Handle messages until the daemon closes the pipe."""
        decoder = msgspec.msgpack.Decoder(ToHost)
        while (message := await read_frame(self._reader, decoder)) is not None:
            self._handle_message(message)
            await self._writer.drain()

    async def close(self) -> None:
        closing = [peer.close() for peer in self._peers.values()]
        await asyncio.gather(*closing, *self._closing_tasks, return_exceptions=True)

    def _handle_message(self, message: ToHost) -> None:
        match message:
            case OpenPeer():
                self._peers[message.peer] = self._new_peer(message, self._send)
            case ClosePeer():
                if (peer := self._peers.pop(message.peer, None)) is not None:
                    task = asyncio.ensure_future(peer.close())
                    self._closing_tasks.add(task)
                    task.add_done_callback(self._closing_tasks.discard)
            case CallTool():
                if (peer := self._peers.get(message.peer)) is None:
                    self._send(McpCallFailure(message.call, "it is not connected", is_unheard=True))
                else:
                    peer.call(message)
                    self._calls[message.call] = message.peer
            case CancelCall():
                peer = self._peers.get(self._calls.pop(message.call, 0))
                if peer is not None:
                    peer.cancel(message.call)

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
    # A core dump would contain the secrets of every server, and no server must read those of
    # another from our memory.
    hide_environment()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Anything that prints to stdout must not be read as a message.
    descriptor = os.dup(1)
    os.dup2(2, 1)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    for name in ("mcp", "httpx2", "anyio"):
        # Errors of peers are reported as messages already.
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Not uvloop: servers would inherit copies of our pipes and keep them open after we end.
    asyncio.run(run_host(descriptor))


def die_with_parent() -> None:
    """Get SIGTERM when the parent dies: it can be handled, so that no server is left running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


if __name__ == "__main__":
    main()
