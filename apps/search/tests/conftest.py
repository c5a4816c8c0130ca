"""Like the daemon's tests, the tests of the search use both event loops and homes of their own."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.conftest import home

__all__ = ["home", "pytest_asyncio_loop_factories"]

# Modules that test processes, which have event loops of their own.
OUTSIDE = ("test_cli.py", "test_component.py", "test_with_daemon.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests that run the search in this process run on the standard loop and on uvloop."""
    if item.path.name in OUTSIDE or item.get_closest_marker("one_loop") is not None:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
