"""Every state of the page, at every width and in both themes: axe finds no violations, nothing
scrolls sideways, and a screenshot is stored in `shots/` for people to look at."""

import re
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.dev_server import LONG_AGENT, DevServer, run_dev_server
from apps.web.tests.gateway.device_client import DeviceClient
from crabtalk_web.sealing import to_backup_text

from .browser_user import BrowserUser, open_browser_user
from .page_setup import PageSetup, build_agents, set_up_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

WidthsAndThemes = list[tuple[int, str]]
ALL: WidthsAndThemes = [(width, theme) for width in (360, 768, 1440) for theme in ("light", "dark")]
# By default each state is checked once, alternating wide and light with narrow and dark.
TURNS: list[WidthsAndThemes] = [[(1440, "light")], [(360, "dark")]]
THOROUGH = [pytest.param(False, id="once"), pytest.param(True, id="all", marks=pytest.mark.slow)]


async def check_states(
    person: BrowserUser, states: AsyncIterator[str], *, is_thorough: bool
) -> None:
    found = []
    turns = cycle(TURNS)
    async for name in states:
        for width, theme in ALL if is_thorough else next(turns):
            await person.take_screenshot(name, width, theme)
            found += [
                f"{name} at {width}, {theme}: {fault}" for fault in await person.find_faults()
            ]
    assert found == [], "\n".join(found)


async def visit_logged_out(person: BrowserUser, server: DevServer) -> AsyncIterator[str]:
    """What a logged-out person sees."""
    await person.open("/")
    await expect(person.button("Start here")).to_be_visible()
    yield "first-visit"
    await person.button(re.compile("already", re.IGNORECASE)).click()
    yield "ways-in"
    async with server.request_pairing() as pairing:
        await person.open(pairing.link)
        await expect(person.page.get_by_text("A machine asks to be let in")).to_be_visible()
        yield "pairing-welcome"
        await person.create_account()
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


async def visit_logged_in(person: BrowserUser) -> AsyncIterator[str]:
    """What a logged-in person sees."""
    await expect(person.conversation_link("runner")).to_be_visible()
    yield "list"
    for agent, awaited, name in (
        ("crab", "jitter", "conversation"),
        ("builder", "These are unused", "sub-agents"),
        ("runner", "Four pages", "running"),
        ("breaker", "the prompt is", "error"),
        ("painter", "pixels wide", "pictures"),
        (LONG_AGENT, "Question", "long"),
    ):
        await person.open_list()
        await person.open_conversation(agent)
        await person.wait_for_text(re.compile(awaited, re.IGNORECASE))
        yield name
    await person.open_list()
    await person.open_conversation("asker")
    await expect(person.question_form("Which version")).to_be_visible()
    yield "question"
    await person.open_list()
    await person.open_conversation("newcomer")
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


async def visit_offline(s: PageSetup) -> AsyncIterator[str]:
    """What a person sees whose relay is gone."""
    await s.say_scripted("Are you there?", "!say I am, for now.")
    await s.person.wait_for_text("for now")
    await s.person.wait_for_turn_end()
    await s.server.stop_relay()
    await expect(s.person.page.get_by_role("status").filter(has_text="Offline")).to_be_visible()
    await s.person.send_text("Then this has to wait.")
    yield "offline"


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.parametrize("is_thorough", THOROUGH)
@pytest.mark.slow
async def test_every_logged_out_state_is_accessible(
    browser: Browser, tmp_path: Path, is_thorough: bool
) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab")) as server,
        open_browser_user(browser, server.url) as person,
    ):
        person.watch.allow_faults("404")
        await check_states(person, visit_logged_out(person, server), is_thorough=is_thorough)


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_thorough", THOROUGH)
@pytest.mark.slow
async def test_every_logged_in_state_is_accessible(
    browser: Browser, conversations: tuple[DevServer, DeviceClient], is_thorough: bool
) -> None:
    server, device = conversations
    async with open_browser_user(browser, server.url) as person:
        await person.open("/")
        await person.restore_account(to_backup_text(device.secret.secret))
        await check_states(person, visit_logged_in(person), is_thorough=is_thorough)


@pytest.mark.req("page.accessible")
@pytest.mark.req("page.narrow")
@pytest.mark.parametrize("is_thorough", THOROUGH)
async def test_every_offline_state_is_accessible(
    browser: Browser, tmp_path: Path, is_thorough: bool
) -> None:
    async with set_up_page(browser, tmp_path) as s:
        s.person.watch.allow_faults("ERR_", "WebSocket")
        await check_states(s.person, visit_offline(s), is_thorough=is_thorough)
        await s.server.start_relay()
