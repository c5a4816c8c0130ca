"""The page's messages form a chain that a gateway accepts, whatever happens to the page."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession
from apps.web.tests.page.fake_gateway import build_text_body, create_session, send_bodies
from apps.web.tests.page.page_tab import PATIENCE, PageTab, open_page_tab
from crabtalk_web.gateway.inbox import hash_sealed
from crabtalk_web.gateway.replay_guard import MessageMark, ReplayGuard
from crabtalk_web.relay import RelayServer
from crabtalk_web.sealing import to_backup_text
from crabtalk_web.stream import ChainLink, derive_id, read_chain_link

pytestmark = pytest.mark.asyncio(loop_scope="session")

SEND = "for (const text of given.texts) device.session(given.id).send(text);"


@pytest_asyncio.fixture(loop_scope="session")
async def wired_tab(browser: Browser, relay: RelayServer) -> AsyncIterator[PageTab]:
    async with open_page_tab(browser, relay.url, can_go_offline=True) as tab:
        yield tab


async def read_chain_links(
    person: DeviceClient, session: DeviceSession, count: int
) -> list[ChainLink]:
    """The links of all messages, once there are so many; a gateway would have accepted each of
    them."""
    async with asyncio.timeout(PATIENCE):
        while True:
            path = f"/v3/sessions/{session.id}/messages?limit=500"
            messages = (await person.request("GET", path))["messages"]
            if len(messages) >= count:
                break
            await asyncio.sleep(0.02)
    memory = ReplayGuard()
    found: list[ChainLink] = []
    for message in messages:
        plain = session.sealer.open(message["content"]["c"])
        if plain["role"] == "session" and plain["content"]["role"] == "agent":
            continue
        chain = read_chain_link(plain)
        assert chain is not None, plain
        mark = MessageMark(hash_sealed(message["content"]["c"]), message["localId"], chain)
        assert memory.find_refusal_reason(mark, session.id) is None, (chain, found)
        memory.apply(mark, session.id)
        found.append(chain)
    assert len(found) == count
    return found


async def count_unsent(tab: PageTab) -> int:
    return int(await tab.evaluate("return (await device.store.all('outbox')).length;"))


async def enter_session(tab: PageTab, person: DeviceClient) -> DeviceSession:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    return session


@pytest.mark.req("page.chain.sent")
async def test_messages_and_files_are_one_chain(tab: PageTab, person: DeviceClient) -> None:
    session = await enter_session(tab, person)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["one", "two"]})
    await tab.evaluate(
        """const notes = new File(["abc"], "notes.txt", { type: "text/plain" });
        device.session(given).send("three", [notes, notes]);""",
        session.id,
    )
    found = await read_chain_links(person, session, 5)
    assert [chain.counter for chain in found] == [1, 2, 3, 4, 5]
    assert len({(chain.device, chain.chain) for chain in found}) == 1
    # In another session the same device has another chain.
    other = await create_session(person)
    await tab.open_session(other.id)
    await tab.evaluate(SEND, {"id": other.id, "texts": ["four"]})
    (chain,) = await read_chain_links(person, other, 1)
    assert (chain.device, chain.counter) == (found[0].device, 1)
    assert chain.chain != found[0].chain


@pytest.mark.req("page.chain.retry")
async def test_a_lost_answer_breaks_no_chain(tab: PageTab, person: DeviceClient) -> None:
    session = await enter_session(tab, person)
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

    await tab.page.route("**/v3/sessions/*/messages", lose)
    tab.watch.allow_faults("ERR_FAILED")
    await tab.evaluate(SEND, {"id": session.id, "texts": ["one", "two"]})
    async with asyncio.timeout(PATIENCE):
        while await count_unsent(tab):
            await tab.evaluate("await device.outbox.send();")
    found = await read_chain_links(person, session, 2)
    assert [chain.counter for chain in found] == [1, 2]
    contents = [json.loads(text)["messages"][0] for text in posted[:3]]
    assert contents[0] == contents[1] == contents[2]


@pytest.mark.req("page.chain.retry")
async def test_offline_messages_kept_over_a_reload_are_one_chain(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    session = await enter_session(wired_tab, person)
    await wired_tab.evaluate(SEND, {"id": session.id, "texts": ["before"]})
    await read_chain_links(person, session, 1)
    await wired_tab.go_offline()
    await wired_tab.evaluate(SEND, {"id": session.id, "texts": ["a", "b", "c"]})
    async with asyncio.timeout(PATIENCE):
        while await count_unsent(wired_tab) < 3:
            await asyncio.sleep(0.02)
    assert await wired_tab.reload() == "ready"
    await wired_tab.go_online()
    found = await read_chain_links(person, session, 4)
    assert [chain.counter for chain in found] == [1, 2, 3, 4]


@pytest.mark.req("page.chain.retry")
async def test_two_tabs_and_two_devices_break_no_chain(
    browser: Browser, relay: RelayServer, wired_tab: PageTab, person: DeviceClient
) -> None:
    session = await enter_session(wired_tab, person)
    second = PageTab(await wired_tab.page.context.new_page(), wired_tab.watch, wired_tab.url)
    await second.open()
    await second.start_device()
    await second.open_session(session.id)
    async with open_page_tab(browser, relay.url) as other:
        await other.log_in(person)
        await other.open_session(session.id)
        texts = [str(number) for number in range(5)]
        await asyncio.gather(
            *(
                tab.evaluate(SEND, {"id": session.id, "texts": texts})
                for tab in (wired_tab, second, other)
            )
        )
        found = await read_chain_links(person, session, 15)
    by_chain: dict[str, int] = {}
    for chain in found:
        by_chain[chain.chain] = max(by_chain.get(chain.chain, 0), chain.counter)
    assert sorted(by_chain.values()) == [5, 10]
    assert len({chain.device for chain in found}) == 2


@pytest.mark.req("page.chain.anew")
async def test_dropped_and_refused_messages_leave_no_gap(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await enter_session(tab, person)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["one"]})
    await read_chain_links(person, session, 1)
    refused = [True]

    async def refuse(route: Route) -> None:
        if route.request.method == "POST" and refused:
            await route.fulfill(status=413, json={"error": "too large"})
        else:
            await route.fallback()

    await tab.page.route("**/v3/sessions/*/messages", refuse)
    tab.watch.allow_faults("413")
    await tab.evaluate(SEND, {"id": session.id, "texts": ["two", "three"]})
    rows = "device.session(given).story.rows"
    await tab.wait_for(
        f"{rows}.filter(({{ state }}) => state === 'failed').length === 2", session.id
    )
    refused.clear()
    await tab.evaluate(
        """const session = device.session(given);
        const [, two, three] = session.story.rows;
        await session.discard(two.id);
        session.send("four");
        await session.retry(three.id);""",
        session.id,
    )
    await read_chain_links(person, session, 3)


@pytest.mark.req("page.chain.anew")
async def test_a_device_starts_another_chain_after_a_refusal(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await enter_session(tab, person)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["one"]})
    (first,) = await read_chain_links(person, session, 1)

    def notice(reason: str, chain: str, number: int) -> dict[str, Any]:
        refused = {"reason": reason, "localId": "x", "chain": chain, "counter": 1}
        body = build_text_body(number)
        ev = {"t": "service", "text": f"**Not delivered:** {reason}", "refused": refused}
        ids = {"id": derive_id("notice", number), "ev": ev}
        return {**body, "content": {**body["content"], **ids}}

    # A replay does not close the chain, nor does a line about another chain.
    await send_bodies(
        person, session, notice("repeat", first.chain, 1), notice("gap", "another", 2)
    )
    await tab.wait_for("device.session(given).seq === 3", session.id)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["two"]})
    await tab.wait_for("device.session(given).seq === 4", session.id)
    await send_bodies(person, session, notice("gap", first.chain, 3))
    await tab.wait_for("device.session(given).seq === 5", session.id)
    assert "**Not delivered:** gap" in await tab.read_texts(session.id)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["three"]})
    await tab.wait_for("device.session(given).seq === 6", session.id)
    plains = [texts.plain for texts in await person.read_messages(session)]
    found = [chain for plain in plains if (chain := read_chain_link(plain)) is not None]
    assert [chain.counter for chain in found] == [1, 2, 1]
    assert found[2].chain != first.chain


@pytest.mark.req("page.chain.anew")
async def test_logging_in_again_makes_another_device(tab: PageTab, person: DeviceClient) -> None:
    session = await enter_session(tab, person)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["one"]})
    await read_chain_links(person, session, 1)
    await tab.evaluate("await device.logOut();")
    await tab.evaluate("await device.restore(given);", to_backup_text(person.secret.secret))
    await tab.open_session(session.id)
    await tab.evaluate(SEND, {"id": session.id, "texts": ["two"]})
    first, second = await read_chain_links(person, session, 2)
    assert first.device != second.device
