"""Frames of somebody who knows the protocol, against a whole daemon: each is answered as it must
be, none is a surprise to it, and nobody else notices."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from crabtalk.protocol import ROUTES, Shape, wire
from tests.hostile.frames import Maker, expected, framed
from tests.hostile.target import Target, grown, target
from tests.scripted import RawPeer

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
SURPRISE = "internal error ("

Frame = tuple[int, bytes, Shape | None]  # its number, and what must come of it


def frames(seed: int, count: int) -> Iterator[Frame]:
    maker = Maker(seed)
    for number in range(count):
        data = maker.frame()
        yield number, data, expected(data)


def is_long(frame: Frame) -> bool:
    if frame[2] is None:
        return False
    name = wire.ClientMessage.FromString(frame[1]).WhichOneof("msg")
    return name is not None and ROUTES[name].runs_beside


class Attack:
    """What was sent, and what was answered. A failure has the seed and the bytes in it."""

    def __init__(self, fired_at: Target, seed: int, count: int) -> None:
        self.answers: Counter[str] = Counter()
        self._fired_at = fired_at
        self._seed = seed
        self._frames = frames(seed, count)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(ATTACKERS):
                group.create_task(self._attack())

    async def _attack(self) -> None:
        peer = await self._fired_at.peer()
        try:
            while batch := list(islice(self._frames, BATCH)):
                asked = [frame for frame in batch if frame[2] is not Shape.FEED]
                # Short ones are answered in order. Long ones run beside them, so each is waited
                # for.
                short = [frame for frame in asked if not is_long(frame)]
                peer.writer.write(b"".join(framed(data) for _, data, _ in short))
                for frame in short:
                    await self._answered(peer, frame)
                for frame in (frame for frame in asked if is_long(frame)):
                    peer.writer.write(framed(frame[1]))
                    await self._answered(peer, frame)
                for frame in (frame for frame in batch if frame[2] is Shape.FEED):
                    await self._subscribed(frame)
        finally:
            peer.transport.abort()

    async def _answered(self, peer: RawPeer, frame: Frame) -> None:
        _, _, shape = frame
        while True:
            async with asyncio.timeout(30):
                answer = await peer.read()
            assert answer is not None, f"the connection was closed after {self._told(frame)}"
            what = answer.WhichOneof("msg")
            assert what is not None, self._told(frame)
            if what == "error":
                self._refused(answer.error, frame)
            elif shape is Shape.STREAM and answer.stream.WhichOneof("event") != "end":
                continue
            else:
                assert shape is not None, f"{answer} to {self._told(frame)}"
                self.answers[what] += 1
            return

    def _refused(self, error: wire.ErrorMsg, frame: Frame) -> None:
        told = f"{error.code} {error.message!r} to {self._told(frame)}"
        assert error.code in CODES, told
        assert frame[2] is not None or error.code == 400, told
        assert error.message.strip(), told
        assert len(error.message) < 1000, told
        assert SURPRISE not in error.message, told
        self.answers[str(error.code)] += 1

    async def _subscribed(self, frame: Frame) -> None:
        """What never ends is left after it has begun."""
        peer = await self._fired_at.peer()
        peer.writer.write(framed(frame[1]))
        await peer.writer.drain()
        await peer.close()
        self.answers["feed"] += 1

    def _told(self, frame: Frame) -> str:
        return f"frame {frame[0]} of seed {self._seed}: {frame[1].hex()}"


async def under_fire(tmp_path: Path, seed: int, count: int) -> None:
    async with target(tmp_path) as fired_at:
        # So that all it needs is loaded, and most that it may keep is there.
        await Attack(fired_at, seed ^ 1, max(2000, count // 10)).run()
        before = len(fired_at.held)
        async with fired_at.beside() as watch:
            attack = Attack(fired_at, seed, count)
            await attack.run()
        size, objects = map(grown, zip(*fired_at.held[before:], strict=True))
        sizes = f"{size >> 10} KiB and {objects} objects more, {fired_at.peak >> 20} MiB at most"
        log.info("%d frames, %s, %s, %s", count, watch, sizes, attack.answers)
        assert sum(attack.answers.values()) == count
        assert len(attack.answers) > 20, "they reached all there is to ask"
        assert (size < GROWTH[0], objects < GROWTH[1]) == (True, True), f"seed {seed}: {sizes}"
        assert fired_at.peak < PEAK
        watch.check()
        async with fired_at.client() as client:  # of the agents there were, all may be changed
            await client.create_agent("afterwards", "p")
            assert (await client.send("afterwards", "hello")).content


@pytest.mark.req("bounds.fuzz")
@pytest.mark.clock
async def test_frames_of_one_who_knows_the_protocol_surprise_nobody(tmp_path: Path) -> None:
    await under_fire(tmp_path, SEED, 8_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.clock
async def test_a_million_of_them_do_not_either(tmp_path: Path, seed: int) -> None:
    await under_fire(tmp_path, seed, 520_000)
