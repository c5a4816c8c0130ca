"""Frames made of many small parts: refused if there are too many, read quickly otherwise, and other
clients wait for neither."""

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from crabtalk.protocol import LARGE_FRAME, MAX_FRAME, request_parser, wire
from tests.hostile.attacked_daemon import AttackedDaemon, attack_target
from tests.hostile.hostile_frames import DELIMITED, encode_field, frame_bytes

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.one_loop, pytest.mark.timeout(120)]

# Leaves room for the envelope.
FRAME_ROOM = MAX_FRAME - 1024
# Parts of an entry: the shortest ones, and longer encodings.
ALIASES = (b"\x2a\x00", b"\x2a\x01a", b"\x2a\x80\x80\x80\x80\x00")
KNOWN = (b"\x12\x00", b"\x08\x01", b"\x08" + b"\x80" * 8 + b"\x01")
UNKNOWN = (b"\x38\x01", b"\x3a\x00", b"\x80\x7d\x01", b"\x39" + bytes(8), b"\x3d" + bytes(4))
PEAK = 320 << 20
# Every fifth structure, or all in the slow tests.
WHICH = pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
# Counting parts yields to other requests, so it takes long on a busy machine.
ANSWER_SECONDS = 100


def encode_memory_request(inside: bytes) -> bytes:
    return encode_field((107, DELIMITED, encode_field((1, DELIMITED, b"crab")) + inside))


def encode_entry(inside: bytes) -> bytes:
    return encode_field((3, DELIMITED, inside))


def generate_structures(count: int, inside: int) -> Iterator[bytes]:
    """Frames with up to `count` parts, with up to `inside` of them in one entry."""
    for part in (*ALIASES, *KNOWN, *UNKNOWN):
        most = min(count, FRAME_ROOM // len(part))
        yield encode_memory_request(
            encode_entry(part * min(most, inside)) * max(1, most // (inside + 1))
        )
    yield encode_memory_request(b"\x20\x01" * min(count, FRAME_ROOM // 2))
    for part in ALIASES[:2]:
        for entries in (10_000, 100_000):
            per_entry = min(count // entries - 1, FRAME_ROOM // entries // len(part) - 2)
            yield encode_memory_request(encode_entry(part * per_entry) * entries)


def make_slow_frame(size: int) -> bytes:
    """A frame of entries with the allowed number of empty texts."""
    entry = encode_entry(b"\x2a\x00" * 4000)
    return encode_memory_request(entry * (size // len(entry)))


async def send_frame(attacked: AttackedDaemon, data: bytes) -> wire.ServerMessage:
    peer = await attacked.peer()
    peer.writer.write(frame_bytes(data))
    async with asyncio.timeout(ANSWER_SECONDS):
        answer = await peer.expect()
    await peer.close()
    return answer


@pytest.mark.req("bounds.parts")
@pytest.mark.clock
@WHICH
async def test_a_frame_of_too_many_parts_is_refused_wherever_they_are(
    tmp_path: Path, every: int
) -> None:
    async with attack_target(tmp_path) as attacked:
        async with attacked.ping_beside() as monitor:
            for data in islice(generate_structures(FRAME_ROOM, FRAME_ROOM), 0, None, every):
                answer = await send_frame(attacked, data)
                assert answer.error.code == 413
                assert "too many parts" in answer.error.message
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check()
        assert attacked.peak_bytes < PEAK


@pytest.mark.req("bounds.parts")
@pytest.mark.clock
@WHICH
async def test_the_maximum_number_of_parts_does_not_delay_others(
    tmp_path: Path, every: int
) -> None:
    async with attack_target(tmp_path) as attacked:
        async with attacked.client() as client:
            await client.list_memory("crab")  # loads the memory
        async with attacked.ping_beside() as monitor:
            most = request_parser.MAX_PARTS - 3  # the request, its agent, the entry
            for data in islice(
                generate_structures(most, request_parser.MAX_PARTS_PER_MESSAGE), 0, None, every
            ):
                answer = await send_frame(attacked, data)
                assert "too many parts" not in answer.error.message
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check()
        assert attacked.peak_bytes < PEAK


@pytest.mark.req("bounds.parts")
@pytest.mark.parametrize(
    ("size", "crowd"), [(LARGE_FRAME - 64, 100), (LARGE_FRAME * 2, 40), (4 * 1024 * 1024, 8)]
)
@pytest.mark.clock
async def test_many_such_frames_at_once_do_not_delay_others(
    tmp_path: Path, size: int, crowd: int
) -> None:
    data = make_slow_frame(size)
    async with attack_target(tmp_path) as attacked:
        async with attacked.ping_beside() as monitor:
            while len(monitor.daemon_times) < 10:
                await asyncio.gather(*(send_frame(attacked, data) for _ in range(crowd)))
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check()


@pytest.mark.req("bounds.parts")
async def test_a_quick_frame_does_not_wait_for_slow_ones(
    tmp_path: Path,
) -> None:
    data = make_slow_frame(FRAME_ROOM)
    request = wire.ClientMessage(send=wire.SendMsg(agent="missing", content="x" * 100_000))
    async with attack_target(tmp_path) as attacked:
        peers = [await attacked.peer() for _ in range(8)]
        for peer in peers:
            peer.writer.write(frame_bytes(data))
        while any(peer.transport.get_write_buffer_size() for peer in peers):
            await asyncio.sleep(0.001)
        refusals = [asyncio.ensure_future(peer.expect_error(413)) for peer in peers]
        answer = await send_frame(attacked, request.SerializeToString())
        assert answer.error.code == 404
        assert not all(refusal.done() for refusal in refusals)
        await asyncio.gather(*refusals)
        for peer in peers:
            await peer.close()


@pytest.mark.req("bounds.parts")
@pytest.mark.req("bounds.memory")
@pytest.mark.slow
@pytest.mark.clock
async def test_a_memory_of_maximum_size_is_exchanged_without_delaying_others(
    tmp_path: Path,
) -> None:
    entries = [
        wire.MemoryEntry(
            name=f"name {n}",
            kind="note",
            content=f"{n} " * 10,
            aliases=[f"first {n}", f"second {n}"],
            created_at=n,
        )
        for n in range(100_000)
    ]
    async with attack_target(tmp_path) as attacked, attacked.client() as client:
        async with attacked.ping_beside() as monitor:
            for _ in range(2):
                await client.replace_memory("owl", entries)
            (entry,) = (await client.list_memory("owl", name="name 77777")).entries
            assert entry.created_at == 77777
            await client.search_memory("owl", "77777")
            assert (await client.list_memory("owl", after=99_990)).total == len(entries)
            await client.rename_agent("owl", "lobster")  # which closes it
        log.info("%s, at most %d MiB", monitor, attacked.peak_bytes >> 20)
        monitor.check()
