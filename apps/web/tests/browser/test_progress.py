"""What takes longer than a blink says so: files on their way, pictures that come, older pages."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, Route, expect

from apps.web.stage import LONG, drawing
from apps.web.tests.gateway.phone import Phone, Session
from crabtalk_web.gateway.files import picture

from .scene import Home

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def held(page: Page, pattern: str, method: str = "GET") -> AsyncIterator[asyncio.Event]:
    """Requests of a kind are under way until the event is set."""
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


async def send_picture(device: Phone, session: Session, name: str) -> None:
    data = drawing(640, 360)
    shown = picture(data)
    event = {
        "t": "file",
        "ref": await device.upload(session, data),
        "name": name,
        "size": len(data),
        "mimeType": "image/png",
        "image": {field: getattr(shown, field) for field in ("width", "height", "thumbhash")},
    }
    await device.post(session, {"role": "session", "content": device.envelope(event)})


@pytest.mark.req("page.progress")
async def test_a_file_on_its_way_shows_how_far_it_is(home: Home) -> None:
    async with home.room() as s:
        person = s.person
        async with held(person.page, "**/attachments/*", "PUT") as goes_on:
            await person.drop("beach.png", "image/png", drawing(640, 360))
            await person.say("A picture.")
            await expect(person.log.get_by_role("progressbar")).to_be_visible()
            shown = person.log.get_by_role("img", name="beach.png")
            await expect(shown).to_be_visible()  # to whoever sent it, at once
            goes_on.set()
            await expect(person.log.get_by_role("progressbar")).to_have_count(0)
        await person.is_over()


@pytest.mark.req("page.placeholder")
async def test_a_picture_has_its_shape_and_colours_before_it_is_there(home: Home) -> None:
    async with home.room() as s:
        person = s.person
        async with held(person.page, "**/attachments/*") as goes_on:
            await send_picture(s.device, await s.session(), "sunset.png")
            frame = person.log.get_by_role("button", name="Open sunset.png")
            await expect(frame.locator("canvas")).to_be_visible()
            before = await frame.bounding_box()
            await expect(frame.locator("img")).to_have_count(0)
            goes_on.set()
            await expect(frame.locator("img")).to_be_visible()
            assert await frame.bounding_box() == before


@pytest.mark.req("page.progress")
@pytest.mark.slow
async def test_older_pages_say_that_they_are_coming(home: Home) -> None:
    async with home.room(enters=False) as s, s.somebody() as other:
        await other.open("/")
        await other.restore(s.words)
        await other.conversation(LONG).click()
        await other.sees("Question 200:")
        async with held(other.page, "**/v3/sessions/**") as goes_on:
            await other.log.evaluate("log => { log.scrollTop = 0; }")
            await expect(other.log.get_by_text("Loading older messages")).to_be_visible()
            await expect(other.log.get_by_role("progressbar")).to_be_visible()
            goes_on.set()
        await other.to_the_top("Question 1:")


@pytest.mark.req("page.tabs")
async def test_two_tabs_of_one_browser_show_the_same_and_send_once(home: Home) -> None:
    async with home.room() as s:
        first = s.person
        tab = await first.page.context.new_page()
        try:
            await tab.goto(first.page.url)
            log = tab.get_by_role("log")
            await s.ask("Is this one tab or two?", "!say it is both")
            await expect(log.get_by_text("it is both")).to_have_count(1)
            await first.sees("it is both", 1)
            await tab.get_by_role("textbox", name="Message").fill("said in the other tab")
            await tab.get_by_role("textbox", name="Message").press("Enter")
            await first.sees("said in the other tab", 2)
        finally:
            await tab.close()
        assert await s.told("user") == ["Is this one tab or two?", "said in the other tab"]


@pytest.mark.req("page.announced")
async def test_a_whole_answer_is_told_to_a_screen_reader_once(home: Home) -> None:
    async with home.room() as s:
        live = s.person.page.locator("[aria-live=polite]")
        await s.ask("Say it slowly.", "!say bit\n!wait\n!say  by **bit**")
        await s.person.sees("bit")
        await expect(live.filter(has_text="bit")).to_have_count(0)  # not while it is written
        await s.stage.release()
        whole = re.compile(rf"{s.agent}: bit by \W*bit")
        await expect(live.filter(has_text=whole)).to_have_count(1)
