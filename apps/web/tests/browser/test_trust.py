"""What a person sees when a relay cheats, when it asks for an invite, and which clients are
unprotected."""

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from apps.web.dev_server import run_dev_server

from .browser_user import open_browser_user
from .page_setup import SharedPage, build_agents

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOT_DELIVERED = re.compile("^Not delivered:")


@pytest.mark.req("page.replay.told")
async def test_a_message_that_a_relay_delivers_twice_is_visibly_refused(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation() as server:
        await server.say_scripted("Pay the bill.", "!say Paid.")
        await server.person.wait_for_text("Paid.", 1)
        session = await server.wait_for_session()
        path = f"/v3/sessions/{session.id}/messages"
        messages = (await server.device.request("GET", f"{path}?limit=100"))["messages"]
        (said,) = [
            one
            for one in messages
            if session.sealer.open(one["content"]["c"]).get("role") == "user"
        ]
        repeated = {"content": said["content"]["c"], "localId": str(uuid.uuid4())}
        await server.device.request("POST", path, {"messages": [repeated]})
        await server.person.wait_for_text(
            re.compile("delivered the message Pay the bill. a second time"), 1
        )
        await server.say_scripted("Thank you.", "!say Welcome.")
        await server.person.wait_for_text("Welcome.", 1)
        assert await server.read_stored_texts("user") == ["Pay the bill.", "Thank you."]


@pytest.mark.req("page.replay.told")
async def test_a_message_that_a_relay_drops_is_noticed_and_the_person_can_continue(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation() as server:
        await server.say_scripted("First.", "!say One.")
        await server.person.wait_for_text("One.", 1)
        swallowed: list[Any] = []

        async def swallow(route: Route) -> None:
            """Confirm the message without storing it."""
            if route.request.method != "POST" or swallowed:
                await route.fallback()
                return
            sent = json.loads(route.request.post_data or "")["messages"]
            swallowed.extend(sent)
            receipts = [
                {"id": "x", "seq": 999, "localId": one["localId"], "createdAt": 1, "updatedAt": 1}
                for one in sent
            ]
            await route.fulfill(json={"messages": receipts})

        await server.person.page.route("**/v3/sessions/*/messages", swallow)
        await server.say_scripted("Second.", "!say Two.")
        async with asyncio.timeout(20):
            while not swallowed:
                await asyncio.sleep(0.02)
        await server.say_scripted("Third.", "!say Three.")
        await server.person.wait_for_text(re.compile("a message before it is missing"), 1)
        await server.say_scripted("Third again.", "!say Four.")
        await server.person.wait_for_text("Four.", 1)
        assert await server.read_stored_texts("user") == ["First.", "Third again."]


@pytest.mark.req("page.replay.unprotected")
async def test_clients_without_replay_protection_are_named_in_the_settings(
    home: SharedPage,
) -> None:
    async with home.open_new_conversation() as server:
        await server.device.send_text(await server.wait_for_session(), "!say hello")
        await server.person.wait_for_text("hello", 1)
        await server.person.open_settings()
        page = server.person.page
        note = page.get_by_role("note").filter(has_text="without replay protection")
        await expect(note).to_contain_text(server.agent)
        listed = page.get_by_role("listitem").filter(has_text="writes without replay protection")
        await expect(listed.first).to_be_visible()
        this = page.get_by_role("listitem").filter(has_text="This browser")
        await expect(this).not_to_contain_text("replay")
        assert await server.person.find_faults() == []


@pytest.mark.req("page.registration")
async def test_a_relay_that_requires_an_invite_says_so_and_accepts_it(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab"), registration="invite") as server,
        open_browser_user(browser, server.url, width=360) as person,
    ):
        person.watch.allow_faults("403")
        await person.open("/")
        await person.create_account()
        alert = person.page.get_by_role("alert")
        await expect(alert).to_contain_text("asks new accounts for an invite")
        field = person.page.get_by_role("textbox", name="Invite")
        await field.fill("WRONG-WRONG")
        await person.create_account()
        await expect(alert).to_contain_text("wrong, used up or too old")
        assert await person.find_faults() == []
        await field.fill(await server.relay.create_invite(1, 60.0))
        await person.create_account()
        await expect(person.page.get_by_role("navigation", name="Conversations")).to_be_visible()


@pytest.mark.req("page.registration")
async def test_a_machines_link_can_contain_the_invite(browser: Browser, tmp_path: Path) -> None:
    async with (
        run_dev_server(tmp_path, agents=build_agents("crab"), registration="invite") as server,
        open_browser_user(browser, server.url) as person,
        server.request_pairing() as pairing,
    ):
        waiting = asyncio.ensure_future(pairing.wait_for_approval())
        invite = await server.relay.create_invite(1, 60.0)
        await person.approve_machine(f"{pairing.link}&invite={invite}")
        await server.start_gateway(await waiting)
        await person.open_list()
        await person.open_conversation("crab")
        await person.send_text("!say welcome")
        await person.wait_for_text("welcome", 2)
        assert invite not in person.page.url
