"""Every test has a home of its own, as in the daemon's tests."""

import asyncio
from collections.abc import Callable

import pytest

from tests.conftest import home
from tests.conftest import pytest_asyncio_loop_factories as both_loops

__all__ = ["home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Processes have event loops of their own, so tests that start one run on one loop."""
    if item.path.name in ("test_process.py", "test_cli.py"):
        return {"asyncio": asyncio.new_event_loop}
    return both_loops(config, item)
