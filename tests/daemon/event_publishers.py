"""Clients that publish at a given rate without waiting for answers, and one that pings meanwhile.

For tests and benchmarks. The publishers count the answer to every event.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import cast

from crabtalk.client import connect
from crabtalk.protocol import FrameDecoder, encode_frame, wire
from crabtalk.transport import RunFiles

# Unanswered requests per connection, so that a slow daemon slows the publishers down. With more,
# reading all their answers at once would delay the pings.
MAX_UNANSWERED = 256
# Seconds between two pings.
PING_INTERVAL = 0.002


class Publisher(asyncio.Protocol):
    """One connection. `answers` counts answers by kind: accepted, or an error code."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0
        self.answers: Counter[str] = Counter()
        self.reasons: set[str] = set()
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def publish(self, frame: bytes) -> bool:
        """False if too many requests are unanswered."""
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
    """Publish `count` events to the sources in turn. Returns the answers by kind, the error
    messages and the seconds taken."""
    loop = asyncio.get_running_loop()
    path = str(RunFiles.for_home(home).socket_path)
    publishers = [
        (await loop.create_unix_connection(Publisher, path))[1] for _ in range(connections)
    ]
    frames = [encode_frame(make_publish_request(source)) for source in sources]
    started_at = time.perf_counter()
    sent = 0
    while sent < count:
        due = min(count, int((time.perf_counter() - started_at) * rate) + 1)
        while sent < due and publishers[sent % connections].publish(frames[sent % len(frames)]):
            sent += 1
        await asyncio.sleep(0.001)
    while any(publisher.answered < publisher.sent for publisher in publishers):
        await asyncio.sleep(0.001)
    seconds = time.perf_counter() - started_at
    for publisher in publishers:
        publisher.transport.close()
    answers = sum((publisher.answers for publisher in publishers), Counter[str]())
    return answers, set[str]().union(*(publisher.reasons for publisher in publishers)), seconds


def make_publish_request(source: str) -> wire.ClientMessage:
    message = wire.PublishEventMsg(source=source, payload="news of the day")
    return wire.ClientMessage(publish_event=message)


async def measure_pings(home: Path, stop: asyncio.Event) -> list[float]:
    """The milliseconds of each ping. Fails if one is not answered."""
    milliseconds = []
    async with connect(home=home) as client:
        await client.ping()
        while not stop.is_set():
            started_at = time.perf_counter()
            await client.ping()
            milliseconds.append((time.perf_counter() - started_at) * 1e3)
            await asyncio.sleep(PING_INTERVAL)
    return milliseconds
