"""Shared fixtures of the web tests: a home, as for the daemon's tests, and a browser."""

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
    """Use the loop that gateway and relay use, if it is available."""
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests of a process."""
    async with launch_browser(require_chromium()) as browser:
        yield browser
