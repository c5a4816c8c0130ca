"""Old clients get the same bytes as ever: exchanges recorded at e1b208b are replayed here.

A client that waits for each answer sends a recording byte for byte. Every frame it gets must be the
recorded one, after the documented values of `normaliser` were rewritten.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.protocol import ROUTES, encode_frame, wire

from .normaliser import REMOVED_FIELDS, REPLACED_FIELDS, ROUNDED_FIELDS, normalise_payload
from .recording_daemon import RecordingDaemon, start_recording_daemon

EXCHANGES = sorted((Path(__file__).parent / "exchanges").glob("*.json"))
# The number of requests in the protocol when the exchanges were recorded.
REQUESTS_THEN = 43
PING = encode_frame(wire.ClientMessage(ping=wire.Ping()))
PONG = wire.ServerMessage(pong=wire.Pong()).SerializeToString()


def load_recording(path: Path) -> dict[str, Any]:
    recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recording


@pytest.mark.req("wire.recorded_exchanges")
@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("path", EXCHANGES, ids=lambda path: path.stem)
async def test_a_client_that_waits_for_answers_gets_the_recorded_bytes(
    path: Path, transport: str, tmp_path: Path
) -> None:
    steps = load_recording(path)["steps"]
    async with start_recording_daemon(tmp_path, transport) as daemon:
        for step in steps:
            await replay_step(daemon, step)
        await expect_nothing_more(daemon, steps)


async def replay_step(daemon: RecordingDaemon, step: dict[str, Any]) -> None:
    if "do" in step:
        await daemon.perform(step["do"])
        return
    connection = await daemon.connection(step["on"])
    if "send" in step:
        connection.send(bytes.fromhex(step["send"]))
        return
    for expected, words in zip(step["receive"], step["words"], strict=True):
        payload = await connection.receive()
        assert payload is not None, f"the daemon closed the connection before: {words}"
        normalised = normalise_payload(payload)
        message = wire.ServerMessage.FromString(normalised)
        assert normalised == normalise_payload(bytes.fromhex(expected)), (
            f"recorded:\n{words}\nnow:\n{message}"
        )
    if step["then_closed"]:
        assert await connection.receive() is None


async def expect_nothing_more(daemon: RecordingDaemon, steps: list[dict[str, Any]]) -> None:
    """The next frame on each connection that is still open is the answer to a ping."""
    closed = {step["on"] for step in steps if step.get("then_closed")}
    for name in {step["on"] for step in steps if "on" in step} - closed:
        if not name.endswith("feed"):
            connection = await daemon.connection(name)
            connection.send(PING)
            assert await connection.receive() == PONG


@pytest.mark.req("wire.recorded_exchanges")
def test_every_request_of_that_protocol_is_in_a_recording() -> None:
    sent = set()
    for path in EXCHANGES:
        for step in load_recording(path)["steps"]:
            if "send" in step and step["words"] != "raw bytes":
                message = wire.ClientMessage.FromString(bytes.fromhex(step["send"])[4:])
                sent.add(message.WhichOneof("msg"))
    assert sent <= set(ROUTES)
    assert len(sent) == REQUESTS_THEN


# ── The normaliser ─────────────────────────────────────────────────────────────────────────────


def test_the_normaliser_names_fields_that_exist() -> None:
    for path in (*REPLACED_FIELDS, *REMOVED_FIELDS, *ROUNDED_FIELDS):
        descriptor: Descriptor | None = wire.ServerMessage.DESCRIPTOR
        for number in path.split("."):
            assert descriptor is not None
            descriptor = descriptor.fields_by_number[int(number)].message_type


def test_the_normaliser_rewrites_only_its_fields() -> None:
    first = wire.ServerMessage(
        stream=wire.StreamEvent(start=wire.StreamStart(agent="crab", run_id="a"))
    )
    second = wire.ServerMessage(
        stream=wire.StreamEvent(start=wire.StreamStart(agent="crab", run_id="longer"))
    )
    other = wire.ServerMessage(stream=wire.StreamEvent(start=wire.StreamStart(agent="crab")))
    assert normalise_payload(first.SerializeToString()) == normalise_payload(
        second.SerializeToString()
    )
    assert normalise_payload(first.SerializeToString()) != normalise_payload(
        other.SerializeToString()
    )


def test_the_normaliser_rounds_scores() -> None:
    def encode_hit(score: float) -> bytes:
        hits = wire.SessionHitList(hits=[wire.SessionHit(agent="crab", score=score)])
        return normalise_payload(wire.ServerMessage(session_hits=hits).SerializeToString())

    assert encode_hit(0.9149543642997742) == encode_hit(0.914954278339128)
    assert encode_hit(0.9149) != encode_hit(0.9150)


def test_the_normaliser_notices_an_unknown_field() -> None:
    known = wire.ServerMessage(pong=wire.Pong()).SerializeToString()
    assert normalise_payload(known + b"\xc0\x0c\x01") != normalise_payload(known)


@given(st.binary(max_size=40))
def test_the_normaliser_keeps_all_other_fields(content: bytes) -> None:
    payload = wire.ServerMessage(extension=content).SerializeToString()
    assert normalise_payload(payload) == payload


async def test_a_changed_byte_fails_the_replay(tmp_path: Path) -> None:
    step = {"on": "main", "receive": ["1201"], "words": ["changed"], "then_closed": False}
    async with start_recording_daemon(tmp_path) as daemon:
        await replay_step(daemon, {"on": "main", "send": PING.hex()})
        with pytest.raises((AssertionError, ValueError)):
            await asyncio.wait_for(replay_step(daemon, step), 10)
