"""A home of its own for every test, as the daemon's tests have."""

import asyncio
from collections.abc import Callable

import pytest

from tests.conftest import home

__all__ = ["home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Commands are processes with a loop of their own: that of the test makes no difference."""
    return {"asyncio": asyncio.new_event_loop}
