"""A home and a PATH of its own for every test; what it started does not outlive it."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apps.crabup.tests.machine import CrabupMachine
from tests.conftest import home

__all__ = ["home", "machine", "pytest_asyncio_loop_factories"]


@pytest.fixture
def machine(tmp_path: Path, home: Path) -> Iterator[CrabupMachine]:
    """One without a service manager, and without installers."""
    with CrabupMachine(tmp_path, home) as found:
        yield found


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Commands are processes with a loop of their own: that of the test makes no difference."""
    return {"asyncio": asyncio.new_event_loop}
