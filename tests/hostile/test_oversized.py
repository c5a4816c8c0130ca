"""As much as a frame holds, in every field: a clear answer, and nobody else waits for it."""

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

# Room for the envelope around the field, and for what a request needs beside it.
FRAME_ROOM = MAX_FRAME - 1024
PART_BYTES = 1024 * 1024
# One of each kind that is read, kept or shown in a way of its own.
WHOLE_FIELDS = {
    *("SendMsg.content", "GetConversationHistoryMsg.file_path", "CreateAgentMsg.config"),
    *("PublishEventMsg.payload", "MemoryEntry.content", "SearchSessionsMsg.query"),
}
# While a request of that size is read, checked, kept and shown to a model.
PEAK = 320 << 20
BLOCKED = 0.15
# The model answers these with a word.
SCRIPT = "!say ok\n"


def list_fields() -> Iterator[str]:
    return (f"{name}.{field}" for name, texts in FIELDS.items() for field in texts)


async def expect_clean_answer(peer: RawPeer, request: wire.ClientMessage, told: str) -> None:
    answer = await request_answer(peer, request)
    error = answer.error.message or answer.stream.end.error
    assert "internal error (" not in error, f"{told}: {error[:300]}"
    assert len(error) < 1000, f"{told}: {error[:1000]}"


async def fill_fields(fired_at: AttackedDaemon, size_of: Callable[[str], int]) -> None:
    peer = await fired_at.peer()
    for told in list_fields():
        name, _, field = told.partition(".")
        value = SCRIPT if field == "content" else ""
        for request in make_requests(name, field, value.ljust(size_of(told), "x")):
            route = request.WhichOneof("msg")
            assert route is not None
            if ROUTES[route].shape is not ReplyShape.FEED:
                await expect_clean_answer(peer, request, f"{route}: {told}")
    await peer.close()


async def check_field_sizes(tmp_path: Path, size_of: Callable[[str], int]) -> None:
    async with attack_target(tmp_path) as fired_at:
        async with fired_at.ping_beside() as watch:
            await fill_fields(fired_at, size_of)
        log.info("%s, at most %d MiB", watch, fired_at.peak_bytes >> 20)
        watch.check(BLOCKED)
        assert fired_at.peak_bytes < PEAK


@pytest.mark.slow
@pytest.mark.clock
async def test_any_field_can_be_long(tmp_path: Path) -> None:
    await check_field_sizes(
        tmp_path, lambda told: FRAME_ROOM if told in WHOLE_FIELDS else PART_BYTES
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.clock
async def test_any_field_can_be_as_long_as_a_frame(tmp_path: Path) -> None:
    await check_field_sizes(tmp_path, lambda told: FRAME_ROOM)


def make_large_requests() -> Iterator[wire.ClientMessage]:
    """A great number of small things, and things within things."""
    note = wire.MemoryEntry(name="n", kind="note", content="c")
    aliases = wire.MemoryEntry(name="n", kind="note", aliases=["a" * 3] * 1_000_000)
    different = wire.MemoryEntry(name="n", kind="note", aliases=map(str, range(300_000)))
    entries = [wire.MemoryEntry(name=str(n), kind="note", content="c") for n in range(50_000)]
    for given in ([note] * 300_000, [aliases], [different], entries):
        yield wire.ClientMessage(replace_memory=wire.ReplaceMemoryMsg(agent="crab", entries=given))
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
async def test_any_list_can_be_long_and_anything_deep(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as fired_at:
        async with fired_at.ping_beside() as watch:
            peer = await fired_at.peer()
            for request in make_large_requests():
                before = len(watch.daemon_times)
                told = f"{request.WhichOneof('msg')} of {request.ByteSize()} bytes"
                await expect_clean_answer(peer, request, told)
                if (most := max(watch.daemon_times[before:], default=0)) > 0.03:
                    log.info("%s held the loop up for %.0f ms", told, most * 1000)
            await peer.close()
        log.info("%s, at most %d MiB", watch, fired_at.peak_bytes >> 20)
        watch.check(BLOCKED)
        assert fired_at.peak_bytes < PEAK


def make_crowded_frames() -> Iterator[bytes]:
    """Frames of two bytes each, which would be messages of a hundred."""
    entries = encode_field((1, DELIMITED, b"crab")) + b"\x1a\x00" * (FRAME_ROOM // 2)
    yield encode_field((107, DELIMITED, entries))
    yield b"\x0a\x00\x12\x00" * (FRAME_ROOM // 4)  # one request after the other
    yield b"\xf2\x01\x00" * (FRAME_ROOM // 3)
    yield b"\xc0\x3e\x01" * (FRAME_ROOM // 3)  # a field nobody knows


@pytest.mark.clock
async def test_a_frame_of_nothing_but_small_messages_is_not_taken_apart(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as fired_at:
        async with fired_at.ping_beside() as watch:
            peer = await fired_at.peer()
            for data in make_crowded_frames():
                peer.writer.write(frame_bytes(data))
                assert "too many parts" in await peer.expect_error(413)
            peer.writer.write(
                frame_bytes(b"\x0b\x0c" * (FRAME_ROOM // 2))
            )  # groups, each with its end
            assert "a group" in await peer.expect_error(400)
            await peer.close()
        log.info("%s, at most %d MiB", watch, fired_at.peak_bytes >> 20)
        watch.check(BLOCKED)
        assert fired_at.peak_bytes < PEAK


@pytest.mark.clock
async def test_a_frame_past_the_bound_is_told_so_and_others_go_on(tmp_path: Path) -> None:
    async with attack_target(tmp_path) as fired_at:
        resident = fired_at.resident_bytes
        async with fired_at.ping_beside() as watch:
            for size in (MAX_FRAME + 1, 2**31, 2**32 - 1):
                peer = await fired_at.peer()
                peer.writer.write(size.to_bytes(4, "big") + bytes(100_000))
                assert "16777216" in await peer.expect_error(413)
                await peer.expect_close()
                await peer.close()
            peers = [await fired_at.peer() for _ in range(200)]
            for peer in peers:  # each promises as much as there may be, and brings next to nothing
                peer.writer.write(MAX_FRAME.to_bytes(4, "big") + b"few")
                await peer.writer.drain()
            await fired_at.check_answers()
            for peer in peers:
                await peer.close()
        watch.check()
        assert fired_at.resident_bytes - resident < 32 << 20


def test_counting_the_parts_of_a_frame_ends_whatever_is_in_it() -> None:
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
