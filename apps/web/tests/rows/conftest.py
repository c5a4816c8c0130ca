"""A page with nothing but rows on it, served as the real one is, in a real browser."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

import crabtalk_web
from apps.web.tests.browser.chromium import Watch, launched, need, visiting
from crabtalk_web.relay import Relay, RelayConfig

HERE = Path(__file__).parent
PAGE = Path(crabtalk_web.__file__).with_name("page")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rows_browser() -> AsyncIterator[Browser]:
    async with launched(need()) as made:
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gallery(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The address of the gallery, under the relay's own policy."""
    folder = tmp_path_factory.mktemp("gallery")
    shutil.copytree(PAGE, folder / "page")
    for name in ("gallery.html", "gallery.css", "gallery.js"):
        shutil.copy(HERE / name, folder / "page" / name)
    config = RelayConfig(folder / "relay", port=0, static=folder / "page")
    async with Relay(config) as relay:
        yield relay.url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def watched(rows_browser: Browser, gallery: str) -> AsyncIterator[tuple[Page, Watch]]:
    async with visiting(rows_browser, gallery) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def page(watched: tuple[Page, Watch], gallery: str) -> AsyncIterator[Page]:
    """The gallery anew, without a row; whatever complains or asks elsewhere fails the test."""
    page, watch = watched
    watch.faults.clear()
    await page.goto(f"{gallery}/gallery.html")
    await page.wait_for_selector("[data-ready]")
    yield page
    watch.check()
