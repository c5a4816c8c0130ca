"""A page with nothing but rows, served like the real one, in a real browser."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

import crabtalk_web
from apps.web.tests.browser.chromium import BrowserWatch, open_browser_page
from crabtalk_web.relay import RelayConfig, RelayServer

HERE = Path(__file__).parent
PAGE = Path(crabtalk_web.__file__).with_name("page")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gallery(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of the gallery, under the relay's own policy."""
    folder = tmp_path_factory.mktemp("gallery")
    shutil.copytree(PAGE, folder / "page")
    for name in ("gallery.html", "gallery.css", "gallery.js"):
        shutil.copy(HERE / name, folder / "page" / name)
    config = RelayConfig(folder / "relay", port=0, static=folder / "page")
    async with RelayServer(config) as relay:
        yield relay.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def watched(browser: Browser, gallery: str) -> AsyncIterator[tuple[Page, BrowserWatch]]:
    async with open_browser_page(browser, gallery) as opened:
        yield opened


@pytest.fixture
def is_loaded_anew() -> bool:
    """Whether a test changes the page beyond the gallery, so that it needs a fresh one."""
    return False


@pytest_asyncio.fixture(loop_scope="session")
async def page(
    watched: tuple[Page, BrowserWatch], gallery: str, is_loaded_anew: bool
) -> AsyncIterator[Page]:
    """The empty gallery; errors and foreign requests fail the test."""
    page, watch = watched
    watch.faults.clear()
    if is_loaded_anew or not await page.evaluate("globalThis.rows?.renew()"):
        await page.goto(f"{gallery}/gallery.html")
        await page.wait_for_selector("[data-ready]")
    yield page
    if is_loaded_anew:
        await page.evaluate("() => { globalThis.rows = null; }")
    watch.check()
