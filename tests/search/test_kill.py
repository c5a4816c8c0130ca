"""The index killed with SIGKILL repeatedly: nothing is missing, nothing is there twice."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from crabtalk.search.log_indexer import LogIndexer
from crabtalk.storage import FileStorage, MessageRecord, Record, RecordSlice
from tests.forked_programs import PIPE, ForkedProgram
from tests.model_server import ROOT
from tests.search import crash_writer
from tests.search.search_harness import SearchHarness

pytestmark = pytest.mark.one_loop

PATIENCE = 20.0
MIN_WORDS = 5  # words written before a kill
CRASH_WRITER = ForkedProgram(
    *(Path(crash_writer.__file__), "tests.search.crash_writer:main"),
    *("crabtalk.search.session_index", "tantivy"),
)


async def write_until_killed(home: Path, seed: int) -> None:
    """A process writes for a moment and is then killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = CRASH_WRITER.start(home, str(seed), stdout=PIPE, env=environment)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            for _ in range(random.Random(seed).randrange(MIN_WORDS, 150)):
                assert await process.stdout.readline()
    finally:
        process.send_signal(signal.SIGKILL)
        await process.communicate()


async def read_logged_messages(storage: FileStorage) -> dict[tuple[str, int], Record]:
    """Every message by handle and id, read without the index."""
    messages: dict[tuple[str, int], Record] = {}
    for handle in await storage.read_versions():
        position, more = 0, True
        while more:
            (record_slice,) = await storage.read_new_records([(handle, position)], 1 << 20)
            if not isinstance(record_slice, RecordSlice):
                break
            for _, record in record_slice.records:
                if isinstance(record, MessageRecord):
                    messages[handle, record.id] = record
            position, more = record_slice.position, record_slice.has_more
    return messages


async def check_index(home: Path, *, is_first: bool) -> None:
    storage = FileStorage(home, flush=False)
    harness = SearchHarness(storage, home / "index" / "sessions")
    try:
        await harness.wait_until_committed()
        messages = await read_logged_messages(storage)
        indexer = get_indexer(harness)
        # It was caught up, not rebuilt; except after a kill before the very first commit was
        # recorded.
        assert indexer.rebuilds <= is_first
        assert indexer.view is not None
        assert indexer.view.messages.documents == len(messages)
        assert indexer.view.totals.documents == len(messages)
        for (handle, number), record in messages.items():
            assert isinstance(record, MessageRecord)
            word = record.message.text.split()[0]
            assert indexer.view.messages.document_frequency(word) >= 1, word
            hit = await harness.search_one(word, before=0, after=0)
            assert (hit.handle, hit.message_id) == (handle, number)
        for _, meta in await storage.list_conversations():
            if meta.title:
                assert (await harness.search_one(meta.title)).sender == meta.created_by
            stored = await storage.read_conversation(meta.pair)
            if stored is not None and stored.marker is not None:
                assert (await harness.search_one(stored.marker.summary)).sender == meta.created_by
    finally:
        await harness.index.close()
        await storage.close()


def get_indexer(harness: SearchHarness) -> LogIndexer:
    return harness.index._indexer


async def kill_and_check(home: Path, times: int) -> None:
    home.mkdir()
    for seed in range(times):
        await write_until_killed(home, seed)
        await check_index(home, is_first=seed == 0)


@pytest.mark.req("search.kill")
async def test_an_index_killed_six_times_has_everything_once(home: Path) -> None:
    await kill_and_check(home, 6)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.req("search.kill")
async def test_an_index_killed_a_hundred_times_has_everything_once(home: Path) -> None:
    await kill_and_check(home, 100)
