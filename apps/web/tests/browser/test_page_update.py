"""A new version of the page: it waits beside the open one, is announced, and replaces it as a
whole."""

import shutil
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.dev_server import PAGE
from crabtalk_web.relay import RelayConfig, RelayServer

from .browser_user import open_browser_user

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.req("page.update")
@pytest.mark.slow
async def test_a_new_version_of_the_page_waits_until_it_is_accepted(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    shutil.copytree(PAGE, page)
    config = RelayConfig(tmp_path / "relay", port=0, static=page)
    async with (
        RelayServer(config) as relay,
        open_browser_user(browser, relay.url, keeps=True) as person,
    ):
        await person.open("/")
        heading = person.page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("Your agents on any screen")
        await person.page.wait_for_function("() => navigator.serviceWorker.controller !== null")
        view = page / "view" / "welcome.js"
        view.write_text(view.read_text("utf-8").replace("Your agents", "Newer agents"), "utf-8")
        await person.page.reload()
        await expect(heading).to_have_text("Your agents on any screen")
        await person.button("Load it").click()
        await expect(heading).to_have_text("Newer agents on any screen")
        await expect(person.button("Load it")).to_have_count(0)
