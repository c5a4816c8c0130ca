"""Histories: nothing is skipped or doubled, in pages, live and after an absence."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from apps.web.tests.gateway.device_client import DeviceClient
from apps.web.tests.page.fake_gateway import (
    build_body,
    build_text_body,
    create_session,
    send_bodies,
)
from apps.web.tests.page.page_tab import PageTab, open_page_tab
from crabtalk_web.relay import RelayServer
from crabtalk_web.sealing import to_backup_text

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Counts reads from disk, from now on.
COUNTED = """
window.counted = 0;
const getAll = IDBObjectStore.prototype.getAll;
IDBObjectStore.prototype.getAll = function (...given) {
  const request = getAll.apply(this, given);
  if (this.name === "messages") {
    request.addEventListener("success", () => { window.counted += request.result.length; });
  }
  return request;
};
"""


@pytest_asyncio.fixture(loop_scope="session")
async def wired_tab(browser: Browser, relay: RelayServer) -> AsyncIterator[PageTab]:
    async with open_page_tab(browser, relay.url, can_go_offline=True) as tab:
        yield tab


def list_said(first: int, last: int) -> list[str]:
    return [f"said {number}" for number in range(first, last + 1)]


@pytest.mark.req("page.history.newest")
@pytest.mark.req("page.history.older")
async def test_a_long_conversation_opens_with_its_newest_page_and_loads_back_to_the_first(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    tab = wired_tab
    session = await create_session(person, agent="keeper")
    await send_bodies(person, session, *(build_text_body(number) for number in range(1, 1101)))
    await tab.log_in(person)
    await tab.open_session(session.id)
    assert (await tab.read_texts(session.id))[-1] == "said 1100"
    history = await tab.evaluate("return device.session(given).history;", session.id)
    assert (history["state"], history["hasOlder"], history["total"]) == ("idle", True, 1100)
    # All of it is fetched in the background; the person need not scroll.
    await tab.wait_for("device.session(given).isWhole", session.id)
    assert await tab.evaluate("return device.session(given).story.rows.length;", session.id) == 200
    # Opened offline, it reads one page and no more.
    await tab.go_offline()
    await tab.page.reload()
    await tab.evaluate(COUNTED)
    await tab.start_device()
    await tab.evaluate("await device.session(given).open();", session.id)
    assert await tab.evaluate("return window.counted;") == 200
    assert await tab.read_texts(session.id) == list_said(901, 1100)
    loaded = await tab.evaluate(
        """const session = device.session(given);
        const sizes = [];
        while (session.history.hasOlder) {
          await session.loadOlder();
          sizes.push(session.story.rows.length);
        }
        return sizes;""",
        session.id,
    )
    assert loaded == [400, 600, 800, 1000, 1100]
    assert await tab.read_texts(session.id) == list_said(1, 1100)


@pytest.mark.req("page.history.older")
async def test_pages_that_fail_to_load_are_reported_and_can_be_retried(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, *(build_text_body(number) for number in range(1, 301)))
    wired_tab.watch.allow_faults("ERR_")
    await wired_tab.page.route("**/messages?before_seq=*&limit=500", lambda route: route.abort())
    await wired_tab.log_in(person)
    await wired_tab.open_session(session.id)
    await wired_tab.go_offline()
    events = await wired_tab.evaluate(
        """const session = device.session(given);
        const message = await session.loadOlder().catch((error) => error.message);
        return [message, session.history.state, session.history.problem];""",
        session.id,
    )
    assert "cannot be reached" in events[0]
    assert events[1:] == ["failed", events[0]]
    await wired_tab.go_online()
    await wired_tab.evaluate("await device.session(given).loadOlder();", session.id)
    assert await wired_tab.read_texts(session.id) == list_said(1, 300)
    assert (
        await wired_tab.evaluate("return device.session(given).history.state;", session.id)
        == "idle"
    )


@pytest.mark.req("page.history.cursor")
async def test_a_message_after_a_gap_causes_the_missing_ones_to_be_fetched(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1))
    await tab.log_in(person)
    await tab.open_session(session.id)
    # The socket delivers the third without the second, and the third again.
    await tab.evaluate(
        """window.told = [];
        const session = device.session(given);
        const hear = session.hear.bind(session);
        session.hear = (message) => {
          told.push(message);
          if (told.length === 3) {
            hear(told[1]);
            hear(told[2]);
            hear(told[1]);
          }
        };""",
        session.id,
    )
    await send_bodies(person, session, build_text_body(2), build_text_body(3), build_text_body(4))
    await tab.wait_for("window.told.length === 3")
    await tab.wait_for("device.session(given).story.rows.length === 4", session.id)
    assert await tab.read_texts(session.id) == list_said(1, 4)
    await tab.reload()
    await tab.open_session(session.id)
    assert await tab.read_texts(session.id) == list_said(1, 4)


@pytest.mark.req("page.history.cursor")
async def test_messages_between_our_own_are_not_skipped(tab: PageTab, person: DeviceClient) -> None:
    """Our own messages get numbers in their answers, too; the cursor does not move by them."""
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    await tab.evaluate(
        "device.session(given).hear = () => {};", session.id
    )  # a socket that receives nothing
    await tab.evaluate(
        "for (const text of ['a', 'b']) { device.session(given).send(text); }"
        "const kept = () => device.store.all('outbox');"
        "while ((await kept()).length) await new Promise(requestAnimationFrame);",
        session.id,
    )
    await send_bodies(person, session, build_text_body(1))
    await tab.evaluate("device.session(given).send('c');", session.id)
    await tab.wait_for("device.session(given).seq === 4", session.id)
    assert sorted(await tab.read_texts(session.id)) == ["a", "b", "c", "said 1"]
    rows = [each.plain["content"] for each in await person.read_messages(session)]
    order = [row.get("text") or row["ev"]["text"] for row in rows]
    assert await tab.read_texts(session.id) == order


@pytest.mark.req("page.history.absence")
@pytest.mark.parametrize("count", [pytest.param(700, marks=pytest.mark.slow), 2600])
async def test_after_an_absence_all_messages_are_there(
    wired_tab: PageTab, person: DeviceClient, count: int
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, *(build_text_body(number) for number in range(1, 31)))
    await wired_tab.log_in(person)
    await wired_tab.open_session(session.id)
    await wired_tab.go_offline()
    await send_bodies(
        person, session, *(build_text_body(number) for number in range(31, count + 1))
    )
    await wired_tab.go_online()
    await wired_tab.wait_for(
        "device.session(given.id).story.rows.at(-1).text === given.last",
        {"id": session.id, "last": f"said {count}"},
    )
    texts = await wired_tab.read_texts(session.id)
    assert texts == list_said(count + 1 - len(texts), count)
    await wired_tab.evaluate(
        """const session = device.session(given);
        while (session.history.hasOlder) await session.loadOlder();""",
        session.id,
    )
    assert await wired_tab.read_texts(session.id) == list_said(1, count)


@pytest.mark.req("page.history.devices")
async def test_two_devices_read_the_same_order_during_concurrent_messages(
    browser: Browser, relay: RelayServer, tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    async with open_page_tab(browser, relay.url) as other:
        for device in (tab, other):
            await device.log_in(person)
            await device.open_session(session.id)

        async def talk(device: PageTab, name: str) -> None:
            for number in range(8):
                await device.evaluate(
                    "device.session(given.id).send(given.text);",
                    {"id": session.id, "text": f"{name} {number}"},
                )

        async def burst() -> None:
            for number in range(0, 60, 5):
                await send_bodies(
                    person, session, *(build_text_body(number + each) for each in range(5))
                )

        await asyncio.gather(talk(tab, "one"), talk(other, "other"), burst())
        for device in (tab, other):
            await device.wait_for(
                "device.session(given).story.rows.length === 76 &&"
                " device.session(given).story.rows.every(({ state }) => !state || state === 'sent')"
                " && device.session(given).seq === 76",
                session.id,
            )
        assert await tab.read_texts(session.id) == await other.read_texts(session.id)
        texts = await tab.read_texts(session.id)
        assert [text for text in texts if text.startswith("one")] == [f"one {n}" for n in range(8)]
        # The same when it is read from disk.
        before = texts
        await tab.reload()
        await tab.open_session(session.id)
        assert await tab.read_texts(session.id) == before


@pytest.mark.req("page.list")
async def test_the_list_shows_unread_counts_and_the_latest_first(
    tab: PageTab, person: DeviceClient
) -> None:
    first, second = (
        await create_session(person, agent="first"),
        await create_session(person, agent="second"),
    )
    await send_bodies(person, first, build_text_body(1, "old news"))
    await tab.log_in(person)
    await tab.wait_for("device.sessions.length === 2 && device.session(given).preview", first.id)
    events = "device.sessions.map((s) => [s.agent, s.preview, s.unread, s.isWorking])"
    assert ["first", "old news", 0, False] in await tab.evaluate(f"return {events};")
    turn = {"turn": "cturn00000000000000000001"}
    await send_bodies(
        person,
        second,
        build_body(1, {"t": "turn-start"}, **turn),
        build_body(2, {"t": "text", "text": "hm", "thinking": True}, **turn),
        build_body(3, {"t": "text", "text": "\n# Fresh\nmore"}, **turn),
    )
    await tab.wait_for("device.session(given).unread === 1", second.id)
    assert await tab.evaluate(f"return {events}[0];") == ["second", "# Fresh", 1, True]
    await tab.reload()
    assert await tab.evaluate(f"return {events}[0];") == ["second", "# Fresh", 1, True]
    await tab.evaluate("device.session(given).seen();", second.id)
    await send_bodies(
        person, second, build_body(4, {"t": "turn-end", "status": "completed"}, **turn)
    )
    await tab.wait_for("!device.session(given).isWorking", second.id)
    assert await tab.evaluate(f"return {events}[0];") == ["second", "# Fresh", 0, False]
    await person.request("DELETE", f"/v1/sessions/{second.id}")
    await tab.wait_for("device.sessions.length === 1")
    stored = await tab.evaluate(
        "return (await device.store.all('messages')).map(({ session }) => session);"
    )
    assert second.id not in stored


@pytest.mark.req("page.list")
async def test_messages_sent_while_the_page_was_closed_are_in_the_list(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1, "before"))
    await tab.log_in(person)
    await tab.wait_for("device.session(given)?.preview === 'before'", session.id)
    await tab.open()
    await send_bodies(
        person, session, build_text_body(2, "meanwhile"), build_text_body(3, "and more")
    )
    await tab.start_device()
    await tab.wait_for("device.session(given).unread === 2", session.id)
    assert await tab.evaluate("return device.session(given).preview;", session.id) == "and more"


@pytest.mark.req("page.search")
async def test_everything_on_this_device_is_found_without_requests(
    tab: PageTab, person: DeviceClient
) -> None:
    session, other = (
        await create_session(person, agent="keeper"),
        await create_session(person, agent="owl"),
    )
    call = {
        "t": "tool-call-start",
        "call": "c",
        "name": "bash",
        "title": "Run `ls`",
        "description": "Run `ls beach`",
        "args": {},
    }
    lines = [build_text_body(number) for number in range(1, 700)]
    await send_bodies(
        person,
        session,
        build_text_body(0, f"{'x' * 90} The tide comes to the Beach at noon"),
        *lines,
    )
    await person.send_text(session, "Was the beach empty?")
    await send_bodies(
        person, other, build_body(1, call), build_text_body(2, "nothing of that kind")
    )
    await tab.log_in(person)
    await tab.wait_for("device.sessions.length === 2 && device.sessions.every((s) => s.isWhole)")
    await tab.page.route("**/v3/**", lambda route: route.abort())
    find = """const hits = [];
        for await (const { session, rowIds, seq, snippet, time } of device.search(given)) {
          hits.push([session.agent, seq, snippet, rowIds.length, time > 0]);
        }
        return hits;"""
    for _ in range(2):  # the second time from memory
        hits = await tab.evaluate(find, "BEACH")
        assert {(agent, seq) for agent, seq, *_ in hits} == {
            ("keeper", 1),
            ("keeper", 701),
            ("owl", 1),
        }
        assert [seq for agent, seq, *_ in hits if agent == "keeper"] == [701, 1]
        snippet = next(hit[2] for hit in hits if hit[:2] == ["keeper", 1])
        assert "".join(part["text"] for part in snippet).endswith("comes to the Beach at noon")
        assert [part["text"] for part in snippet if part["hit"]] == ["Beach"]
        assert len(await tab.evaluate(find, "tide noon")) == 1
        assert await tab.evaluate(find, "tide nowhere") == []
        assert await tab.evaluate(find, "  ") == []
    # A hit can be opened in its conversation.
    await tab.page.unroute("**/v3/**")
    await tab.open_session(session.id)
    found = await tab.evaluate(
        """const [hit] = await Array.fromAsync(device.search("tide"));
        await hit.session.loadTo(hit.seq);
        return hit.session.story.rows.find(({ id }) => id === hit.rowIds[0])?.text.slice(-4);"""
    )
    assert found == "noon"


@pytest.mark.req("page.history.cursor")
async def test_a_message_that_arrives_during_opening_hides_no_others(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1), build_text_body(2))
    await tab.log_in(person)
    await tab.wait_for("device.session(given)?.isWhole", session.id)  # on disk, and not in view
    await tab.evaluate(
        """const opened = () => { window.opening = device.session(given).open(); };
        device.socket.addEventListener("update", opened, { once: true });""",
        session.id,
    )
    await send_bodies(person, session, build_text_body(3))
    await tab.wait_for("Boolean(window.opening)")
    await tab.evaluate("await opening;")
    assert await tab.read_texts(session.id) == list_said(1, 3)


@pytest.mark.req("page.list.current")
async def test_updates_during_a_listing_are_not_overwritten(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    deleted = await create_session(person)
    await wired_tab.log_in(person)
    await wired_tab.wait_for("device.session(given)", deleted.id)
    await wired_tab.go_offline()
    listed, events = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        answer = await route.fetch()
        listed.set()
        await events.wait()
        await route.fulfill(response=answer)

    await wired_tab.page.route("**/v2/sessions?*", late)
    await wired_tab.go_online()
    await listed.wait()  # the relay has answered, and the answer is in transit
    come = await create_session(person)
    await person.request("DELETE", f"/v1/sessions/{deleted.id}")
    await wired_tab.wait_for("device.session(given)", come.id)
    await wired_tab.wait_for("!device.session(given)", deleted.id)
    async with wired_tab.page.expect_response("**/v2/sessions?*"):
        events.set()
    await send_bodies(person, come, build_text_body(1))
    await wired_tab.open_session(come.id)
    assert await wired_tab.read_texts(come.id) == list_said(1, 1)
    assert await wired_tab.evaluate("return device.sessions.map(({ id }) => id);") == [come.id]
    assert [
        row["id"] for row in await wired_tab.evaluate("return device.store.all('sessions');")
    ] == [come.id]


@pytest.mark.req("page.history.rubbish")
async def test_an_invalid_page_is_fetched_again_and_leaves_no_gap(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, *(build_text_body(number) for number in range(1, 251)))
    left = ["<html>", "null", '{"messages": [7], "hasMore": false}', '{"messages": []}', "[]"]

    async def lie(route: Route) -> None:
        if left:
            await route.fulfill(status=200, body=left.pop())
        else:
            await route.fallback()

    await tab.page.route("**/v3/sessions/*/messages?*", lie)
    await tab.log_in(person)
    await tab.open_session(session.id)
    await tab.wait_for("device.session(given).story.rows.length", session.id)
    assert left == []
    await tab.evaluate(
        """const session = device.session(given);
        while (session.history.hasOlder) await session.loadOlder();""",
        session.id,
    )
    assert await tab.read_texts(session.id) == list_said(1, 250)


@pytest.mark.req("page.history.full")
async def test_a_browser_without_storage_space_still_shows_everything(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, *(build_text_body(number) for number in range(1, 451)))
    await tab.start_device()
    await tab.evaluate(
        """const { Store } = await import("/device/store.js");
        const full = new DOMException("", "QuotaExceededError");
        Store.prototype.change = () => Promise.reject(full);"""
    )
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url))
    await tab.evaluate("await device.restore(given);", to_backup_text(person.secret.secret))
    await tab.open_session(session.id)
    await send_bodies(person, session, build_text_body(451))
    await tab.wait_for("device.session(given).story.rows.at(-1).text === 'said 451'", session.id)
    await tab.evaluate(
        """const session = device.session(given);
        while (session.history.hasOlder) await session.loadOlder();""",
        session.id,
    )
    assert await tab.read_texts(session.id) == list_said(1, 451)
    # It does not fetch forever what it cannot store.
    assert len([url for url in requests if "before_seq" in url]) < 10


@pytest.mark.req("page.outbox.refused")
async def test_messages_that_could_not_be_stored_are_reported_and_can_be_resent(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    await tab.evaluate(
        """const { putSafely } = device.store;
        device.store.putSafely = () => Promise.reject(new DOMException("", "QuotaExceededError"));
        window.row = device.session(given).send("kept?");
        window.free = () => { device.store.putSafely = putSafely; };""",
        session.id,
    )
    await tab.wait_for("row.state === 'failed'")
    assert "Free some space" in await tab.evaluate("return row.problem;")
    await tab.evaluate("free(); await device.session(given).retry(row.id);", session.id)
    await tab.wait_for("row.state === 'sent' && device.session(given).seq === 1", session.id)
    assert await tab.read_texts(session.id) == ["kept?"]
