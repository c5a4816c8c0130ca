"""What a person sees when a relay plays tricks, when it asks for an invite, and who is exposed."""

import asyncio
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from apps.web.stage import stage

from .scene import Home, cast
from .visitor import visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOT_DELIVERED = re.compile("^Not delivered:")


@pytest.mark.req("page.replay.told")
async def test_a_message_that_a_relay_delivers_twice_is_refused_before_everybodys_eyes(
    home: Home,
) -> None:
    async with home.room() as on:
        await on.ask("Pay the bill.", "!say Paid.")
        await on.person.sees("Paid.", 1)
        session = await on.session()
        path = f"/v3/sessions/{session.id}/messages"
        messages = (await on.device.ask("GET", f"{path}?limit=100"))["messages"]
        (said,) = [
            one
            for one in messages
            if session.sealer.open(one["content"]["c"]).get("role") == "user"
        ]
        again = {"content": said["content"]["c"], "localId": str(uuid.uuid4())}
        await on.device.ask("POST", path, {"messages": [again]})
        await on.person.sees(re.compile("delivered the message Pay the bill. a second time"), 1)
        await on.ask("Thank you.", "!say Welcome.")
        await on.person.sees("Welcome.", 1)
        assert await on.told("user") == ["Pay the bill.", "Thank you."]


@pytest.mark.req("page.replay.told")
async def test_a_message_that_a_relay_swallows_is_missed_and_the_person_can_go_on(
    home: Home,
) -> None:
    async with home.room() as on:
        await on.ask("First.", "!say One.")
        await on.person.sees("One.", 1)
        swallowed: list[Any] = []

        async def swallow(route: Route) -> None:
            """Says that it has the message, and keeps nothing."""
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

        await on.person.page.route("**/v3/sessions/*/messages", swallow)
        await on.ask("Second.", "!say Two.")
        async with asyncio.timeout(20):
            while not swallowed:
                await asyncio.sleep(0.02)
        await on.ask("Third.", "!say Three.")
        await on.person.sees(re.compile("a message before it is missing"), 1)
        await on.ask("Third again.", "!say Four.")
        await on.person.sees("Four.", 1)
        assert await on.told("user") == ["First.", "Third again."]


@pytest.mark.req("page.replay.unprotected")
async def test_clients_without_replay_protection_are_named_in_the_settings(home: Home) -> None:
    async with home.room() as on:
        await on.device.say(await on.session(), "!say hello")
        await on.person.sees("hello", 1)
        await on.person.settings()
        page = on.person.page
        note = page.get_by_role("note").filter(has_text="without replay protection")
        await expect(note).to_contain_text(on.agent)
        listed = page.get_by_role("listitem").filter(has_text="writes without replay protection")
        await expect(listed.first).to_be_visible()
        this = page.get_by_role("listitem").filter(has_text="This browser")
        await expect(this).not_to_contain_text("replay")
        assert await on.person.faults() == []


@pytest.mark.req("page.registration")
async def test_a_relay_that_asks_for_an_invite_says_so_and_takes_it(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        stage(tmp_path, agents=cast("crab"), registration="invite") as on,
        visitor(browser, on.url, width=360) as person,
    ):
        person.watch.expect("403")
        await person.open("/")
        await person.start_here()
        told = person.page.get_by_role("alert")
        await expect(told).to_contain_text("asks new accounts for an invite")
        field = person.page.get_by_role("textbox", name="Invite")
        await field.fill("WRONG-WRONG")
        await person.start_here()
        await expect(told).to_contain_text("wrong, used up or too old")
        assert await person.faults() == []
        await field.fill(await on.relay.create_invite(1, 60.0))
        await person.start_here()
        await expect(person.page.get_by_role("navigation", name="Conversations")).to_be_visible()


@pytest.mark.req("page.registration")
async def test_the_link_of_a_machine_can_carry_the_invite(browser: Browser, tmp_path: Path) -> None:
    async with (
        stage(tmp_path, agents=cast("crab"), registration="invite") as on,
        visitor(browser, on.url) as person,
        on.asking() as pairing,
    ):
        waiting = asyncio.ensure_future(pairing.wait())
        invite = await on.relay.create_invite(1, 60.0)
        await person.let_in(f"{pairing.link}&invite={invite}")
        await on.start_gateway(await waiting)
        await person.open_list()
        await person.enter("crab")
        await person.say("!say welcome")
        await person.sees("welcome", 2)
        assert invite not in person.page.url
