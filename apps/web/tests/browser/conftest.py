"""One home and one performance, for all tests of a process that want them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from apps.web.stage import Stage, keep_much, perform, stage
from apps.web.tests.gateway.phone import Phone, phone
from apps.web.tests.gateway.world import let_in

from .scene import NAMES, Home, scene

EVENTS = 1400


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def home(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Home]:
    path = tmp_path_factory.mktemp("home")
    async with scene(browser, path, *NAMES, enters=False, events=EVENTS) as made:
        yield Home(made)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def performance(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Stage, Phone]]:
    """All that can be seen, and the device that has seen it."""
    async with stage(tmp_path_factory.mktemp("stage")) as on, phone(on.url) as device:
        await on.start_gateway(await let_in(device, on.url))
        await perform(on, device)
        await keep_much(device, 1000)
        yield on, device
