"""Storage of both kinds, and runtimes that are closed when the test is over."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crabtalk.storage import FileStorage, MemoryStorage, Storage
from tests.runtime.world import World


@pytest.fixture(params=["memory", "files"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    opened: Storage = (
        MemoryStorage() if request.param == "memory" else FileStorage(tmp_path, flush=False)
    )
    yield opened
    await opened.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    yield world
    await world.close()
