"""A device that numbers its messages, as the page does, and a relay that cheats."""

import hashlib
import secrets
import sqlite3
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession
from crabtalk_web.relay.ids import new_id
from crabtalk_web.sealing import from_base64, to_base64
from crabtalk_web.stream import Envelope, ServiceEvent


@dataclass
class SealedMessage:
    """A sealed message, sent or not."""

    content: str
    local_id: str


@dataclass
class MessageChain:
    """One chain of one device in one session."""

    phone: DeviceClient
    session: DeviceSession
    device: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    chain: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    counter: int = 0
    previous: str = ""

    def seal_text(self, text: str) -> SealedMessage:
        """Seal the next message of the chain without sending it."""
        return self.seal({"role": "user", "content": {"type": "text", "text": text}})

    def seal(self, body: dict[str, Any], session: str = "") -> SealedMessage:
        self.counter += 1
        link = {
            "device": self.device,
            "chain": self.chain,
            "session": session or self.session.id,
            "counter": self.counter,
        }
        if self.previous:
            link["previous"] = self.previous
        content = self.session.sealer.seal({**body, "crabtalkChain": link})
        sealed = from_base64(content)
        assert sealed is not None
        self.previous = to_base64(hashlib.sha256(sealed).digest())
        return SealedMessage(content, str(uuid.uuid4()))

    async def send(self, sealed: SealedMessage, local_id: str = "") -> None:
        """Send a message. Another local id simulates a relay that replays it."""
        message = {"content": sealed.content, "localId": local_id or sealed.local_id}
        path = f"/v3/sessions/{self.session.id}/messages"
        await self.phone.request("POST", path, {"messages": [message]})

    async def send_text(self, text: str) -> SealedMessage:
        sealed = self.seal_text(text)
        await self.send(sealed)
        return sealed


def new_local_id() -> str:
    return str(uuid.uuid4())


def deliver_again(data: Path, session: str, seq: int) -> None:
    """Let a relay deliver a message a second time under the same local id, which ours never
    does."""
    with sqlite3.connect(data / "relay.db") as db:
        db.execute("DROP INDEX IF EXISTS messages_by_local_id")
        number, last = db.execute(
            "SELECT no, seq FROM sessions WHERE id = ?", (session,)
        ).fetchone()
        local, content, at = db.execute(
            "SELECT local_id, content, created_at FROM messages WHERE session = ? AND seq = ?",
            (number, seq),
        ).fetchone()
        db.execute(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)",
            (number, last + 1, new_id(), local, content, at),
        )
        db.execute("UPDATE sessions SET seq = ? WHERE no = ?", (last + 1, number))
    db.close()


def find_refusal_notices(envelopes: list[Envelope]) -> list[str]:
    """The service lines about refused messages."""
    return [
        e.ev.text
        for e in envelopes
        if isinstance(e.ev, ServiceEvent) and e.ev.text.startswith("**Not delivered:**")
    ]


def find_refusal_reasons(envelopes: list[Envelope]) -> list[str]:
    return [
        str(e.ev.refused["reason"])
        for e in envelopes
        if isinstance(e.ev, ServiceEvent) and isinstance(e.ev.refused, dict)
    ]
