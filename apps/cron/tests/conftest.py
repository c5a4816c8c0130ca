"""A home of its own for every test, as the daemon's tests have."""

import asyncio
from collections.abc import Callable

import pytest

from tests.conftest import home
from tests.conftest import pytest_asyncio_loop_factories as both_loops

__all__ = ["home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A process has a loop of its own: that of a test that starts one makes no difference."""
    if item.path.name in ("test_process.py", "test_cli.py"):
        return {"asyncio": asyncio.new_event_loop}
    return both_loops(config, item)
