"""A fake gateway: a session of a person's account, in which a test writes the gateway's
messages."""

import uuid
from typing import Any

from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession
from crabtalk_web.sealing import DataSealer, new_key, to_base64, wrap_key
from crabtalk_web.stream import derive_id

BATCH = 100


async def create_session(
    person: DeviceClient, agent: str = "crab", **metadata: Any
) -> DeviceSession:
    key = new_key()
    fields = {"name": agent, "host": "attic", "path": "/", **metadata}
    wrapped = to_base64(wrap_key(person.secret.content_keys.public, key))
    reply = await person.request(
        "POST",
        "/v1/sessions",
        {
            "tag": uuid.uuid4().hex,
            "metadata": DataSealer(key).seal(fields),
            "dataEncryptionKey": wrapped,
        },
    )
    return DeviceSession(reply["session"]["id"], key, fields)


def build_text_body(number: int, text: str = "") -> dict[str, Any]:
    """A text of the agent, in a turn of its own."""
    return build_body(number, {"t": "text", "text": text or f"said {number}"})


def build_body(number: int, event: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The body of an agent's envelope, as gateways send it."""
    content = {
        "id": derive_id("room", number, str(sorted(event))),
        "time": 1_700_000_000_000 + number,
        "role": "agent",
        "turn": derive_id("turn", number),
        "ev": event,
        **more,
    }
    return {"role": "session", "content": content, "meta": {"sentFrom": "crabtalk"}}


async def send_bodies(person: DeviceClient, session: DeviceSession, *bodies: Any) -> None:
    """Send all of them, as fast as the relay accepts them."""
    for first in range(0, len(bodies), BATCH):
        messages = [
            {"content": session.sealer.seal(body), "localId": uuid.uuid4().hex}
            for body in bodies[first : first + BATCH]
        ]
        path = f"/v3/sessions/{session.id}/messages"
        await person.request("POST", path, {"messages": messages})
