"""Hostile frames against a whole daemon: each gets the right kind of answer, none causes an
internal error, and other clients are not delayed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from crabtalk.protocol import ROUTES, ReplyShape, wire
from tests.hostile.attacked_daemon import AttackedDaemon, attack_target, measure_growth
from tests.hostile.hostile_frames import HostileFrameMaker, find_expected_shape, frame_bytes
from tests.scripted_server import RawPeer

pytestmark = pytest.mark.one_loop

log = logging.getLogger(__name__)

SEED = 20261116
# Growth allowed between the halves of an attack, in bytes and in objects, because conversations and
# memories grow. A leak of one object per five frames would exceed it in half a million frames.
GROWTH = 6 << 20, 50_000
# Most fields are short, so memory per connection is small. The C library keeps freed memory per
# thread.
PEAK = 160 << 20
ATTACKERS = 4
BATCH = 100
CODES = {400, 404, 409, 410, 413, 500, 501, 503}
# Start of the message for an unexpected exception.
INTERNAL_ERROR = "internal error ("

NumberedFrame = tuple[int, bytes, ReplyShape | None]  # number, bytes, and the expected answer


def generate_frames(seed: int, count: int) -> Iterator[NumberedFrame]:
    maker = HostileFrameMaker(seed)
    for number in range(count):
        data = maker.make_frame()
        yield number, data, find_expected_shape(data)


def runs_beside(frame: NumberedFrame) -> bool:
    if frame[2] is None:
        return False
    name = wire.ClientMessage.FromString(frame[1]).WhichOneof("msg")
    return name is not None and ROUTES[name].is_concurrent


class FrameAttack:
    """Sends frames and counts the answers. Failures name the seed and the bytes."""

    def __init__(self, attacked: AttackedDaemon, seed: int, count: int) -> None:
        self.answers: Counter[str] = Counter()
        self._fired_at = attacked
        self._seed = seed
        self._frames = generate_frames(seed, count)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(ATTACKERS):
                group.create_task(self._attack())

    async def _attack(self) -> None:
        peer = await self._fired_at.peer()
        try:
            while batch := list(islice(self._frames, BATCH)):
                requests = [frame for frame in batch if frame[2] is not ReplyShape.FEED]
                # Short requests are answered in order. Concurrent ones are awaited one by one.
                short = [frame for frame in requests if not runs_beside(frame)]
                peer.writer.write(b"".join(frame_bytes(data) for _, data, _ in short))
                for frame in short:
                    await self._expect_answer(peer, frame)
                for frame in (frame for frame in requests if runs_beside(frame)):
                    peer.writer.write(frame_bytes(frame[1]))
                    await self._expect_answer(peer, frame)
                for frame in (frame for frame in batch if frame[2] is ReplyShape.FEED):
                    await self._subscribe(frame)
        finally:
            peer.transport.abort()

    async def _expect_answer(self, peer: RawPeer, frame: NumberedFrame) -> None:
        _, _, shape = frame
        while True:
            async with asyncio.timeout(30):
                answer = await peer.read()
            assert answer is not None, (
                f"the connection was closed after {self._describe_frame(frame)}"
            )
            kind = answer.WhichOneof("msg")
            assert kind is not None, self._describe_frame(frame)
            if kind == "error":
                self._check_refusal(answer.error, frame)
            elif shape is ReplyShape.STREAM and answer.stream.WhichOneof("event") != "end":
                continue
            else:
                assert shape is not None, f"{answer} to {self._describe_frame(frame)}"
                self.answers[kind] += 1
            return

    def _check_refusal(self, error: wire.ErrorMsg, frame: NumberedFrame) -> None:
        description = f"{error.code} {error.message!r} to {self._describe_frame(frame)}"
        assert error.code in CODES, description
        assert frame[2] is not None or error.code == 400, description
        assert error.message.strip(), description
        assert len(error.message) < 1000, description
        assert INTERNAL_ERROR not in error.message, description
        self.answers[str(error.code)] += 1

    async def _subscribe(self, frame: NumberedFrame) -> None:
        """Start a feed and disconnect, because a feed never ends."""
        peer = await self._fired_at.peer()
        peer.writer.write(frame_bytes(frame[1]))
        await peer.writer.drain()
        await peer.close()
        self.answers["feed"] += 1

    def _describe_frame(self, frame: NumberedFrame) -> str:
        return f"frame {frame[0]} of seed {self._seed}: {frame[1].hex()}"


async def attack_daemon(tmp_path: Path, seed: int, count: int) -> None:
    async with attack_target(tmp_path) as attacked:
        # A first attack loads all modules and fills the caches.
        await FrameAttack(attacked, seed ^ 1, max(2000, count // 10)).run()
        before = len(attacked.memory_samples)
        async with attacked.ping_beside() as monitor:
            attack = FrameAttack(attacked, seed, count)
            await attack.run()
        size, objects = map(measure_growth, zip(*attacked.memory_samples[before:], strict=True))
        sizes = (
            f"{size >> 10} KiB and {objects} objects more, {attacked.peak_bytes >> 20} MiB at most"
        )
        log.info("%d frames, %s, %s, %s", count, monitor, sizes, attack.answers)
        assert sum(attack.answers.values()) == count
        assert len(attack.answers) > 20, "the frames reach all kinds of requests"
        assert (size < GROWTH[0], objects < GROWTH[1]) == (True, True), f"seed {seed}: {sizes}"
        assert attacked.peak_bytes < PEAK
        monitor.check()
        async with attacked.client() as client:  # all other agents may have been changed
            await client.create_agent("afterwards", "p")
            assert (await client.send("afterwards", "hello")).content


@pytest.mark.req("bounds.fuzz")
@pytest.mark.clock
async def test_hostile_frames_cause_no_internal_errors_and_no_delays(tmp_path: Path) -> None:
    await attack_daemon(tmp_path, SEED, 8_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.clock
async def test_a_million_hostile_frames_cause_no_internal_errors_and_no_delays(
    tmp_path: Path, seed: int
) -> None:
    await attack_daemon(tmp_path, seed, 520_000)
