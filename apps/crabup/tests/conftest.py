"""Every test has a home and a PATH of its own; processes it started are ended with it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine
from tests.conftest import home

__all__ = ["home", "machine", "pytest_asyncio_loop_factories"]


@pytest.fixture
def machine(tmp_path: Path, home: Path) -> Iterator[CrabupMachine]:
    """A machine without a service manager and without installers."""
    with CrabupMachine(tmp_path, home) as crabup_machine:
        yield crabup_machine


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Commands are processes with event loops of their own, so tests run on one loop."""
    return {"asyncio": asyncio.new_event_loop}
