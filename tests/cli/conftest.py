"""Fixtures: a home of its own for every test, as in the daemon's tests."""

import asyncio
from collections.abc import Callable

import pytest

from tests.conftest import home

__all__ = ["home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use only asyncio's loop: commands are processes with a loop of their own."""
    return {"asyncio": asyncio.new_event_loop}
