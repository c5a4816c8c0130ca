"""What the page sends is a chain that a gateway takes without a fault, whatever happens to it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from apps.web.tests.gateway.phone import Phone, Session
from apps.web.tests.page.room import room, spoken, tell
from apps.web.tests.page.tab import PATIENCE, Tab, tab
from crabtalk_web.gateway.inbox import hash_of
from crabtalk_web.gateway.replay import Mark, Memory
from crabtalk_web.relay import Relay
from crabtalk_web.sealing import to_backup_text
from crabtalk_web.stream import Chain, derived_id, read_chain

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEND = "for (const text of given.texts) device.session(given.id).send(text);"


@pytest_asyncio.fixture(loop_scope="session")
async def wired(browser: Browser, relay: Relay) -> AsyncIterator[Tab]:
    async with tab(browser, relay.url, wired=True) as made:
        yield made


async def chains(person: Phone, session: Session, count: int) -> list[Chain]:
    """Those of all messages, once there are so many; a gateway would have taken each of them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            path = f"/v3/sessions/{session.id}/messages?limit=500"
            messages = (await person.ask("GET", path))["messages"]
            if len(messages) >= count:
                break
            await asyncio.sleep(0.02)
    memory = Memory()
    found: list[Chain] = []
    for message in messages:
        plain = session.sealer.open(message["content"]["c"])
        if plain["role"] == "session" and plain["content"]["role"] == "agent":
            continue
        chain = read_chain(plain)
        assert chain is not None, plain
        mark = Mark(hash_of(message["content"]["c"]), message["localId"], chain)
        assert memory.judge(mark, session.id) is None, (chain, found)
        memory.apply(mark, session.id)
        found.append(chain)
    assert len(found) == count
    return found


async def kept(tab: Tab) -> int:
    return int(await tab.do("return (await device.store.all('outbox')).length;"))


async def enter(tab: Tab, person: Phone) -> Session:
    session = await room(person)
    await tab.log_in(person)
    await tab.enter(session.id)
    return session


@pytest.mark.req("page.chain.sent")
async def test_messages_and_files_are_one_chain(one: Tab, person: Phone) -> None:
    session = await enter(one, person)
    await one.do(SEND, {"id": session.id, "texts": ["one", "two"]})
    await one.do(
        """const notes = new File(["abc"], "notes.txt", { type: "text/plain" });
        device.session(given).send("three", [notes, notes]);""",
        session.id,
    )
    found = await chains(person, session, 5)
    assert [chain.counter for chain in found] == [1, 2, 3, 4, 5]
    assert len({(chain.device, chain.chain) for chain in found}) == 1
    # Another session has a chain of its own, of the same device.
    other = await room(person)
    await one.enter(other.id)
    await one.do(SEND, {"id": other.id, "texts": ["four"]})
    (chain,) = await chains(person, other, 1)
    assert (chain.device, chain.counter) == (found[0].device, 1)
    assert chain.chain != found[0].chain


@pytest.mark.req("page.chain.retry")
async def test_an_answer_that_gets_lost_breaks_no_chain(one: Tab, person: Phone) -> None:
    session = await enter(one, person)
    posted: list[str] = []

    async def lose(route: Route) -> None:
        if route.request.method == "POST" and len(posted) < 2:
            posted.append(route.request.post_data or "")
            if len(posted) == 2:
                await route.fetch()
            await route.abort()
        else:
            posted.append(route.request.post_data or "")
            await route.fallback()

    await one.page.route("**/v3/sessions/*/messages", lose)
    one.watch.expect("ERR_FAILED")
    await one.do(SEND, {"id": session.id, "texts": ["one", "two"]})
    async with asyncio.timeout(PATIENCE):
        while await kept(one):
            await one.do("await device.outbox.send();")
    found = await chains(person, session, 2)
    assert [chain.counter for chain in found] == [1, 2]
    contents = [json.loads(text)["messages"][0] for text in posted[:3]]
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.req("page.chain.retry")
async def test_what_waited_offline_over_a_reload_is_one_chain(wired: Tab, person: Phone) -> None:
    session = await enter(wired, person)
    await wired.do(SEND, {"id": session.id, "texts": ["before"]})
    await chains(person, session, 1)
    await wired.cut_off()
    await wired.do(SEND, {"id": session.id, "texts": ["a", "b", "c"]})
    async with asyncio.timeout(PATIENCE):
        while await kept(wired) < 3:
            await asyncio.sleep(0.02)
    assert await wired.reload() == "ready"
    await wired.connect()
    found = await chains(person, session, 4)
    assert [chain.counter for chain in found] == [1, 2, 3, 4]


