"""The outbox: messages reach the relay once and in order, whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession, OpenedMessage
from apps.web.tests.page.fake_gateway import build_text_body, create_session, send_bodies
from apps.web.tests.page.page_tab import PATIENCE, PageTab, open_page_tab
from crabtalk_web.relay import RelayServer
from crabtalk_web.stream import FileEvent, SessionBody, UserBody, decode_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

STATES = "device.session(given).story.rows.map(({ text, state }) => [text, state])"
SEND = "for (const text of given.texts) device.session(given.id).send(text);"


@pytest_asyncio.fixture(loop_scope="session")
async def wired_tab(browser: Browser, relay: RelayServer) -> AsyncIterator[PageTab]:
    """A tab that can be cut off from the relay."""
    async with open_page_tab(browser, relay.url, can_go_offline=True) as tab:
        yield tab


async def wait_for_messages(
    person: DeviceClient, session: DeviceSession, count: int
) -> list[OpenedMessage]:
    """The messages at the relay, once there are so many."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await person.read_messages(session)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


def list_texts(found: list[OpenedMessage]) -> list[str]:
    return [messages.plain["content"]["text"] for messages in found]


async def count_unsent(tab: PageTab) -> int:
    return int(await tab.evaluate("return (await device.store.all('outbox')).length;"))


