"""Approvals and modes, from the daemon's question to the person's button and back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.dev_server import PAGE
from apps.web.tests.gateway.approval_daemon import ApprovalWorld, make_approval, open_approval_world
from crabtalk.protocol import wire
from crabtalk_web.sealing import to_backup_text

from .browser_user import BrowserUser, open_browser_user

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Text that a page would change if it read it as Markdown.
COMMAND = (
    "command: python __init__.py --grep *line* > __main__.py\n"
    "# comment\n"
    "\n"
    "    indented `code` <b>bold</b>"
)
ALWAYS = "python with any arguments, in this conversation's directory"


@asynccontextmanager
async def open_approval_page(
    browser: Browser, path: Path, *, width: int = 1440, theme: str = "light"
) -> AsyncIterator[tuple[ApprovalWorld, BrowserUser]]:
    """A person in the conversation with crab."""
    async with (
        open_approval_world(path, static=PAGE) as world,
        open_browser_user(browser, world.relay.url, width=width, theme=theme) as person,
    ):
        await person.open("/")
        await person.restore_account(to_backup_text(world.phone.secret.secret))
        await person.open_conversation("crab")
        yield world, person


@pytest.mark.req("page.approval.literal")
@pytest.mark.req("page.approval.receipt")
async def test_a_call_is_shown_exactly_as_it_is_allowed_and_recorded(
    browser: Browser, tmp_path: Path
) -> None:
    async with open_approval_page(browser, tmp_path) as (world, person):
        world.daemon.begin_run("r1")
        request = make_approval(COMMAND, env={"PYTHONPATH": "__lib__"}, always=ALWAYS)
        world.daemon.ask_approval("r1", "a1", request)
        region = person.page.get_by_role("region", name="Permission to call bash")
        await expect(region).to_be_visible()
        box = region.get_by_role("region", name="The whole call, 4 lines")
        assert await box.evaluate("(one) => one.innerText") == COMMAND
        await expect(region).to_contain_text("PYTHONPATH=__lib__")
        await expect(region).to_contain_text("/w")
        await expect(region).to_contain_text("mode ask")
        await expect(region).to_contain_text(f"From now on allows: {ALWAYS}")
        assert await person.find_faults() == []
        # The focus has not moved: a person who types keeps typing, and sends no answer.
        await person.message_box.press("Enter")
        await person.send_text("Allow")
        await person.wait_for_text("a call waits for your answer above")
        assert world.daemon.replies == []
        await region.get_by_role("button", name="Always").click()
        reply = await world.daemon.wait_for_reply()
        assert json.loads(reply.content) == {COMMAND: "Always"}
        await expect(region).to_have_count(0)
        world.daemon.finish_run("r1")
        card = person.tool_card("Approve bash")
        await expect(card.locator(".tool-note")).to_have_text(f"Always allowed: {ALWAYS}")
        await person.expand(card)
        assert await card.locator(".literal").evaluate("(one) => one.innerText") == COMMAND
        assert await person.find_faults() == []


@pytest.mark.req("gateway.approval.owner")
@pytest.mark.req("page.approval.stranger")
async def test_a_strangers_call_needs_the_owners_answer(browser: Browser, tmp_path: Path) -> None:
    async with open_approval_page(browser, tmp_path, width=360) as (world, person):
        await person.open_list()
        request = make_approval(COMMAND, requested_by="tg:666", for_owner=True)
        world.daemon.ask_approval("s1", "a9", request, sender="tg:666")
        waiting = person.page.get_by_role("region", name="Needs your answer")
        words = "crab asks for permission to call bash, for tg:666"
        assert await person.find_faults() == []
        await waiting.get_by_role("link", name=words).click()
        region = person.page.get_by_role("region", name="Permission to call bash")
        await expect(region).to_contain_text("Asked for by tg:666, who is not you.")
        await region.get_by_role("button", name="Deny").click()
        reply = await world.daemon.wait_for_reply()
        assert (reply.sender, reply.ask_id, reply.as_owner) == ("tg:666", "a9", True)
        card = person.tool_card("Approve bash for tg:666")
        await expect(card.locator(".tool-note")).to_have_text("Denied")
        await person.open_list()
        await expect(waiting).to_have_count(0)


@pytest.mark.req("page.approval.literal")
async def test_a_cut_call_is_shown_in_full_once_there_is_room(
    browser: Browser, tmp_path: Path
) -> None:
    async with open_approval_page(browser, tmp_path) as (world, person):
        for number in range(3):
            request = make_approval(
                f"{number}" + "x" * 120_000,
                tool=f"tool{number}",
                digest=f"d{number}",
                requested_by="tg:666",
                for_owner=True,
            )
            world.daemon.ask_approval(f"s{number}", f"a{number}", request, sender="tg:666")
        last = person.page.get_by_role("region", name="Permission to call tool2")
        await expect(last).to_contain_text("too large to be shown here as a whole")
        first = person.page.get_by_role("region", name="Permission to call tool0")
        await first.get_by_role("button", name="Deny").click()
        await world.daemon.wait_for_reply()
        await last.get_by_role("button", name="Allow").click()
        reply = await world.daemon.wait_for_reply(2)
        assert (reply.ask_id, reply.as_owner) == ("a2", True)


@pytest.mark.req("page.mode")
async def test_the_mode_is_chosen_by_keyboard_and_follows_others(
    browser: Browser, tmp_path: Path
) -> None:
    async with open_approval_page(browser, tmp_path, width=360) as (world, person):
        await person.button("Mode: ask").press("Enter")
        dialog = person.page.get_by_role("dialog", name="Mode")
        ask = dialog.get_by_role("radio", name="ask", exact=True)
        await expect(ask).to_be_checked()
        await expect(dialog).to_contain_text("Edits and other commands ask you first.")
        assert await person.find_faults() == []
        await ask.press("ArrowUp")
        await expect(dialog.get_by_role("radio", name="plan")).to_be_checked()
        await person.page.keyboard.press("Escape")
        assert world.daemon.modes == {}
        await person.button("Mode: ask").click()
        await dialog.get_by_role("radio", name="plan").check()
        await dialog.get_by_role("button", name="Use this mode").click()
        await expect(person.button("Mode: plan")).to_be_visible()
        assert world.daemon.modes == {("crab", "user"): "plan"}
        await world.daemon.set_mode(wire.SetModeMsg(agent="crab", mode="auto"))
        await expect(person.button("Mode: auto")).to_be_visible()


@pytest.mark.req("page.approval.literal")
async def test_an_approval_fits_a_narrow_screen(browser: Browser, tmp_path: Path) -> None:
    async with open_approval_page(browser, tmp_path) as (world, person):
        await person.page.set_viewport_size({"width": 320, "height": 640})
        world.daemon.begin_run("r1")
        long = f"{COMMAND}{' ' * 3000}; rm -rf ~\n" + "x" * 400
        world.daemon.ask_approval(
            "r1", "a1", make_approval(long, env={"NAME": "v" * 300}, always=ALWAYS)
        )
        region = person.page.get_by_role("region", name="Permission to call bash")
        for name in ("Allow", "Deny", "Always"):
            await region.get_by_role("button", name=name).scroll_into_view_if_needed()
            await expect(region.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
        box = region.locator(".literal")
        assert await box.evaluate("(one) => one.textContent") == long
        assert await box.evaluate("(one) => one.scrollWidth <= one.clientWidth")
        assert await person.find_faults() == []
