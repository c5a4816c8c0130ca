"""A phone: a device of an account, with its own keys, that talks to a relay only."""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import socketio  # type: ignore[import-untyped]

from crabtalk_web.sealing import (
    DataSealer,
    MasterSecret,
    approve_with_content_key,
    approve_with_secret,
    derive_blob_key,
    from_base64,
    new_key,
    open_blob,
    parse_link_key,
    seal_blob,
    to_base64,
    unwrap_key,
)
from crabtalk_web.stream import (
    Envelope,
    EnvelopeOrder,
    SessionBody,
    TextEvent,
    TurnEnd,
    decode_body,
    new_id,
)

PATIENCE = 25


@dataclass
class OpenedMessage:
    """A decrypted message of a session."""

    seq: int
    local_id: str
    plain: dict[str, Any]

    @property
    def envelope(self) -> Envelope | None:
        body = decode_body(json.dumps(self.plain))
        return body.content if isinstance(body, SessionBody) else None


@dataclass
class DeviceSession:
    """A session as the phone sees it."""

    id: str
    key: bytes = field(repr=False)
    metadata: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def sealer(self) -> DataSealer:
        return DataSealer(self.key)


class DeviceClient:
    def __init__(self, url: str, secret: MasterSecret | None = None, invite: str = "") -> None:
        self.url = url
        self.invite = invite
        self.secret = secret or MasterSecret(new_key())
        self.token = ""
        self.events: list[tuple[str, Any]] = []
        self.event_arrived = asyncio.Event()
        self._io: socketio.AsyncClient | None = None

    async def __aenter__(self) -> "DeviceClient":
        self.http = aiohttp.ClientSession()
        await self.log_in()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()
        await self.http.close()

    async def log_in(self) -> None:
        challenge = os.urandom(32)
        reply = await self.request(
            "POST",
            "/v1/auth",
            {
                "publicKey": to_base64(self.secret.account_key),
                "challenge": to_base64(challenge),
                "signature": to_base64(self.secret.sign(challenge)),
                **({"invite": self.invite} if self.invite else {}),
            },
        )
        self.token = reply["token"]

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Tries again while there is no answer, because a relay may just be starting."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    async with self.http.request(
                        method, self.url + path, json=body, headers=headers
                    ) as response:
                        assert response.status < 400, (path, await response.text())
                        return await response.json()
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    async def approve(self, link: str, *, in_the_old_way: bool = False) -> None:
        key = parse_link_key(link)
        assert key is not None
        if in_the_old_way:
            response = approve_with_secret(key, self.secret.secret)
        else:
            response = approve_with_content_key(key, self.secret.content_keys.public)
        await self.request(
            "POST", "/v1/auth/response", {"publicKey": to_base64(key), "response": response}
        )

    # ── Sessions ────────────────────────────────────────────────────────────────────────────

    async def list_sessions(self) -> list[DeviceSession]:
        found = (await self.request("GET", "/v1/sessions"))["sessions"]
        return [self._open_session(one) for one in found]

    async def list_all_sessions(self) -> list[DeviceSession]:
        """List all sessions, page by page."""
        found: list[DeviceSession] = []
        cursor = ""
        while True:
            page = await self.request("GET", f"/v2/sessions?limit=200{cursor}")
            found += [self._open_session(one) for one in page["sessions"]]
            if not page["hasNext"]:
                return found
            cursor = f"&cursor={page['nextCursor']}"

    def _open_session(self, row: dict[str, Any]) -> DeviceSession:
        wrapped = from_base64(row["dataEncryptionKey"])
        assert wrapped is not None
        key = unwrap_key(self.secret.content_keys.secret, wrapped)
        assert key is not None
        session = DeviceSession(row["id"], key)
        session.metadata = session.sealer.open(row["metadata"])
        state = row["agentState"]
        session.state = session.sealer.open(state) if state else {}
        return session

    async def wait_for_session(self, agent: str = "crab") -> DeviceSession:
        """Wait for the session of an agent."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for session in await self.list_sessions():
                    if session.metadata["name"] == agent:
                        return session
                await asyncio.sleep(0.02)

    async def send_text(self, session: DeviceSession, text: str, **rest: Any) -> str:
        body = {
            "role": "user",
            "content": {"type": "text", "text": text},
            "meta": {"sentFrom": "web"},
        }
        return await self.send_body(session, body, **rest)

    async def send_body(self, session: DeviceSession, body: Any, local_id: str = "") -> str:
        local_id = local_id or str(uuid.uuid4())
        message = {"content": session.sealer.seal(body), "localId": local_id}
        await self.request("POST", f"/v3/sessions/{session.id}/messages", {"messages": [message]})
        return local_id

    def build_envelope(self, event: dict[str, Any]) -> dict[str, Any]:
        return {"id": new_id(), "time": 1, "role": "user", "ev": event}

    async def read_messages(self, session: DeviceSession) -> list[OpenedMessage]:
        """Read all messages, page by page."""
        found: list[OpenedMessage] = []
        after, has_more = 0, True
        while has_more:
            path = f"/v3/sessions/{session.id}/messages?after_seq={after}&limit=100"
            page = await self.request("GET", path)
            found += [self.open_message(session, message) for message in page["messages"]]
            after = found[-1].seq if found else 0
            has_more = page["hasMore"]
        return found

    def open_message(self, session: DeviceSession, message: dict[str, Any]) -> OpenedMessage:
        plain = session.sealer.open(message["content"]["c"])
        return OpenedMessage(
            message["seq"], message["localId"], plain if isinstance(plain, dict) else {}
        )

    async def read_envelopes(self, session: DeviceSession) -> list[Envelope]:
        return [
            said.envelope for said in await self.read_messages(session) if said.envelope is not None
        ]

    async def wait_for_envelopes(
        self,
        session: DeviceSession,
        is_so: Callable[[list[Envelope]], bool],
        patience: float = PATIENCE,
    ) -> list[Envelope]:
        """Return the envelopes once the condition holds."""
        envelopes: list[Envelope] = []
        try:
            async with asyncio.timeout(patience):
                while True:
                    envelopes = await self.read_envelopes(session)
                    if is_so(envelopes):
                        return envelopes
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(format_envelopes(envelopes)) from None

    async def wait_for_turns(
        self, session: DeviceSession, turns: int = 1, patience: float = PATIENCE
    ) -> list[Envelope]:
        return await self.wait_for_envelopes(
            session, lambda envelopes: len(list_turn_statuses(envelopes)) >= turns, patience
        )

    # ── Files ───────────────────────────────────────────────────────────────────────────────

    async def upload(self, session: DeviceSession, data: bytes) -> str:
        sealed = seal_blob(derive_blob_key(session.key), data)
        base = f"/v1/sessions/{session.id}/attachments"
        reply = await self.request("POST", f"{base}/request-upload", {"size": len(sealed)})
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.http.put(reply["uploadUrl"], data=sealed, headers=headers) as response:
            assert response.status == 200
        return str(reply["ref"])

    async def download(self, session: DeviceSession, ref: str) -> bytes | None:
        base = f"/v1/sessions/{session.id}/attachments"
        reply = await self.request("POST", f"{base}/request-download", {"ref": ref})
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.http.get(reply["downloadUrl"], headers=headers) as response:
            assert response.status == 200
            return open_blob(derive_blob_key(session.key), await response.read())

    # ── The socket ──────────────────────────────────────────────────────────────────────────

    async def connect(self) -> None:
        self._io = socketio.AsyncClient(reconnection=False)
        self._io.on("*", self._on_event)
        await self._io.connect(
            self.url,
            socketio_path="/v1/updates",
            transports=["websocket"],
            auth={"token": self.token, "clientType": "user-scoped"},
            wait_timeout=PATIENCE,
        )

    async def disconnect(self) -> None:
        if self._io is not None:
            with suppress(Exception):
                await self._io.shutdown()
            http = self._io.eio.http  # the library loses it if it is cancelled meanwhile
            if http is not None and not http.closed:
                await http.close()
            self._io = None

    async def _on_event(self, name: str, payload: Any = None) -> None:
        self.events.append((name, payload))
        self.event_arrived.set()

    async def wait_for_event(self, is_it: Callable[[str, Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                self.event_arrived.clear()
                for name, payload in self.events:
                    if is_it(name, payload):
                        return payload
                await self.event_arrived.wait()

    async def call_method(self, session: DeviceSession, method: str, **params: Any) -> Any:
        """Return None for an empty answer."""
        assert self._io is not None
        sealed = session.sealer.seal(params)
        return await self.call_sealed(session, method, sealed)

    async def call_sealed(self, session: DeviceSession, method: str, sealed: str) -> Any:
        assert self._io is not None
        request = {"method": f"{session.id}:{method}", "params": sealed}
        async with asyncio.timeout(PATIENCE):
            while True:  # a session registers its methods moments after it appears
                answer = await self._io.call("rpc-call", request, timeout=PATIENCE)
                if answer["ok"]:
                    return session.sealer.open(answer["result"])
                if not any(words in answer["error"] for words in ("not available", "try again")):
                    return answer
                await asyncio.sleep(0.05)


@asynccontextmanager
async def open_device(
    url: str, secret: MasterSecret | None = None, invite: str = ""
) -> AsyncIterator[DeviceClient]:
    async with DeviceClient(url, secret, invite) as device:
        yield device


# ── What came of it ────────────────────────────────────────────────────────────────────────────


def list_turn_statuses(envelopes: list[Envelope]) -> list[str]:
    return [e.ev.status for e in envelopes if isinstance(e.ev, TurnEnd)]


def list_texts(envelopes: list[Envelope], role: str = "agent") -> list[str]:
    return [
        e.ev.text
        for e in envelopes
        if isinstance(e.ev, TextEvent) and e.role == role and not e.ev.thinking
    ]


def list_event_tags(envelopes: list[Envelope]) -> list[str]:
    return [str(type(e.ev).__struct_config__.tag) for e in envelopes]


def format_envelopes(envelopes: list[Envelope]) -> str:
    return "\n".join(f"{e.time} {e.role} {e.turn[:6]} {e.subagent[:6]} {e.ev}" for e in envelopes)


def check_order(envelopes: list[Envelope]) -> list[Envelope]:
    """Check the order of a session's envelopes."""
    order = EnvelopeOrder()
    for envelope in envelopes:
        try:
            order.check_next(envelope)
        except ValueError as error:
            raise AssertionError(f"{error}: {envelope}\n{format_envelopes(envelopes)}") from None
    return envelopes
