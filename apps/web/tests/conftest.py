"""What the tests of the web share: a home of their own, as those of the daemon, and a browser."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
import uvloop
from playwright.async_api import Browser

from apps.web.tests.browser.chromium import launch_browser, require_chromium
from tests.conftest import home

__all__ = ["home", "pytest_asyncio_loop_factories"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one that gateway and relay run on, wherever there is one."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of a process that want it."""
    async with launch_browser(require_chromium()) as made:
        yield made