@pytest.mark.req("page.outbox.sent")
async def test_a_message_is_one_row_before_and_after_it_is_sent(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    state = await tab.evaluate(
        """const session = device.session(given);
        window.row = session.send("hello \\u{1F980}");
        return [row.state, session.story.rows.at(-1) === row, session.send("  "), row.id];""",
        session.id,
    )
    assert state[:3] == ["waiting", True, None]
    (messages,) = await wait_for_messages(person, session, 1)
    body = decode_body(json.dumps(messages.plain))
    assert isinstance(body, UserBody)
    assert (body.content.text, messages.local_id) == ("hello \N{CRAB}", state[3])
    await tab.wait_for("device.session(given).seq === 1", session.id)
    await tab.wait_for("row.state === 'sent'")
    assert (
        await tab.evaluate("return device.session(given).story.rows[0] === row;", session.id)
        is True
    )
    assert await count_unsent(tab) == 0


@pytest.mark.req("page.outbox.offline")
@pytest.mark.req("page.outbox.once")
async def test_offline_messages_survive_a_reload_and_are_sent_oldest_first(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await wired_tab.log_in(person)
    await wired_tab.open_session(session.id)
    await wired_tab.go_offline()
    texts = [f"word {number}" for number in range(6)]
    await wired_tab.evaluate(SEND, {"id": session.id, "texts": texts[:3]})
    async with asyncio.timeout(PATIENCE):
        while await count_unsent(wired_tab) < 3:
            await asyncio.sleep(0.02)
    assert await wired_tab.reload() == "ready"
    await wired_tab.evaluate("device.session(given).open();", session.id)
    await wired_tab.wait_for("device.session(given).story.rows.length === 3", session.id)
    assert await wired_tab.evaluate(f"return {STATES};", session.id) == [
        [t, "waiting"] for t in texts[:3]
    ]
    await wired_tab.evaluate(SEND, {"id": session.id, "texts": texts[3:]})
    assert await person.read_messages(session) == []
    await wired_tab.go_online()
    found = await wait_for_messages(person, session, 6)
    assert list_texts(found) == texts
    await wired_tab.wait_for(f"{STATES}.every(([, state]) => state === 'sent')", session.id)
    assert await wired_tab.read_texts(session.id) == texts
    assert await count_unsent(wired_tab) == 0


@pytest.mark.req("page.outbox.once")
async def test_a_message_with_a_lost_answer_is_stored_once(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    lost: list[str] = []

    async def lose(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(await (await route.fetch()).text())
            await route.abort()
        else:
            await route.fallback()

    await tab.page.route("**/v3/sessions/*/messages", lose)
    tab.watch.allow_faults("ERR_FAILED")
    await tab.evaluate("device.session(given).send('once');", session.id)
    async with asyncio.timeout(PATIENCE):
        while not lost:
            await asyncio.sleep(0.02)
    # It is shown because of the socket; the outbox does not know yet, and sends it again.
    await tab.wait_for("device.session(given).seq === 1", session.id)
    await tab.evaluate("await device.outbox.send();")
    async with asyncio.timeout(PATIENCE):
        while await count_unsent(tab):
            await asyncio.sleep(0.02)
    await person.send_text(session, "after")
    await tab.wait_for("device.session(given).seq === 2", session.id)
    assert list_texts(await person.read_messages(session)) == ["once", "after"]
    assert await tab.read_texts(session.id) == ["once", "after"]


@pytest.mark.req("page.outbox.files")
async def test_files_are_sent_before_their_text_and_opened_by_others(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    found = await tab.evaluate(
        """const canvas = new OffscreenCanvas(40, 20);
        const context = canvas.getContext("2d");
        context.fillStyle = "#c33";
        context.fillRect(0, 0, 40, 20);
        const drawn = await canvas.convertToBlob();
        const picture = new File([drawn], "beach.png", { type: "image/png" });
        const letters = new Uint8Array(3_000_000).fill(65);
        const notes = new File([letters], "notes.txt", { type: "text/plain" });
        const session = device.session(given);
        const row = window.row = session.send("look", [picture, notes]);
        const seen = window.seen = [];
        session.addEventListener("change", () => seen.push([row.state, row.progress]));
        const local = await (await session.file(row.files[1])).text();
        return [row.files.map(({ name, ref, size }) => [name, ref, size]), local.length];""",
        session.id,
    )
    assert found[0][1] == ["notes.txt", "", 3_000_000]
    assert found[1] == 3_000_000
    messages = await wait_for_messages(person, session, 3)
    bodies = [decode_body(json.dumps(each.plain)) for each in messages]
    files = [b.content.ev for b in bodies if isinstance(b, SessionBody)]
    assert isinstance(bodies[2], UserBody)
    picture, notes = files
    assert isinstance(picture, FileEvent)
    assert isinstance(notes, FileEvent)
    assert (picture.name, picture.mime_type) == ("beach.png", "image/png")
    shown: Any = picture.image
    assert (shown.width, shown.height, bool(shown.thumbhash)) == (40, 20, True)
    assert await person.download(session, notes.ref) == b"A" * 3_000_000
    await tab.wait_for("row.state === 'sent'")
    await tab.wait_for("device.session(given).seq === 3", session.id)
    seen = await tab.evaluate("return seen;")
    progress = [part for state, part in seen if part is not None]
    assert progress == sorted(progress)
    assert progress[-1] > 0.9
    # After a reload it comes from the relay, or from disk.
    await tab.reload()
    await tab.open_session(session.id)
    read = await tab.evaluate(
        """const [row] = device.session(given).story.rows;
        const parts = [];
        const options = { onProgress: (part) => parts.push(part) };
        const blob = await device.session(given).file(row.files[1], options);
        const start = (await blob.text()).slice(0, 3);
        return [row.files.length, blob.size, blob.type, start, parts.at(-1)];""",
        session.id,
    )
    assert read == [2, 3_000_000, "text/plain", "AAA", 1]


@pytest.mark.req("page.files.download")
async def test_a_received_file_is_fetched_with_progress_and_cached(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    data = bytes(range(256)) * 4000
    event = {
        "t": "file",
        "ref": await person.upload(session, data),
        "name": "page.html",
        "size": len(data),
        "mimeType": "text/html",
    }
    bad = {**event, "ref": await person.upload(session, data), "name": "bad"}
    await person.send_body(session, {"role": "session", "content": person.build_envelope(event)})
    await person.send_body(session, {"role": "session", "content": person.build_envelope(bad)})
    await person.send_text(session, "for you")
    await tab.log_in(person)
    await tab.open_session(session.id)
    fetch = """const session = device.session(given);
        const [row] = session.story.rows;
        const parts = [];
        const blob = await session.file(row.files[0], { onProgress: (part) => parts.push(part) });
        const bytes = new Uint8Array(await blob.arrayBuffer());
        const grows = parts.every((part, at) => !at || part >= parts[at - 1]);
        return [blob.type, bytes.length, bytes[255], grows, parts.at(-1)];"""
    expected = ["application/octet-stream", len(data), 255, True, 1]
    assert await tab.evaluate(fetch, session.id) == expected
    # It is not fetched a second time.
    await tab.page.route("**/attachments/**", lambda route: route.abort())
    assert await tab.evaluate(fetch, session.id) == expected
    tab.watch.allow_faults("ERR_FAILED")
    failed = await tab.evaluate(
        """try { await device.session(given).file(device.session(given).story.rows[0].files[1]); }
        catch (error) { return error.message; }""",
        session.id,
    )
    assert "cannot be reached" in failed


@pytest.mark.req("page.outbox.refused")
async def test_refused_messages_are_shown_as_failed_and_can_be_resent_or_dropped(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    refused = [True]

    async def refuse(route: Route) -> None:
        if route.request.method == "POST" and refused:
            await route.fulfill(status=400, json={"error": "Error", "message": "no such words"})
        else:
            await route.fallback()

    await tab.page.route("**/v3/sessions/*/messages", refuse)
    tab.watch.allow_faults("400")
    await tab.evaluate(SEND, {"id": session.id, "texts": ["first", "second"]})
    await tab.wait_for(f"{STATES}.every(([, state]) => state === 'failed')", session.id)
    row = "device.session(given).story.rows[0]"
    assert await tab.evaluate(f"return {row}.problem;", session.id) == "no such words"
    # Also after a reload, and without an automatic retry.
    await tab.reload()
    await tab.open_session(session.id)
    await tab.wait_for("device.connection.state === 'online'")
    assert await tab.evaluate(f"return {STATES};", session.id) == [
        ["first", "failed"],
        ["second", "failed"],
    ]
    refused.clear()
    await tab.evaluate(
        """const session = device.session(given);
        const [first, second] = session.story.rows;
        await session.discard(first.id);
        await session.retry(second.id);""",
        session.id,
    )
    assert list_texts(await wait_for_messages(person, session, 1)) == ["second"]
    await tab.wait_for("device.session(given).seq === 1", session.id)
    assert await tab.evaluate(f"return {STATES};", session.id) == [["second", "sent"]]
    assert await count_unsent(tab) == 0


@pytest.mark.req("page.outbox.refused")
async def test_a_file_that_is_too_large_is_refused_before_it_is_sent(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(
        person, capabilities={"attachments": {"maxBytes": 2 * 1024 * 1024}}
    )
    await tab.log_in(person)
    await tab.open_session(session.id)
    result = await tab.evaluate(
        """const session = device.session(given);
        window.row = session.send("", [new File([new Uint8Array(2_097_153)], "film.mov")]);
        return session.largestFile;""",
        session.id,
    )
    assert result == 2 * 1024 * 1024
    await tab.wait_for("row.state === 'failed'")
    problem = await tab.evaluate("return row.problem;")
    assert problem == "film.mov is too large: a file may have 2 MB."
    await tab.evaluate("await device.session(given).discard(row.id);", session.id)
    assert await tab.evaluate("return device.session(given).story.rows.length;", session.id) == 0
    assert await person.read_messages(session) == []


@pytest.mark.req("page.outbox.once")
@pytest.mark.slow
async def test_two_tabs_send_waiting_messages_once(
    wired_tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await wired_tab.log_in(person)
    await wired_tab.open_session(session.id)
    await wired_tab.go_offline()
    await wired_tab.evaluate(SEND, {"id": session.id, "texts": ["a", "b"]})
    async with asyncio.timeout(PATIENCE):
        while await count_unsent(wired_tab) < 2:
            await asyncio.sleep(0.02)
    other = PageTab(await wired_tab.page.context.new_page(), wired_tab.watch, wired_tab.url)
    await other.open()
    await asyncio.gather(other.start_device(), wired_tab.go_online())
    await wait_for_messages(person, session, 2)
    await other.wait_for("device.connection.state === 'online'")
    await other.evaluate("await device.outbox.send();")
    await send_bodies(person, session, build_text_body(1))
    await other.open_session(session.id)
    assert list_texts((await person.read_messages(session))[:-1]) == ["a", "b"]
    assert await other.read_texts(session.id) == ["a", "b", "said 1"]


@pytest.mark.req("page.drafts")
async def test_a_stored_draft_survives_a_reload(tab: PageTab, person: DeviceClient) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.wait_for("device.session(given)", session.id)
    await tab.evaluate("await device.session(given).keepDraft('half a sent');", session.id)
    await tab.reload()
    assert await tab.evaluate("return device.session(given).draft;", session.id) == "half a sent"
    await tab.evaluate("await device.session(given).keepDraft('');", session.id)
    await tab.reload()
    assert await tab.evaluate("return device.session(given).draft;", session.id) == ""


@pytest.mark.req("page.outbox.receipt")
async def test_messages_count_as_sent_only_after_confirmation(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await tab.log_in(person)
    await tab.open_session(session.id)
    tab.watch.allow_faults("status of 502")
    left = ["<html>", "[]", "null", "7", '{"messages": 7}', '{"messages": [7]}', '{"messages": []}']

    async def lie(route: Route) -> None:
        if route.request.method == "POST" and left:
            await route.fulfill(status=502 if len(left) == 3 else 200, body=left.pop())
        else:
            await route.fallback()

    await tab.page.route("**/v3/sessions/*/messages", lie)
    await tab.evaluate("device.session(given).send('true words');", session.id)
    async with asyncio.timeout(PATIENCE):
        while left:
            # It would retry by itself; the test need not wait for that.
            await tab.evaluate("await device.outbox.send();")
    assert await person.read_messages(session) == []
    await tab.evaluate("await device.outbox.send();")
    assert list_texts(await wait_for_messages(person, session, 1)) == ["true words"]
    await tab.wait_for(f"{STATES}.every(([, state]) => state === 'sent')", session.id)
    assert await count_unsent(tab) == 0
