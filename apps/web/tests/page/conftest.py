"""A relay that serves the page to a browser, for all tests of a process."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from apps.web.tests.gateway.phone import Phone, phone
from apps.web.tests.page.tab import PAGE, Tab, tab
from crabtalk_web.relay import Limits, Relay, RelayConfig

LIMITS = Limits(strangers_requests=100_000, accounts_an_hour=100_000, uploads_a_minute=10_000)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def relay(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Relay]:
    folder = tmp_path_factory.mktemp("relay")
    config = RelayConfig(folder, port=0, durability="os", static=PAGE, limits=LIMITS)
    async with Relay(config) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def person(relay: Relay) -> AsyncIterator[Phone]:
    """Somebody with an account, whose other device is a phone."""
    async with phone(relay.url) as device:
        yield device


@pytest_asyncio.fixture(loop_scope="session")
async def one(browser: Browser, relay: Relay) -> AsyncIterator[Tab]:
    """A tab of a browser that has never been anywhere."""
    async with tab(browser, relay.url) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def idle(browser: Browser, relay: Relay) -> AsyncIterator[Tab]:
    """A tab for all that needs no account and keeps nothing."""
    async with tab(browser, relay.url) as made:
        yield made
