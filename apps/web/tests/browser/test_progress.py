"""Progress is shown for everything slow: uploads, pictures, older pages."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, Route, expect

from apps.web.dev_server import LONG_AGENT, draw_picture
from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession
from crabtalk_web.gateway.file_transfer import describe_image

from .page_setup import SharedPage

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def hold_requests(
    page: Page, pattern: str, method: str = "GET"
) -> AsyncIterator[asyncio.Event]:
    """Hold requests of this kind until the event is set."""
    goes_on = asyncio.Event()

    async def hold(route: Route) -> None:
        if route.request.method == method:
            await goes_on.wait()
        await route.fallback()

    await page.route(pattern, hold)
    try:
        yield goes_on
    finally:
        goes_on.set()
        await page.unroute(pattern)


async def send_picture(device: DeviceClient, session: DeviceSession, name: str) -> None:
    data = draw_picture(640, 360)
    image = describe_image(data)
    event = {
        "t": "file",
        "ref": await device.upload(session, data),
        "name": name,
        "size": len(data),
        "mimeType": "image/png",
        "image": {field: getattr(image, field) for field in ("width", "height", "thumbhash")},
    }
    await device.send_body(session, {"role": "session", "content": device.build_envelope(event)})


@pytest.mark.req("page.progress")
async def test_an_upload_shows_its_progress(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        async with hold_requests(person.page, "**/attachments/*", "PUT") as goes_on:
            await person.drop_file("beach.png", "image/png", draw_picture(640, 360))
            await person.send_text("A picture.")
            await expect(person.log.get_by_role("progressbar")).to_be_visible()
            image = person.log.get_by_role("img", name="beach.png")
            await expect(image).to_be_visible()  # at once on the sender's page
            goes_on.set()
            await expect(person.log.get_by_role("progressbar")).to_have_count(0)
        await person.wait_for_turn_end()


@pytest.mark.req("page.placeholder")
async def test_a_picture_has_its_size_and_colours_before_it_is_loaded(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        async with hold_requests(person.page, "**/attachments/*") as goes_on:
            await send_picture(s.device, await s.wait_for_session(), "sunset.png")
            frame = person.log.get_by_role("button", name="Open sunset.png")
            await expect(frame.locator("canvas")).to_be_visible()
            before = await frame.bounding_box()
            await expect(frame.locator("img")).to_have_count(0)
            goes_on.set()
            await expect(frame.locator("img")).to_be_visible()
            assert await frame.bounding_box() == before


@pytest.mark.req("page.progress")
@pytest.mark.slow
async def test_loading_older_pages_is_shown(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s, s.open_other_browser() as other:
        await other.open("/")
        await other.restore_account(s.backup_words)
        await other.conversation_link(LONG_AGENT).click()
        await other.wait_for_text("Question 200:")
        async with hold_requests(other.page, "**/v3/sessions/**") as goes_on:
            await other.log.evaluate("log => { log.scrollTop = 0; }")
            await expect(other.log.get_by_text("Loading older messages")).to_be_visible()
            await expect(other.log.get_by_role("progressbar")).to_be_visible()
            goes_on.set()
        await other.scroll_to_top("Question 1:")


@pytest.mark.req("page.tabs")
async def test_two_tabs_of_one_browser_show_the_same_and_send_once(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        first = s.person
        tab = await first.page.context.new_page()
        try:
            await tab.goto(first.page.url)
            log = tab.get_by_role("log")
            await s.say_scripted("Is this one tab or two?", "!say it is both")
            await expect(log.get_by_text("it is both")).to_have_count(1)
            await first.wait_for_text("it is both", 1)
            await tab.get_by_role("textbox", name="Message").fill("said in the other tab")
            await tab.get_by_role("textbox", name="Message").press("Enter")
            await first.wait_for_text("said in the other tab", 2)
        finally:
            await tab.close()
        assert await s.read_stored_texts("user") == [
            "Is this one tab or two?",
            "said in the other tab",
        ]


@pytest.mark.req("page.announced")
async def test_a_complete_answer_is_announced_to_screen_readers_once(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        live = s.person.page.locator("[aria-live=polite]")
        await s.say_scripted("Say it slowly.", "!say bit\n!wait\n!say  by **bit**")
        await s.person.wait_for_text("bit")
        await expect(live.filter(has_text="bit")).to_have_count(0)  # not while it is being written
        await s.server.release_model()
        whole = re.compile(rf"{s.agent}: bit by \W*bit")
        await expect(live.filter(has_text=whole)).to_have_count(1)
