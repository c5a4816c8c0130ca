"""RecordingDaemon: a daemon with a scripted model, and named connections for raw frames.

Recorder and replay both use it, so that they differ only in the daemon's code.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from crabtalk.protocol import encode_frame, wire
from crabtalk.transport import ListenOptions, RunFiles, TcpAddress, listen_tcp
from tests.daemon.in_process_daemon import PATIENCE, InProcessDaemon, run_daemon, wait_until

TOKEN = "recorded-token"
AGENTS = {
    "crab": 'description = "General helper"\nprompt = "You are crab."\n',
    "twin": 'prompt = "You are twin."\n',
    "asker": 'prompt = "You ask."\n[permissions]\nask = ["bash"]\n',
}


class RawConnection:
    """One socket: sends raw bytes and reads whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> bytes | None:
        """The payload of the next frame, or None when the daemon closed the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                header = await self._reader.readexactly(4)
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise ConnectionError("the connection was closed within a header") from error
                return None
            return await self._reader.readexactly(int.from_bytes(header, "big"))

    def close(self) -> None:
        self._writer.close()


class RecordingDaemon:
    """Connections are opened on first use, over `transport` ("unix" or "tcp")."""

    def __init__(self, daemon: InProcessDaemon, port: int, transport: str) -> None:
        self._daemon = daemon
        self._port = port
        self._transport = transport
        self._connections: dict[str, RawConnection] = {}

    async def connection(self, name: str) -> RawConnection:
        """Connections whose name starts with `tcp` use TCP and must send their own hello."""
        if name not in self._connections:
            self._connections[name] = await self._connect(name)
        return self._connections[name]

    async def perform(self, action: str) -> None:
        if action == "release the model":
            self._daemon.model.release()
        elif action == "wait for the model":
            await asyncio.wait_for(self._daemon.model.until_waiting(), PATIENCE)
        elif action == "wait for a subscriber":
            await wait_until(lambda: len(self._daemon.daemon.feed) > 0)
        else:
            raise ValueError(f"no action is called {action!r}")

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    async def _connect(self, name: str) -> RawConnection:
        if name.startswith("tcp"):
            return RawConnection(*await asyncio.open_connection("127.0.0.1", self._port))
        if self._transport == "unix":
            path = RunFiles.for_home(self._daemon.home).socket_path
            return RawConnection(*await asyncio.open_unix_connection(path))
        connection = RawConnection(*await asyncio.open_connection("127.0.0.1", self._port))
        connection.send(encode_frame(wire.ClientMessage(hello=wire.HelloMsg(token=TOKEN))))
        greeting = await connection.receive()
        assert greeting is not None
        assert wire.ServerMessage.FromString(greeting).HasField("welcome")
        return connection


@asynccontextmanager
async def start_recording_daemon(
    path: Path, transport: str = "unix"
) -> AsyncIterator[RecordingDaemon]:
    async with run_daemon(
        path, agents=AGENTS, hooks={}, summary="They talked. It was good."
    ) as daemon:
        sock = listen_tcp(TcpAddress(port=0))
        daemon.listener.open(sock, ListenOptions("tcp", token=TOKEN))
        recording = RecordingDaemon(daemon, sock.getsockname()[1], transport)
        try:
            yield recording
        finally:
            recording.close()
