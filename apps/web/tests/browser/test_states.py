"""Every state of the page, at every width and in both themes: axe finds nothing, nothing has to be
scrolled sideways, and a picture of it is kept in `shots/` for people to look at."""

import re
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.stage import LONG, Stage, stage
from apps.web.tests.gateway.phone import Phone
from crabtalk_web.sealing import to_backup_text

from .scene import CAST, scene
from .visitor import Visitor, visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")

Looks = list[tuple[int, str]]
FEW: Looks = [(1440, "light"), (360, "dark")]
REST: Looks = [(360, "light"), (768, "light"), (768, "dark"), (1440, "dark")]
SOME = [pytest.param(FEW, id="some"), pytest.param(REST, id="all", marks=pytest.mark.slow)]


async def look(person: Visitor, name: str, looks: Looks) -> list[str]:
    found = []
    for width, theme in looks:
        await person.shoot(name, width, theme)
        found += [f"{name} at {width}, {theme}: {fault}" for fault in await person.faults()]
    return found


async def before(person: Visitor, on: Stage) -> AsyncIterator[str]:
    """What somebody sees who is not in yet."""
    await person.open("/")
    await expect(person.button("Start here")).to_be_visible()
    yield "first-visit"
    await person.button(re.compile("already", re.IGNORECASE)).click()
    yield "ways-in"
    async with on.asking() as pairing:
        await person.open(pairing.link)
        await expect(person.page.get_by_text("A machine asks to be let in")).to_be_visible()
        yield "pairing-welcome"
        await person.start_here()
        await expect(person.button("Let it in")).to_be_visible()
        yield "pairing"
    await person.button("Not now").click()
    await expect(person.page.get_by_text("No conversations yet")).to_be_visible()
    yield "list-empty"
    await person.open("/terminal/connect#key=" + "A" * 43)
    await person.button("Let it in").click()
    await expect(person.page.get_by_role("alert")).to_be_visible()
    yield "pairing-expired"
    await person.open("/nowhere")
    yield "missing"


async def inside(person: Visitor) -> AsyncIterator[str]:
    """What somebody sees who is."""
    await expect(person.conversation("runner")).to_be_visible()
    yield "list"
    for agent, awaited, name in (
        ("crab", "jitter", "conversation"),
        ("builder", "Nobody reads these", "sub-agents"),
        ("runner", "Four pages", "running"),
        ("breaker", "the prompt is", "error"),
        ("painter", "pixels wide", "pictures"),
        (LONG, "Question", "long"),
    ):
        await person.open_list()
        await person.enter(agent)
        await person.sees(re.compile(awaited, re.IGNORECASE))
        yield name
    await person.open_list()
    await person.enter("asker")
    await expect(person.form("Which version")).to_be_visible()
    yield "question"
    await person.open_list()
    await person.enter("newcomer")
    yield "empty"
    await person.open("/search")
    await person.page.get_by_role("searchbox").fill("retry")
    await expect(person.page.locator("mark").first).to_be_visible()
    yield "search"
    await person.open("/settings")
    await expect(person.button("Log out")).to_be_visible()
    yield "settings"
    await person.button("Add a device").click()
    await expect(person.page.get_by_role("textbox", name="Link")).to_be_visible()
    yield "invitation"
    await person.page.keyboard.press("Escape")
    await person.open("/")
    await person.page.keyboard.press("?")
    yield "keys"


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.parametrize("looks", SOME)
async def test_before_anybody_is_in(browser: Browser, tmp_path: Path, looks: Looks) -> None:
    async with stage(tmp_path, agents=CAST) as on, visitor(browser, on.url) as person:
        person.watch.expect("404")
        found = [await look(person, name, looks) async for name in before(person, on)]
        assert not any(found), "\n".join(chain(*found))


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.parametrize("looks", SOME)
async def test_once_somebody_is_in(
    browser: Browser, performance: tuple[Stage, Phone], looks: Looks
) -> None:
    on, device = performance
    async with visitor(browser, on.url) as person:
        await person.open("/")
        await person.restore(to_backup_text(device.secret.secret))
        found = [await look(person, name, looks) async for name in inside(person)]
        assert not any(found), "\n".join(chain(*found))


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.parametrize("looks", SOME)
async def test_without_a_connection(browser: Browser, tmp_path: Path, looks: Looks) -> None:
    async with scene(browser, tmp_path) as s:
        s.person.watch.expect("ERR_", "WebSocket")
        await s.person.say("!say the last that came")
        await s.person.sees("the last that came", 2)
        await s.stage.stop_relay()
        await expect(s.person.page.get_by_role("status").filter(has_text="Offline")).to_be_visible()
        await s.person.say("This waits.")
        assert await look(s.person, "offline", looks) == []
        await s.stage.start_relay()
