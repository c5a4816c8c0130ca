"""Clients that publish at a given rate and do not wait for answers, and one that pings meanwhile.

For the tests and for the bench: what they count is what came of every single event.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import cast

from crabtalk.client import connect
from crabtalk.protocol import FrameDecoder, encode_frame, wire
from crabtalk.transport import RunFiles

# Requests that one connection may have sent ahead, so that a daemon that is slow slows them down.
# More would come back in one go, and reading those answers would hold up the pings.
MAX_UNANSWERED = 256
# Between two pings, seconds.
PING_INTERVAL = 0.002


class Publisher(asyncio.Protocol):
    """One connection. `answers` counts each kind of answer: accepted, or the code of an error."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.answers: Counter[str] = Counter()
        self.reasons: set[str] = set()
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def publish(self, frame: bytes) -> bool:
        """False when it would be too far ahead."""
        if self.sent - self.answered >= MAX_UNANSWERED:
            return False
        self.transport.write(frame)
        self.sent += 1
        return True

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            message = wire.ServerMessage.FromString(bytes(frame))
            self.answered += 1
            if message.WhichOneof("msg") == "pong":
                self.answers["accepted"] += 1
            else:
                self.answers[str(message.error.code)] += 1
                self.reasons.add(message.error.message)


async def publish_events(
    home: Path, sources: list[str], *, rate: int, count: int, connections: int = 4
) -> tuple[Counter[str], set[str], float]:
    """So many events, the sources in turn: what was answered, with which reasons, in how many
    seconds."""
    loop = asyncio.get_running_loop()
    path = str(RunFiles.for_home(home).socket_path)
    publishers = [
        (await loop.create_unix_connection(Publisher, path))[1] for _ in range(connections)
    ]
    frames = [encode_frame(make_publish_request(source)) for source in sources]
    begun = time.perf_counter()
    sent = 0
    while sent < count:
        due = min(count, int((time.perf_counter() - begun) * rate) + 1)
        while sent < due and publishers[sent % connections].publish(frames[sent % len(frames)]):
            sent += 1
        await asyncio.sleep(0.001)
    while any(one.answered < one.sent for one in publishers):
        await asyncio.sleep(0.001)
    taken = time.perf_counter() - begun
    for one in publishers:
        one.transport.close()
    answers = sum((one.answers for one in publishers), Counter[str]())
    return answers, set[str]().union(*(one.reasons for one in publishers)), taken


def make_publish_request(source: str) -> wire.ClientMessage:
    message = wire.PublishEventMsg(source=source, payload="news of the day")
    return wire.ClientMessage(publish_event=message)


async def measure_pings(home: Path, until: asyncio.Event) -> list[float]:
    """Milliseconds of each. One that is not answered fails."""
    taken = []
    async with connect(home=home) as client:
        await client.ping()
        while not until.is_set():
            begun = time.perf_counter()
            await client.ping()
            taken.append((time.perf_counter() - begun) * 1e3)
            await asyncio.sleep(PING_INTERVAL)
    return taken
