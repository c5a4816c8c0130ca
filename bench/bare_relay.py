"""A minimal relay, as the lower bound for any program between a model and a client.

Run as `python -m bench.bare_relay SOCKET MODEL_PORT`. A client's message is the script for the
model; the model's output is passed on unparsed and not stored.
"""

import asyncio
import json
import sys
from typing import cast

import uvloop


class RelayUpstream(asyncio.Protocol):
    def __init__(self, downstream: asyncio.Transport, script: str) -> None:
        self._downstream = downstream
        self._script = script

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        body = json.dumps(
            {
                "model": "scripted",
                "stream": True,
                "messages": [{"role": "user", "content": self._script}],
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: relay\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        cast("asyncio.Transport", transport).write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        if not self._downstream.is_closing():
            self._downstream.write(data)


class RelayDownstream(asyncio.Protocol):
    def __init__(self, port: int) -> None:
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(
            loop.create_connection(
                lambda: RelayUpstream(self._transport, data.decode()), "127.0.0.1", self._port
            )
        )


async def serve_relay(path: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: RelayDownstream(port), path
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve_relay(sys.argv[1], int(sys.argv[2])))
