"""What the tests of the search share with those of the daemon: both loops, a home of their own."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.conftest import home

__all__ = ["home", "pytest_asyncio_loop_factories"]

# Of processes, which have a loop of their own.
OUTSIDE = ("test_cli.py", "test_component.py", "test_with_daemon.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Where the search runs in the test's own loop, it does on the standard one and on uvloop."""
    if item.path.name in OUTSIDE or item.get_closest_marker("one_loop") is not None:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
