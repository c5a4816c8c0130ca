"""A talk three times over: before its commit and after it in files, and after it in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.search.search_harness import SearchHarness, open_harness, open_harness_in_memory


@pytest.fixture(params=["tail", "shelves", "memory"])
async def talk(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[SearchHarness]:
    made = open_harness_in_memory() if request.param == "memory" else open_harness(home)
    async with made as talk:
        talk.commits_first = request.param != "tail"
        yield talk
