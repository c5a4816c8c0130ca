"""A SearchHarness in three states: uncommitted, committed, and in memory without files."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.search.search_harness import SearchHarness, open_harness, open_harness_in_memory


@pytest.fixture(params=["uncommitted", "committed", "memory"])
async def harness(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[SearchHarness]:
    opened = open_harness_in_memory() if request.param == "memory" else open_harness(home)
    async with opened as harness:
        harness.commits_first = request.param != "uncommitted"
        yield harness
