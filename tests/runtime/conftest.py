"""Fixtures: every storage backend, and runtimes that are closed at the end of the test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crabtalk.storage import Storage
from tests.runtime.runtime_world import RuntimeWorld
from tests.storage.backends import BACKENDS, open_backend


@pytest.fixture(params=BACKENDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    async with open_backend(request.param, tmp_path, request) as backend:
        yield backend


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[RuntimeWorld]:
    world = RuntimeWorld(tmp_path)
    yield world
    await world.close()
