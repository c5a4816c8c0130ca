"""People with devices, for the relay's tests: each with their own keys, over real sockets."""

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import socketio  # type: ignore[import-untyped]

from crabtalk_web.relay import RelayConfig, RelayLimits, RelayServer
from crabtalk_web.sealing import DataSealer, MasterSecret, new_key, to_base64

PATIENCE = 20
RefusedConnection = socketio.exceptions.ConnectionError


@dataclass(frozen=True, slots=True)
class RelayReply:
    status: int
    body: Any
    headers: Any = field(repr=False)

    @property
    def ok(self) -> Any:
        assert self.status == 200, self
        return self.body


class RelayClient:
    """An HTTP client of a relay, with a token if it has one."""

    def __init__(self, http: aiohttp.ClientSession, token: str = "") -> None:
        self.http = http
        self.token = token

    @property
    def port(self) -> int:
        url = self.http._base_url
        assert url is not None
        assert url.port is not None
        return url.port

    async def request(self, method: str, path: str, body: Any = None, **given: Any) -> RelayReply:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        headers |= given.pop("headers", {})
        if body is not None:
            given["data"] = io.BytesIO(json.dumps(body).encode())
            headers["Content-Type"] = "application/json"
        async with self.http.request(method, path, headers=headers, **given) as response:
            if response.content_type == "application/json":
                return RelayReply(response.status, await response.json(), response.headers)
            return RelayReply(response.status, await response.read(), response.headers)

    async def get(self, path: str, **query: Any) -> RelayReply:
        return await self.request("GET", path, params=query)

    async def post(self, path: str, **body: Any) -> RelayReply:
        return await self.request("POST", path, body)

    async def delete(self, path: str) -> RelayReply:
        return await self.request("DELETE", path)


class SocketListener:
    """A connected socket of python-socketio, and the events it received."""

    def __init__(self, client: socketio.AsyncClient) -> None:
        self.io = client
        self.events: list[tuple[str, Any]] = []
        self._event_arrived = asyncio.Event()
        client.on("*", self._on_event)

    async def _on_event(self, name: str, payload: Any = None) -> None:
        self.events.append((name, payload))
        self._event_arrived.set()

    async def call(self, name: str, payload: Any, patience: float = PATIENCE) -> Any:
        return await self.io.call(name, payload, timeout=patience)

    async def emit(self, name: str, payload: Any) -> None:
        await self.io.emit(name, payload)

    async def leave(self) -> None:
        await self.io.shutdown()
        # The library leaves it open if a connection was refused.
        if (http := self.io.eio.http) is not None:
            await http.close()

    async def wait_for(self, is_it: Callable[[str, Any], bool]) -> Any:
        """Return the first matching event, received or yet to come."""
        async with asyncio.timeout(PATIENCE):
            while True:
                self._event_arrived.clear()
                for name, payload in self.events:
                    if is_it(name, payload):
                        return payload
                await self._event_arrived.wait()

    async def wait_for_nth(self, at: int) -> Any:
        async with asyncio.timeout(PATIENCE):
            while at >= len(self.events):
                self._event_arrived.clear()
                await self._event_arrived.wait()
        return self.events[at][1]

    async def wait_for_update(self, kind: str) -> Any:
        update = await self.wait_for(lambda name, it: name == "update" and it["body"]["t"] == kind)
        return update["body"]

    async def wait_for_change(self, kind: str, field: str) -> Any:
        update = await self.wait_for(
            lambda name, it: name == "update" and it["body"]["t"] == kind and field in it["body"]
        )
        return update["body"][field]

    async def wait_for_ephemeral(self, kind: str, **like: Any) -> Any:
        return await self.wait_for(
            lambda name, it: (
                name == "ephemeral" and it["type"] == kind and like.items() <= it.items()
            )
        )

    def messages(self, session: str) -> list[dict[str, Any]]:
        return [
            it["body"]["message"]
            for name, it in self.events
            if name == "update"
            and it["body"]["t"] == "new-message"
            and it["body"]["sid"] == session
        ]


class RelayUser(RelayClient):
    """A person with an account."""

    def __init__(self, http: aiohttp.ClientSession, secret: MasterSecret) -> None:
        super().__init__(http)
        self.secret = secret
        self.sealer = DataSealer(new_key())
        self.stack = AsyncExitStack()

    def build_login(self, challenge: bytes) -> dict[str, str]:
        return {
            "publicKey": to_base64(self.secret.account_key),
            "challenge": to_base64(challenge),
            "signature": to_base64(self.secret.sign(challenge)),
        }

    async def log_in(self) -> "RelayUser":
        self.token = (await self.post("/v1/auth", **self.build_login(os.urandom(32)))).ok["token"]
        return self

    async def create_session(self, tag: str = "tag") -> str:
        body = {"tag": tag, "metadata": self.sealer.seal({"path": "/"})}
        return str((await self.post("/v1/sessions", **body)).ok["session"]["id"])

    async def create_machine(self, machine: str = "machine") -> str:
        await self.post("/v1/machines", id=machine, metadata=self.sealer.seal({"host": "h"}))
        return machine

    def build_message(self, text: str, local_id: str) -> dict[str, str]:
        return {"content": self.sealer.seal({"text": text}), "localId": local_id}

    async def send_messages(self, session: str, *local_ids: str) -> list[dict[str, Any]]:
        built = [self.build_message(each, each) for each in local_ids]
        reply = await self.post(f"/v3/sessions/{session}/messages", messages=built)
        messages: list[dict[str, Any]] = reply.ok["messages"]
        return messages

    async def read_messages(self, session: str, after: int = 0) -> list[dict[str, Any]]:
        """Read all messages, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            path = f"/v3/sessions/{session}/messages"
            page = (await self.get(path, after_seq=after, limit=500)).ok
            found += page["messages"]
            if not page["hasMore"]:
                return found
            after = found[-1]["seq"]

    async def connect(self, **auth: Any) -> SocketListener:
        """Connected until the person's context is left."""
        listener = SocketListener(socketio.AsyncClient(reconnection=False))
        self.stack.push_async_callback(listener.leave)
        await listener.io.connect(
            str(self.http._base_url),
            socketio_path="/v1/updates",
            transports=["websocket"],
            auth={"token": self.token, **auth},
            wait_timeout=PATIENCE,
        )
        return listener


@dataclass
class RelayWorld:
    """A relay, and its address."""

    relay: RelayServer
    stack: AsyncExitStack

    @property
    def url(self) -> str:
        """On this machine, whatever its public URL is."""
        config = self.relay.config
        return (
            config.url(self.relay.port)
            if not config.public_url
            else f"http://{config.host}:{self.relay.port}"
        )

    async def open_client(self) -> RelayClient:
        return RelayClient(await self.stack.enter_async_context(aiohttp.ClientSession(self.url)))

    async def create_user(self, secret: MasterSecret | None = None) -> RelayUser:
        http = await self.stack.enter_async_context(aiohttp.ClientSession(self.url))
        person = RelayUser(http, secret or MasterSecret(new_key()))
        await self.stack.enter_async_context(person.stack)
        return await person.log_in()


@asynccontextmanager
async def open_relay_world(
    data: Path, limits: RelayLimits | None = None, **config: Any
) -> AsyncIterator[RelayWorld]:
    settings = RelayConfig(data, port=0, limits=limits or RelayLimits(), **config)
    async with RelayServer(settings) as relay, AsyncExitStack() as stack:
        yield RelayWorld(relay, stack)
