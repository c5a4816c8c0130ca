"""Logging in and out of the page: links, backup text, invitations, and what is left afterwards."""

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.async_api import Browser, Page, expect

from apps.web.dev_server import run_dev_server
from crabtalk_web.sealing import (
    MasterSecret,
    from_backup_text,
    new_key,
    to_backup_text,
    to_base64,
    to_base64url,
)

from .browser_user import open_browser_user, read_script
from .page_setup import SharedPage, build_agents, set_up_page

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def read_stored(page: Page) -> dict[str, object]:
    found: dict[str, object] = await page.evaluate(read_script("kept"))
    return found


@pytest.mark.req("page.first_visit")
@pytest.mark.req("page.pair")
async def test_a_first_visitor_opens_the_link_approves_the_machine_and_talks(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab")) as server,
        open_browser_user(browser, server.url, width=360) as person,
        server.request_pairing() as pairing,
    ):
        waiting = asyncio.ensure_future(pairing.wait_for_approval())
        await person.approve_machine(pairing.link)
        await server.start_gateway(await waiting)
        await person.open_list()
        await person.open_conversation("crab")
        await person.send_text("!say welcome")
        await person.wait_for_text("welcome", 2)
        assert "#" not in person.page.url
        # A machine's link contains a public key, which may be found; our secrets may not.
        secret = from_backup_text(await person.read_backup_words())
        assert secret is not None
        for form in (to_base64(secret)[:-2], to_base64url(secret)[:-2], secret.hex()):
            assert not any(form in unquote(address) for address in person.watch.requested)


@pytest.mark.req("page.pair")
@pytest.mark.slow
async def test_an_invalid_link_says_what_to_do(browser: Browser, tmp_path: Path) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab")) as server,
        open_browser_user(browser, server.url) as person,
    ):
        person.watch.allow_faults("404", "410")
        key = to_base64(new_key()).replace("+", "-").replace("/", "_").rstrip("=")
        await person.approve_machine(f"/terminal/connect#key={key}")
        alert = person.page.get_by_role("alert")
        await expect(alert).to_contain_text("Run crabtalk-web again")


@pytest.mark.req("page.restore")
async def test_an_invalid_backup_text_is_refused_with_a_message(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab")) as server,
        open_browser_user(browser, server.url) as person,
    ):
        await person.open("/")
        await person.restore_account("these are no words")
        await expect(person.page.get_by_role("alert")).to_contain_text("52")
        right = to_backup_text(MasterSecret(new_key()).secret)
        await person.submit_backup_words(right)
        await expect(person.page.get_by_role("navigation", name="Conversations")).to_be_visible()


@pytest.mark.req("page.join")
async def test_a_second_device_is_invited_and_sees_the_same(
    browser: Browser, tmp_path: Path
) -> None:
    async with set_up_page(browser, tmp_path) as s, s.open_other_browser(width=360) as other:
        await s.person.send_text("!say before you came")
        await s.person.wait_for_text("before you came", 2)
        before = await s.person.read_rows()
        link = await s.person.create_invitation()
        await other.open(link)
        await other.button("Join").click()
        await s.person.button("Let it in").click()
        await other.open_conversation("crab")
        await other.wait_for_text("before you came", 2)
        assert await other.read_rows() == before
        await s.person.open_conversation("crab")
        await other.send_text("said on the second")
        await s.person.wait_for_text("said on the second", 2)
        seed = link.partition("#")[2]
        assert seed
        assert not any(seed in address for address in other.watch.requested)
        assert "#" not in other.page.url
        assert await other.read_backup_words() == s.backup_words


@pytest.mark.req("page.keys")
async def test_no_secret_is_stored_readably_in_the_browser(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        await s.person.send_text("!say something to keep")
        await s.person.wait_for_text("something to keep", 2)
        found = await read_stored(s.person.page)
        text = json.dumps(found)
        secret = from_backup_text(s.backup_words)
        assert secret is not None
        session = await s.wait_for_session()
        content = s.device.secret.content_keys.secret
        for hidden in (secret, session.key, content):
            for form in (to_base64(hidden), to_base64(hidden).rstrip("="), hidden.hex()):
                assert form not in text
        assert "something to keep" not in json.dumps([found["local"], found["session"]])
        keys = re.findall(r'"key": "(\w+)", "extractable": (\w+)', text)
        assert keys
        assert {extractable for kind, extractable in keys if kind != "public"} == {"false"}


@pytest.mark.req("page.logout")
@pytest.mark.slow
async def test_logging_out_leaves_nothing(browser: Browser, tmp_path: Path) -> None:
    async with set_up_page(browser, tmp_path, keeps=True) as s:
        await s.person.drop_file("beach.png", "image/png", b"\x89PNG no picture")
        await s.person.send_text("!say something to forget")
        await s.person.wait_for_text("something to forget", 2)
        devices = (await s.device.request("GET", "/v1/devices"))["devices"]
        await s.person.log_out()
        await expect(s.person.button("Start here")).to_be_visible()
        assert len((await s.device.request("GET", "/v1/devices"))["devices"]) == len(devices) - 1
        found = await read_stored(s.person.page)
        assert "something to forget" not in json.dumps(found)
        assert found["local"] == found["session"] == {}
        assert found["cookies"] == ""
        databases = found["databases"]
        assert isinstance(databases, dict)
        assert not any(rows for stores in databases.values() for rows in stores.values()), databases
        await s.person.open("/")
        await expect(s.person.button("Start here")).to_be_visible()


@pytest.mark.req("page.revoked")
@pytest.mark.slow
async def test_a_revoked_device_says_so(browser: Browser, tmp_path: Path) -> None:
    async with set_up_page(browser, tmp_path, enters=False) as s:
        s.person.watch.allow_faults("401", "WebSocket")
        before = {one["id"] for one in (await s.device.request("GET", "/v1/devices"))["devices"]}
        async with s.open_other_browser() as other:
            other.watch.allow_faults("401", "WebSocket")
            await other.open("/")
            await other.restore_account(s.backup_words)
            await expect(other.conversation_link("crab")).to_be_visible()
            after = {one["id"] for one in (await s.device.request("GET", "/v1/devices"))["devices"]}
            (new,) = after - before
            await s.device.request("DELETE", f"/v1/devices/{new}")
            await expect(other.page.locator("body")).to_contain_text("taken out of your account")
