"""Keyboard only: log in, talk, answer, stop, change settings, log out. The focus is always
visible."""

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from apps.web.dev_server import run_dev_server
from tests.daemon.in_process_daemon import script_tool_calls

from .browser_user import open_browser_user, read_script
from .page_setup import build_agents
from .test_turns import QUESTIONS

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOST_STEPS = 60


async def focus_by_name(page: Page, name: str, key: str = "Tab") -> None:
    """Press Tab until an element with this name has the focus."""
    passed: list[str] = []
    for _ in range(MOST_STEPS):
        found = await page.evaluate(read_script("focused"))
        if found is not None:
            passed.append(found["name"][:40])
            if found["name"].startswith(name):
                assert found["isSeen"], f"the focus of {name} is not visible"
                return
        await page.keyboard.press(key)
    raise AssertionError(f"{name} cannot be reached: {passed}")


@pytest.mark.req("page.keyboard")
async def test_everything_can_be_done_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab")) as server,
        open_browser_user(browser, server.url) as person,
        server.request_pairing() as pairing,
    ):
        page = person.page
        waiting = asyncio.ensure_future(pairing.wait_for_approval())
        await person.open(pairing.link)
        await expect(person.button("Start here")).to_be_visible()
        await focus_by_name(page, "Start here")
        await page.keyboard.press("Enter")
        await expect(person.button("Let it in")).to_be_visible()
        await focus_by_name(page, "Let it in")
        await page.keyboard.press("Enter")
        await server.start_gateway(await waiting)
        await expect(page.get_by_role("link", name="Open conversations")).to_be_visible()
        await focus_by_name(page, "Open conversations")
        await page.keyboard.press("Enter")
        await expect(person.conversation_link("crab")).to_be_visible()
        await focus_by_name(page, "crab")
        await page.keyboard.press("Enter")
        await expect(person.message_box).to_be_focused()

        await page.keyboard.type("!say hello to the keys")
        await page.keyboard.press("Enter")
        await person.wait_for_text("hello to the keys", 2)

        await page.keyboard.insert_text(script_tool_calls([("ask_user", {"questions": QUESTIONS})]))
        await page.keyboard.press("Enter")
        await expect(person.question_form("Which colour?")).to_be_visible()
        await focus_by_name(page, "blue", "Shift+Tab")
        await page.keyboard.press("ArrowUp")
        await expect(page.get_by_role("radio", name="red")).to_be_checked()
        await focus_by_name(page, "round")
        await page.keyboard.press("Space")
        await focus_by_name(page, "Answer")
        await page.keyboard.press("Enter")
        await person.wait_for_text("done")
        await person.wait_for_turn_end()

        await focus_by_name(page, "Message")
        await page.keyboard.insert_text("!say so far\n!hang")
        await page.keyboard.press("Enter")
        await expect(person.button("Stop")).to_be_visible()
        await page.keyboard.press("Control+.")
        await expect(person.button("Stop")).to_be_hidden()

        await focus_by_name(page, "Settings", "Shift+Tab")
        await page.keyboard.press("Enter")
        await focus_by_name(page, "Log out")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Search")
        await page.keyboard.press("Escape")
