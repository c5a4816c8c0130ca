"""A talk three times over: before its commit and after it in files, and after it in memory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.runtime.search.talk import Talk, talking, talking_in_memory


@pytest.fixture(params=["tail", "shelves", "memory"])
async def talk(request: pytest.FixtureRequest, home: Path) -> AsyncIterator[Talk]:
    made = talking_in_memory() if request.param == "memory" else talking(home)
    async with made as talk:
        talk.settles = request.param != "tail"
        yield talk
