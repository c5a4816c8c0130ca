"""One home and one set of conversations, shared by all tests of a process."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from apps.web.dev_server import DevServer, create_long_session, have_conversations, run_dev_server
from apps.web.tests.gateway.device_client import DeviceClient, open_device
from apps.web.tests.gateway.web_gateway_world import pair_with_device

from .page_setup import NAMES, SharedPage, set_up_page

EVENTS = 1400


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def home(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedPage]:
    path = tmp_path_factory.mktemp("home")
    async with set_up_page(browser, path, *NAMES, enters=False, events=EVENTS) as setup:
        yield SharedPage(setup)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def conversations(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[DevServer, DeviceClient]]:
    """All scripted conversations, and the device that has them."""
    async with (
        run_dev_server(tmp_path_factory.mktemp("stage")) as server,
        open_device(server.url) as device,
    ):
        await server.start_gateway(await pair_with_device(device, server.url))
        await have_conversations(server, device)
        await create_long_session(device, 1000)
        yield server, device
