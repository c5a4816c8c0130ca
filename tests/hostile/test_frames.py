"""Frames of somebody who knows the protocol, against a whole daemon: each is answered as it must
be, none is a surprise to it, and nobody else notices."""

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
# Between the two halves of an attack, what conversations and memories that go on may add, in bytes
# and in objects. A leak of one object every fifth frame of half a million is more.
GROWTH = 6 << 20, 50_000
# All but a few fields are short: what a connection brings along is what it may cost. The C library
# keeps for each thread what that once needed.
PEAK = 160 << 20
ATTACKERS = 4
BATCH = 100
CODES = {400, 404, 410, 413, 500, 501, 503}
# Of a failure that nobody foresaw.
INTERNAL_ERROR = "internal error ("

NumberedFrame = tuple[int, bytes, ReplyShape | None]  # its number, and what must come of it


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
    """What was sent, and what was answered. A failure has the seed and the bytes in it."""

    def __init__(self, fired_at: AttackedDaemon, seed: int, count: int) -> None:
        self.answers: Counter[str] = Counter()
        self._fired_at = fired_at
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
                asked = [frame for frame in batch if frame[2] is not ReplyShape.FEED]
                # Short ones are answered in order. Long ones run beside them, so each is waited
                # for.
                short = [frame for frame in asked if not runs_beside(frame)]
                peer.writer.write(b"".join(frame_bytes(data) for _, data, _ in short))
                for frame in short:
                    await self._expect_answer(peer, frame)
                for frame in (frame for frame in asked if runs_beside(frame)):
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
            what = answer.WhichOneof("msg")
            assert what is not None, self._describe_frame(frame)
            if what == "error":
                self._check_refusal(answer.error, frame)
            elif shape is ReplyShape.STREAM and answer.stream.WhichOneof("event") != "end":
                continue
            else:
                assert shape is not None, f"{answer} to {self._describe_frame(frame)}"
                self.answers[what] += 1
            return

    def _check_refusal(self, error: wire.ErrorMsg, frame: NumberedFrame) -> None:
        told = f"{error.code} {error.message!r} to {self._describe_frame(frame)}"
        assert error.code in CODES, told
        assert frame[2] is not None or error.code == 400, told
        assert error.message.strip(), told
        assert len(error.message) < 1000, told
        assert INTERNAL_ERROR not in error.message, told
        self.answers[str(error.code)] += 1

    async def _subscribe(self, frame: NumberedFrame) -> None:
        """What never ends is left after it has begun."""
        peer = await self._fired_at.peer()
        peer.writer.write(frame_bytes(frame[1]))
        await peer.writer.drain()
        await peer.close()
        self.answers["feed"] += 1

    def _describe_frame(self, frame: NumberedFrame) -> str:
        return f"frame {frame[0]} of seed {self._seed}: {frame[1].hex()}"


async def attack_daemon(tmp_path: Path, seed: int, count: int) -> None:
    async with attack_target(tmp_path) as fired_at:
        # So that all it needs is loaded, and most that it may keep is there.
        await FrameAttack(fired_at, seed ^ 1, max(2000, count // 10)).run()
        before = len(fired_at.memory_samples)
        async with fired_at.ping_beside() as watch:
            attack = FrameAttack(fired_at, seed, count)
            await attack.run()
        size, objects = map(measure_growth, zip(*fired_at.memory_samples[before:], strict=True))
        sizes = (
            f"{size >> 10} KiB and {objects} objects more, {fired_at.peak_bytes >> 20} MiB at most"
        )
        log.info("%d frames, %s, %s, %s", count, watch, sizes, attack.answers)
        assert sum(attack.answers.values()) == count
        assert len(attack.answers) > 20, "they reached all there is to ask"
        assert (size < GROWTH[0], objects < GROWTH[1]) == (True, True), f"seed {seed}: {sizes}"
        assert fired_at.peak_bytes < PEAK
        watch.check()
        async with fired_at.client() as client:  # of the agents there were, all may be changed
            await client.create_agent("afterwards", "p")
            assert (await client.send("afterwards", "hello")).content


@pytest.mark.req("bounds.fuzz")
@pytest.mark.clock
async def test_frames_of_one_who_knows_the_protocol_surprise_nobody(tmp_path: Path) -> None:
    await attack_daemon(tmp_path, SEED, 8_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.clock
async def test_a_million_of_them_do_not_either(tmp_path: Path, seed: int) -> None:
    await attack_daemon(tmp_path, seed, 520_000)
