"""Fields as large as a frame allows: the answers are clear, and other clients do not wait."""

import json
import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from crabtalk.protocol import MAX_FRAME, ROUTES, ReplyShape, wire
from tests.hostile.attacked_daemon import AttackedDaemon, attack_target
from tests.hostile.corruption import corrupt_bytes
from tests.hostile.hostile_frames import DELIMITED, encode_field, frame_bytes
from tests.hostile.test_paths import FIELDS, make_requests, request_answer
from tests.protocol.test_request_parser import is_refused
from tests.scripted_server import RawPeer

log = logging.getLogger(__name__)
pytestmark = pytest.mark.one_loop

# Leaves room for the envelope and for the other required fields.
FRAME_ROOM = MAX_FRAME - 1024
PART_BYTES = 1024 * 1024
# One field of each kind that is read, stored or shown in a different way.
WHOLE_FIELDS = {
    *("SendMsg.content", "GetConversationHistoryMsg.file_path", "CreateAgentMsg.config"),
    *("PublishEventMsg.payload", "MemoryEntry.content", "SearchSessionsMsg.query"),
}
# Peak memory while a request of that size is read, checked, stored and sent to a model.
PEAK = 320 << 20
BLOCKED = 0.15
# The model answers these with a word.
SCRIPT = "!say ok\n"


def list_fields() -> Iterator[str]:
    return (f"{name}.{field}" for name, texts in FIELDS.items() for field in texts)


async def expect_clean_answer(peer: RawPeer, request: wire.ClientMessage, description: str) -> None:
    answer = await request_answer(peer, request)
    error = answer.error.message or answer.stream.end.error
    assert "internal error (" not in error, f"{description}: {error[:300]}"
    assert len(error) < 1000, f"{description}: {error[:1000]}"


async def fill_fields(attacked: AttackedDaemon, size_of: Callable[[str], int]) -> None:
    peer = await attacked.peer()
    for field_name in list_fields():
        name, _, field = field_name.partition(".")
        value = SCRIPT if field == "content" else ""
        for request in make_requests(name, field, value.ljust(size_of(field_name), "x")):
            route = request.WhichOneof("msg")
            assert route is not None
            if ROUTES[route].shape is not ReplyShape.FEED:
                await expect_clean_answer(peer, request, f"{route}: {field_name}")
    await peer.close()


async def check_field_sizes(tmp_path: Path, size_of: Callable[[str], int]) -> None:
    async with attack_target(tmp_path) as attacked:
        async with attacked.ping_beside() as monitor:
            await fill_fields(attacked, size_of)
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check(BLOCKED)
        assert attacked.peak_bytes < PEAK


