"""The index killed with SIGKILL, over and over: nothing is missing and nothing is there twice."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from crabtalk.runtime.search.follower import Follower
from crabtalk.storage import FileStorage, Followed, MessageRecord, Record
from tests.model_server import ROOT
from tests.runtime.search import speaker
from tests.runtime.search.talk import Talk
from tests.warm import PIPE, Program

pytestmark = pytest.mark.one_loop

PATIENCE = 20.0
LEAST = 5  # words before it may be killed
SPEAKER = Program(
    *(Path(speaker.__file__), "tests.runtime.search.speaker:main"),
    *("crabtalk.runtime.search.index", "tantivy"),
)


async def live(home: Path, seed: int) -> None:
    """A process speaks for a moment, and is killed in the middle of whatever it does."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = SPEAKER.start(home, str(seed), stdout=PIPE, env=environment)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(random.Random(seed).randrange(LEAST, 150)):
                assert await process.stdout.readline()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.communicate()


async def logged(storage: FileStorage) -> dict[tuple[str, int], Record]:
    """Every message there is, by handle and id, read without the index."""
    found: dict[tuple[str, int], Record] = {}
    for handle in await storage.versions():
        position, more = 0, True
        while more:
            (followed,) = await storage.follow([(handle, position)], 1 << 20)
            if not isinstance(followed, Followed):
                break
            for _, record in followed.records:
                if isinstance(record, MessageRecord):
                    found[handle, record.id] = record
            position, more = followed.position, followed.more
    return found


async def check(home: Path, *, is_first: bool) -> None:
    storage = FileStorage(home, flush=False)
    talk = Talk(storage, home / "index" / "sessions")
    try:
        await talk.committed()
        messages = await logged(storage)
        follower = follower_of(talk)
        # It was caught up with, not thrown away: but for the first commit, of which nobody knew.
        assert follower.rebuilds <= is_first
        assert follower.view is not None
        assert follower.view.messages.documents == len(messages)
        assert follower.view.totals.documents == len(messages)
        for (handle, number), record in messages.items():
            assert isinstance(record, MessageRecord)
            word = record.message.text.split()[0]
            assert follower.view.messages.frequency(word) >= 1, word
            hit = await talk.one(word, before=0, after=0)
            assert (hit.handle, hit.message_id) == (handle, number)
        for _, meta in await storage.conversations():
            if meta.title:
                assert (await talk.one(meta.title)).sender == meta.created_by
            stored = await storage.read(meta.pair)
            if stored is not None and stored.marker is not None:
                assert (await talk.one(stored.marker.summary)).sender == meta.created_by
    finally:
        await talk.index.close()
        await storage.close()


def follower_of(talk: Talk) -> Follower:
    return talk.index._follower


async def kill_and_check(home: Path, times: int) -> None:
    home.mkdir()
    for seed in range(times):
        await live(home, seed)
        await check(home, is_first=seed == 0)


@pytest.mark.req("search.kill")
async def test_killed_six_times_it_has_everything_once(home: Path) -> None:
    await kill_and_check(home, 6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.req("search.kill")
async def test_killed_a_hundred_times_it_has_everything_once(home: Path) -> None:
    await kill_and_check(home, 100)
