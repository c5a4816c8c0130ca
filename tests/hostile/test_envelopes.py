"""A hostile device that has the keys: its correctly sealed messages are read or skipped, and other
devices are not affected."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps.web.tests.gateway.device_client import list_texts, list_turn_statuses
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.stream import decode_body
from tests.hostile.corruption import corrupt_bytes, corrupt_json, corrupt_value

ENVELOPE = {"id": "x" * 24, "time": 1, "role": "user", "ev": {"t": "text", "text": "hello"}}
BODIES: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": {"type": "text", "text": "hello"}, "meta": {"sentFrom": "web"}},
    {"role": "session", "content": ENVELOPE},
    {
        "role": "session",
        "content": {**ENVELOPE, "ev": {"t": "file", "ref": "../x", "name": "../../y"}},
    },
    {
        "role": "session",
        "content": {**ENVELOPE, "role": "agent", "ev": {"t": "turn-end", "status": "x"}},
    },
    {
        "role": "agent",
        "content": {"type": "output", "data": {"type": "assistant", "message": {"content": []}}},
    },
    {"role": "agent", "content": {"type": "codex", "data": {"type": "message", "message": "so"}}},
)


def test_any_body_is_read_or_skipped() -> None:
    rng = random.Random(20261116)
    decoded = 0
    for number in range(20_000):
        data = corrupt_json(rng, rng.choice(BODIES))
        try:
            decoded += decode_body(data) is not None
        except Exception as error:
            raise AssertionError(f"number {number}: {error!r} of {data!r}") from error
    assert decoded > 500


def test_any_damaged_body_is_read_or_skipped() -> None:
    rng = random.Random(7)
    for number in range(5000):
        data = corrupt_bytes(rng, json.dumps(rng.choice(BODIES)).encode())
        try:
            decode_body(data)
        except Exception as error:
            raise AssertionError(f"number {number}: {error!r} of {data!r}") from error


@pytest.mark.one_loop
async def test_a_device_that_sends_nonsense_does_not_block_others(tmp_path: Path) -> None:
    rng = random.Random(3)
    async with open_world(tmp_path) as w:
        session = await w.phone.wait_for_session()
        for number in range(60):
            body = corrupt_value(rng, rng.choice(BODIES))
            await w.phone.send_body(session, make_sealable(body), f"odd-{number}")
        await w.phone.send_text(session, "!say still here")
        envelopes = await w.phone.wait_for_envelopes(
            session, lambda received: "still here" in list_texts(received)
        )
        assert set(list_turn_statuses(envelopes)) <= {"completed", "failed", "cancelled"}
    outside = {path.name for path in tmp_path.parent.iterdir()} - {tmp_path.name}
    assert not any(name in outside for name in ("x", "y")), "file names do not lead outside"


def make_sealable(body: Any) -> Any:
    """Replace what JSON cannot encode, because a device cannot send it."""
    return msgspec.json.decode(
        json.dumps(body).encode().decode("ascii").replace("\\ud800", "?").encode()
    )
