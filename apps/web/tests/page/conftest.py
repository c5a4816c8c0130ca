"""A relay that serves the page to a browser, for all tests of a process."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from apps.web.tests.gateway.device_client import DeviceClient, open_device
from apps.web.tests.page.page_tab import PAGE, PageTab, open_page_tab
from crabtalk_web.relay import RelayConfig, RelayLimits, RelayServer

LIMITS = RelayLimits(strangers_requests=100_000, accounts_an_hour=100_000, uploads_a_minute=10_000)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RelayServer]:
    folder = tmp_path_factory.mktemp("relay")
    config = RelayConfig(folder, port=0, durability="os", static=PAGE, limits=LIMITS)
    async with RelayServer(config) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def person(relay: RelayServer) -> AsyncIterator[DeviceClient]:
    """A person with an account, whose other device is a phone."""
    async with open_device(relay.url) as device:
        yield device


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, relay: RelayServer) -> AsyncIterator[PageTab]:
    """A tab of a new browser."""
    async with open_page_tab(browser, relay.url) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_tab(browser: Browser, relay: RelayServer) -> AsyncIterator[PageTab]:
    """A tab for tests that need no account and store nothing."""
    async with open_page_tab(browser, relay.url) as opened:
        yield opened