@pytest.mark.slow
@pytest.mark.clock
async def test_any_field_can_be_long(tmp_path: Path) -> None:
    await check_field_sizes(
        tmp_path, lambda name: FRAME_ROOM if name in WHOLE_FIELDS else PART_BYTES
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.clock
async def test_any_field_can_be_as_long_as_a_frame(tmp_path: Path) -> None:
    await check_field_sizes(tmp_path, lambda name: FRAME_ROOM)


def make_large_requests() -> Iterator[wire.ClientMessage]:
    """Requests with very many small items, or with deep nesting."""
    note = wire.MemoryEntry(name="n", kind="note", content="c")
    aliases = wire.MemoryEntry(name="n", kind="note", aliases=["a" * 3] * 1_000_000)
    different = wire.MemoryEntry(name="n", kind="note", aliases=map(str, range(300_000)))
    entries = [wire.MemoryEntry(name=str(n), kind="note", content="c") for n in range(50_000)]
    for entry_list in ([note] * 300_000, [aliases], [different], entries):
        yield wire.ClientMessage(
            replace_memory=wire.ReplaceMemoryMsg(agent="crab", entries=entry_list)
        )
    settings: tuple[Any, ...] = (
        *(
            {"tools": [f"t{n}" for n in range(30_000)]},
            {"hooks": {f"h{n}": {} for n in range(20_000)}},
        ),
        *({"mcps": [{"name": f"m{n}"} for n in range(10_000)]}, {"skills": ["x"] * 60_000}),
    )
    texts = (*map(json.dumps, settings), "[" * 250_000, '{"hooks":' * 25_000, "1" * 250_000)
    for text in texts:
        update = wire.UpdateAgentMsg(name="twin", config=text, prompt="p")
        yield wire.ClientMessage(update_agent=update)
    for query in ("a " * 500_000, "(" * 500_000, '"' * 500_001, "海" * 300_000, "a* OR " * 100_000):
        yield wire.ClientMessage(search_sessions=wire.SearchSessionsMsg(query=query))
        yield wire.ClientMessage(search_memory=wire.SearchMemoryMsg(agent="crab", query=query))
    every = wire.SearchSessionsMsg(
        query="x", limit=2**32 - 1, context_before=2**32 - 1, context_after=2**32 - 1
    )
    yield wire.ClientMessage(search_sessions=every)
    yield wire.ClientMessage(unsubscribe_event=wire.UnsubscribeEventMsg(id=2**64 - 1))
    page = wire.ListMessagesMsg(agent="crab", offset=2**64 - 1, limit=2**32 - 1)
    yield wire.ClientMessage(list_messages=page)


@pytest.mark.slow
@pytest.mark.clock
async def test_lists_can_be_long_and_values_deeply_nested(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as attacked:
        async with attacked.ping_beside() as monitor:
            peer = await attacked.peer()
            for request in make_large_requests():
                before = len(monitor.daemon_times)
                description = f"{request.WhichOneof('msg')} of {request.ByteSize()} bytes"
                await expect_clean_answer(peer, request, description)
                if (most := max(monitor.daemon_times[before:], default=0)) > 0.03:
                    log.info("%s held the loop up for %.0f ms", description, most * 1000)
            await peer.close()
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check(BLOCKED)
        assert attacked.peak_bytes < PEAK


def make_crowded_frames() -> Iterator[bytes]:
    """Frames full of two-byte parts, each of which would become an object of a hundred bytes."""
    entries = encode_field((1, DELIMITED, b"crab")) + b"\x1a\x00" * (FRAME_ROOM // 2)
    yield encode_field((107, DELIMITED, entries))
    yield b"\x0a\x00\x12\x00" * (FRAME_ROOM // 4)  # one request after the other
    yield b"\xf2\x01\x00" * (FRAME_ROOM // 3)
    yield b"\xc0\x3e\x01" * (FRAME_ROOM // 3)  # an unknown field


@pytest.mark.clock
async def test_a_frame_full_of_tiny_messages_is_refused_without_parsing(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as attacked:
        async with attacked.ping_beside() as monitor:
            peer = await attacked.peer()
            for data in make_crowded_frames():
                peer.writer.write(frame_bytes(data))
                assert "too many parts" in await peer.expect_error(413)
            # Groups, each with its end.
            peer.writer.write(frame_bytes(b"\x0b\x0c" * (FRAME_ROOM // 2)))
            assert "a group" in await peer.expect_error(400)
            await peer.close()
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check(BLOCKED)
        assert attacked.peak_bytes < PEAK


@pytest.mark.clock
async def test_a_frame_beyond_the_limit_is_refused_without_affecting_others(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as attacked:
        resident = attacked.resident_bytes
        async with attacked.ping_beside() as monitor:
            for size in (MAX_FRAME + 1, 2**31, 2**32 - 1):
                peer = await attacked.peer()
                peer.writer.write(size.to_bytes(4, "big") + bytes(100_000))
                assert "16777216" in await peer.expect_error(413)
                await peer.expect_close()
                await peer.close()
            peers = [await attacked.peer() for _ in range(200)]
            for peer in peers:  # each announces a frame of the maximum size, but sends three bytes
                peer.writer.write(MAX_FRAME.to_bytes(4, "big") + b"few")
                await peer.writer.drain()
            await attacked.check_answers()
            for peer in peers:
                await peer.close()
        monitor.check()
        assert attacked.resident_bytes - resident < 32 << 20


def test_counting_the_parts_of_a_frame_always_ends() -> None:
    rng = random.Random(13)
    whole = wire.ClientMessage(send=wire.SendMsg(agent="crab", content="x" * (2 * PART_BYTES)))
    data = whole.SerializeToString()
    assert not is_refused(data)
    assert not is_refused(data[:-1])
    entries = [wire.MemoryEntry(name=str(n), kind="note", content="c" * 20) for n in range(50_000)]
    memory = wire.ReplaceMemoryMsg(agent="crab", entries=entries)
    assert not is_refused(wire.ClientMessage(replace_memory=memory).SerializeToString())
    for size in (1, 10, 1000):
        for filler in (b"\xff", b"\x80", b"\0", b"\x0b", b"\x0a\xff", b"\xda\x06"):
            is_refused(rng.randbytes(size) + filler * (2 * PART_BYTES))
            is_refused(bytearray(corrupt_bytes(rng, data)))
