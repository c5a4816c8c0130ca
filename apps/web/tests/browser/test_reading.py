"""Reading: search, unread counts, long conversations, and themes."""

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from apps.web.dev_server import LONG_AGENT
from crabtalk_web.sealing import new_key, to_base64, wrap_key
from crabtalk_web.stream import derive_id

from .page_setup import OWL, SharedPage, set_up_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.req("page.search")
async def test_messages_are_found_and_opened_in_their_place(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s:
        person = s.person
        await person.open_conversation(LONG_AGENT)
        await person.wait_for_text("Question 200:")
        await person.scroll_to_top("Question 1:")
        await person.search("part 3 built")
        hit = person.page.get_by_role("main").get_by_role("link").filter(has_text="Question 3:")
        await expect(hit.first).to_be_visible()
        await expect(hit.first.locator("mark").first).to_be_visible()
        # no request is sent
        assert not any("built" in address for address in person.watch.requested)
        await hit.first.click()
        await expect(person.log.get_by_text("Question 3:")).to_be_in_viewport()


@pytest.mark.req("page.long")
async def test_a_long_conversation_has_few_rows_in_the_page_and_does_not_jump(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation(enters=False) as s:
        person = s.person
        await person.open_conversation(LONG_AGENT)
        await person.wait_for_text("Question 200:")
        assert await person.log.locator(".entry").count() < 150
        await person.scroll_to_top("Question 1:")
        await expect(person.log.get_by_text("Question 1:")).to_be_in_viewport()
        assert await person.log.locator(".entry").count() < 300
        mark = person.log.get_by_text("Question 2:")
        before = await mark.bounding_box()
        await s.device.send_text(await s.wait_for_session(), "!say elsewhere")
        await s.device.wait_for_turns(await s.wait_for_session())
        assert await mark.bounding_box() == before


@pytest.mark.req("page.unread")
async def test_unread_messages_are_counted_until_they_are_read(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s:
        await s.person.open_conversation(OWL)
        await s.device.send_text(await s.wait_for_session(), "you have not seen this")
        entry = s.person.conversation_link(s.agent)
        await expect(entry).to_contain_text("you have not seen this")
        await expect(entry.locator(".badge")).to_be_visible()
        await s.person.open_conversation(s.agent)
        await s.person.wait_for_text("you have not seen this", 2)
        await expect(entry.locator(".badge")).to_be_hidden()


@pytest.mark.req("page.sealed")
async def test_a_conversation_that_cannot_be_opened_is_listed_and_explained(
    browser: Browser, tmp_path: Path
) -> None:
    async with set_up_page(browser, tmp_path, enters=False) as s:
        for number, key in enumerate((to_base64(wrap_key(new_key(), new_key())), "AAAA", None)):
            body = {"tag": derive_id("odd", number), "metadata": to_base64(new_key())}
            if key is not None:
                body["dataEncryptionKey"] = key
            await s.device.request("POST", "/v1/sessions", body)
        nav = s.person.page.get_by_role("navigation", name="Conversations")
        await expect(nav.get_by_text("Sealed conversation")).to_have_count(3)
        await s.person.open_conversation(s.agent)


@pytest.mark.req("page.theme")
async def test_a_chosen_theme_applies_from_the_first_moment(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s:
        page = s.person.page
        light = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        await s.person.open_settings()
        await page.get_by_role("radio", name="Dark").check()
        dark = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert dark != light
        await page.reload(wait_until="commit")
        await page.wait_for_function("() => document.body")
        now = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert now == dark
        await page.get_by_role("radio", name="As the system").check()
        await s.person.set_appearance(theme="light")
        assert await page.evaluate("() => getComputedStyle(document.body).backgroundColor") == light


@pytest.mark.req("page.install")
async def test_the_page_can_be_installed_and_opens_without_a_network(
    browser: Browser, tmp_path: Path
) -> None:
    async with set_up_page(browser, tmp_path, enters=False, keeps=True) as s:
        page = s.person.page
        await s.person.wait_for_service_worker()
        session = await page.context.new_cdp_session(page)
        manifest_reply = await session.send("Page.getAppManifest")
        assert manifest_reply["errors"] == []
        manifest = json.loads(manifest_reply["data"])
        assert manifest["display"] == "standalone"
        assert {"192x192", "512x512"} <= {icon["sizes"] for icon in manifest["icons"]}
        found = await session.send("Page.getInstallabilityErrors")
        wrong = [
            e["errorId"] for e in found["installabilityErrors"] if e["errorId"] != "in-incognito"
        ]
        assert wrong == []
        s.person.watch.allow_faults("ERR_", "WebSocket")
        await s.server.stop_relay()
        await page.reload()
        await expect(s.person.conversation_link("crab")).to_be_visible()
        await s.server.start_relay()


@pytest.mark.req("page.draft")
async def test_a_draft_survives_a_reload(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.person.message_box.press_sequentially("half a thought")
        await s.person.open_conversation(OWL)
        await expect(s.person.message_box).to_have_value("")
        await s.person.page.reload()
        await s.person.open_conversation(s.agent)
        await expect(s.person.message_box).to_have_value("half a thought")


@pytest.mark.req("page.tree")
async def test_sub_agents_are_below_their_call_and_guests_have_a_name(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation() as s:
        person = s.person
        inner = '!tool bash {"command": "echo deep"}\n!then\n!say from below'
        tasks = json.dumps({"tasks": [{"agent": "owl", "message": inner}]})
        await person.send_text(f"!tool delegate {tasks}\n!then\n!say from above")
        await person.wait_for_text("from above")
        task = person.log.locator(".entry").filter(has_text="owl").first
        await expect(task).to_contain_text(re.compile("owl"))
        await person.expand_all()
        await expect(task).to_contain_text("from below")
        await expect(task).to_contain_text("deep")
        await person.send_text("@owl !say hoo")
        await person.wait_for_text("hoo", 2)
        guest = person.log.locator(".entry").filter(has_text="hoo").last
        await expect(guest).to_contain_text("owl")
