"""What the tests of the web share with those of the daemon: a home of their own."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from tests.conftest import _no_home_of_the_developer, home

__all__ = ["_no_home_of_the_developer", "home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one that gateway and relay run on, wherever there is one."""
    return {"uvloop": uvloop.new_event_loop}