@pytest.mark.req("page.chain.retry")
async def test_two_tabs_and_two_devices_break_no_chain(
    browser: Browser, relay: Relay, wired: Tab, person: Phone
) -> None:
    session = await enter(wired, person)
    second = Tab(await wired.page.context.new_page(), wired.watch, wired.url)
    await second.open()
    await second.start()
    await second.enter(session.id)
    async with tab(browser, relay.url) as other:
        await other.log_in(person)
        await other.enter(session.id)
        texts = [str(number) for number in range(5)]
        await asyncio.gather(
            *(one.do(SEND, {"id": session.id, "texts": texts}) for one in (wired, second, other))
        )
        found = await chains(person, session, 15)
    by_chain: dict[str, int] = {}
    for chain in found:
        by_chain[chain.chain] = max(by_chain.get(chain.chain, 0), chain.counter)
    assert sorted(by_chain.values()) == [5, 10]
    assert len({chain.device for chain in found}) == 2


@pytest.mark.req("page.chain.anew")
async def test_what_is_dropped_or_refused_for_good_leaves_no_gap(one: Tab, person: Phone) -> None:
    session = await enter(one, person)
    await one.do(SEND, {"id": session.id, "texts": ["one"]})
    await chains(person, session, 1)
    refused = [True]

    async def refuse(route: Route) -> None:
        if route.request.method == "POST" and refused:
            await route.fulfill(status=413, json={"error": "too large"})
        else:
            await route.fallback()

    await one.page.route("**/v3/sessions/*/messages", refuse)
    one.watch.expect("413")
    await one.do(SEND, {"id": session.id, "texts": ["two", "three"]})
    rows = "device.session(given).story.rows"
    await one.until(f"{rows}.filter(({{ state }}) => state === 'failed').length === 2", session.id)
    refused.clear()
    await one.do(
        """const session = device.session(given);
        const [, two, three] = session.story.rows;
        await session.discard(two.id);
        session.send("four");
        await session.retry(three.id);""",
        session.id,
    )
    await chains(person, session, 3)


@pytest.mark.req("page.chain.anew")
async def test_a_device_whose_message_was_refused_begins_another_chain(
    one: Tab, person: Phone
) -> None:
    session = await enter(one, person)
    await one.do(SEND, {"id": session.id, "texts": ["one"]})
    (first,) = await chains(person, session, 1)

    def notice(reason: str, chain: str, number: int) -> dict[str, Any]:
        refused = {"reason": reason, "localId": "x", "chain": chain, "counter": 1}
        body = spoken(number)
        ev = {"t": "service", "text": f"**Not delivered:** {reason}", "refused": refused}
        ids = {"id": derived_id("notice", number), "ev": ev}
        return {**body, "content": {**body["content"], **ids}}

    # A repeat says nothing against the chain, nor does what is said of another one.
    await tell(person, session, notice("repeat", first.chain, 1), notice("gap", "another", 2))
    await one.until("device.session(given).seq === 3", session.id)
    await one.do(SEND, {"id": session.id, "texts": ["two"]})
    await one.until("device.session(given).seq === 4", session.id)
    await tell(person, session, notice("gap", first.chain, 3))
    await one.until("device.session(given).seq === 5", session.id)
    assert "**Not delivered:** gap" in await one.texts(session.id)
    await one.do(SEND, {"id": session.id, "texts": ["three"]})
    await one.until("device.session(given).seq === 6", session.id)
    plains = [said.plain for said in await person.read(session)]
    found = [chain for plain in plains if (chain := read_chain(plain)) is not None]
    assert [chain.counter for chain in found] == [1, 2, 1]
    assert found[2].chain != first.chain


@pytest.mark.req("page.chain.anew")
async def test_who_logs_out_and_comes_back_is_another_device(one: Tab, person: Phone) -> None:
    session = await enter(one, person)
    await one.do(SEND, {"id": session.id, "texts": ["one"]})
    await chains(person, session, 1)
    await one.do("await device.logOut();")
    await one.do("await device.restore(given);", to_backup_text(person.secret.secret))
    await one.enter(session.id)
    await one.do(SEND, {"id": session.id, "texts": ["two"]})
    first, second = await chains(person, session, 2)
    assert first.device != second.device
