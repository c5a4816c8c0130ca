"""The outbox: what is said here reaches the relay once, in its order, whatever happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from apps.web.tests.gateway.phone import Phone, Said, Session
from apps.web.tests.page.room import room, spoken, tell
from apps.web.tests.page.tab import PATIENCE, Tab, tab
from crabtalk_web.relay import Relay
from crabtalk_web.stream import File, SessionBody, UserBody, decode_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

STATES = "device.session(given).story.rows.map(({ text, state }) => [text, state])"
SEND = "for (const text of given.texts) device.session(given.id).send(text);"


@pytest_asyncio.fixture(loop_scope="session")
async def wired(browser: Browser, relay: Relay) -> AsyncIterator[Tab]:
    """A tab that can be cut off from the relay."""
    async with tab(browser, relay.url, wired=True) as made:
        yield made


async def received(person: Phone, session: Session, count: int) -> list[Said]:
    """What is at the relay, once there is that much."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await person.read(session)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


def words(found: list[Said]) -> list[str]:
    return [said.plain["content"]["text"] for said in found]


async def kept(tab: Tab) -> int:
    return int(await tab.do("return (await device.store.all('outbox')).length;"))


@pytest.mark.req("page.outbox.sent")
async def test_what_is_said_is_a_row_at_once_and_the_same_row_when_it_has_come_back(
    one: Tab, person: Phone
) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.enter(session.id)
    state = await one.do(
        """const session = device.session(given);
        window.row = session.send("hello \\u{1F980}");
        return [row.state, session.story.rows.at(-1) === row, session.send("  "), row.id];""",
        session.id,
    )
    assert state[:3] == ["waiting", True, None]
    (said,) = await received(person, session, 1)
    body = decode_body(json.dumps(said.plain))
    assert isinstance(body, UserBody)
    assert (body.content.text, said.local_id) == ("hello \N{CRAB}", state[3])
    await one.until("device.session(given).seq === 1", session.id)
    await one.until("row.state === 'sent'")
    assert await one.do("return device.session(given).story.rows[0] === row;", session.id) is True
    assert await kept(one) == 0


@pytest.mark.req("page.outbox.offline")
@pytest.mark.req("page.outbox.once")
async def test_words_said_offline_survive_a_reload_and_go_out_oldest_first(
    wired: Tab, person: Phone
) -> None:
    session = await room(person)
    await wired.log_in(person)
    await wired.enter(session.id)
    await wired.cut_off()
    texts = [f"word {number}" for number in range(6)]
    await wired.do(SEND, {"id": session.id, "texts": texts[:3]})
    async with asyncio.timeout(PATIENCE):
        while await kept(wired) < 3:
            await asyncio.sleep(0.02)
    assert await wired.reload() == "ready"
    await wired.do("device.session(given).open();", session.id)
    await wired.until("device.session(given).story.rows.length === 3", session.id)
    assert await wired.do(f"return {STATES};", session.id) == [[t, "waiting"] for t in texts[:3]]
    await wired.do(SEND, {"id": session.id, "texts": texts[3:]})
    assert await person.read(session) == []
    await wired.connect()
    found = await received(person, session, 6)
    assert words(found) == texts
    await wired.until(f"{STATES}.every(([, state]) => state === 'sent')", session.id)
    assert await wired.texts(session.id) == texts
    assert await kept(wired) == 0


@pytest.mark.req("page.outbox.once")
async def test_a_message_whose_answer_got_lost_is_there_once(one: Tab, person: Phone) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.enter(session.id)
    lost: list[str] = []

    async def lose(route: Route) -> None:
        if route.request.method == "POST" and not lost:
            lost.append(await (await route.fetch()).text())
            await route.abort()
        else:
            await route.fallback()

    await one.page.route("**/v3/sessions/*/messages", lose)
    one.watch.expect("ERR_FAILED")
    await one.do("device.session(given).send('once');", session.id)
    async with asyncio.timeout(PATIENCE):
        while not lost:
            await asyncio.sleep(0.02)
    # It is on the screen by the socket; the outbox does not know yet, and sends it again.
    await one.until("device.session(given).seq === 1", session.id)
    await one.do("await device.outbox.send();")
    async with asyncio.timeout(PATIENCE):
        while await kept(one):
            await asyncio.sleep(0.02)
    await person.say(session, "after")
    await one.until("device.session(given).seq === 2", session.id)
    assert words(await person.read(session)) == ["once", "after"]
    assert await one.texts(session.id) == ["once", "after"]


@pytest.mark.req("page.outbox.files")
async def test_files_go_before_their_words_and_are_opened_by_others(
    one: Tab, person: Phone
) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.enter(session.id)
    found = await one.do(
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
    said = await received(person, session, 3)
    bodies = [decode_body(json.dumps(each.plain)) for each in said]
    files = [b.content.ev for b in bodies if isinstance(b, SessionBody)]
    assert isinstance(bodies[2], UserBody)
    picture, notes = files
    assert isinstance(picture, File)
    assert isinstance(notes, File)
    assert (picture.name, picture.mime_type) == ("beach.png", "image/png")
    shown: Any = picture.image
    assert (shown.width, shown.height, bool(shown.thumbhash)) == (40, 20, True)
    assert await person.download(session, notes.ref) == b"A" * 3_000_000
    await one.until("row.state === 'sent'")
    await one.until("device.session(given).seq === 3", session.id)
    seen = await one.do("return seen;")
    progress = [part for state, part in seen if part is not None]
    assert progress == sorted(progress)
    assert progress[-1] > 0.9
    # After a reload it comes from the relay, or from what is kept of it.
    await one.reload()
    await one.enter(session.id)
    read = await one.do(
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
async def test_a_file_of_somebody_else_is_fetched_with_its_progress_and_kept(
    one: Tab, person: Phone
) -> None:
    session = await room(person)
    data = bytes(range(256)) * 4000
    event = {
        "t": "file",
        "ref": await person.upload(session, data),
        "name": "page.html",
        "size": len(data),
        "mimeType": "text/html",
    }
    bad = {**event, "ref": await person.upload(session, data), "name": "bad"}
    await person.post(session, {"role": "session", "content": person.envelope(event)})
    await person.post(session, {"role": "session", "content": person.envelope(bad)})
    await person.say(session, "for you")
    await one.log_in(person)
    await one.enter(session.id)
    fetch = """const session = device.session(given);
        const [row] = session.story.rows;
        const parts = [];
        const blob = await session.file(row.files[0], { onProgress: (part) => parts.push(part) });
        const bytes = new Uint8Array(await blob.arrayBuffer());
        const grows = parts.every((part, at) => !at || part >= parts[at - 1]);
        return [blob.type, bytes.length, bytes[255], grows, parts.at(-1)];"""
    expected = ["application/octet-stream", len(data), 255, True, 1]
    assert await one.do(fetch, session.id) == expected
    # Nobody is asked a second time.
    await one.page.route("**/attachments/**", lambda route: route.abort())
    assert await one.do(fetch, session.id) == expected
    one.watch.expect("ERR_FAILED")
    failed = await one.do(
        """try { await device.session(given).file(device.session(given).story.rows[0].files[1]); }
        catch (error) { return error.message; }""",
        session.id,
    )
    assert "cannot be reached" in failed


@pytest.mark.req("page.outbox.refused")
async def test_what_the_relay_refuses_is_shown_as_failed_and_can_be_sent_again_or_dropped(
    one: Tab, person: Phone
) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.enter(session.id)
    refused = [True]

    async def refuse(route: Route) -> None:
        if route.request.method == "POST" and refused:
            await route.fulfill(status=400, json={"error": "Error", "message": "no such words"})
        else:
            await route.fallback()

    await one.page.route("**/v3/sessions/*/messages", refuse)
    one.watch.expect("400")
    await one.do(SEND, {"id": session.id, "texts": ["first", "second"]})
    await one.until(f"{STATES}.every(([, state]) => state === 'failed')", session.id)
    row = "device.session(given).story.rows[0]"
    assert await one.do(f"return {row}.problem;", session.id) == "no such words"
    # Also after a reload, and without trying again by itself.
    await one.reload()
    await one.enter(session.id)
    await one.until("device.connection.state === 'online'")
    assert await one.do(f"return {STATES};", session.id) == [
        ["first", "failed"],
        ["second", "failed"],
    ]
    refused.clear()
    await one.do(
        """const session = device.session(given);
        const [first, second] = session.story.rows;
        await session.discard(first.id);
        await session.retry(second.id);""",
        session.id,
    )
    assert words(await received(person, session, 1)) == ["second"]
    await one.until("device.session(given).seq === 1", session.id)
    assert await one.do(f"return {STATES};", session.id) == [["second", "sent"]]
    assert await kept(one) == 0


@pytest.mark.req("page.outbox.refused")
async def test_a_file_that_is_too_large_is_refused_before_it_is_sent(
    one: Tab, person: Phone
) -> None:
    session = await room(person, capabilities={"attachments": {"maxBytes": 2 * 1024 * 1024}})
    await one.log_in(person)
    await one.enter(session.id)
    told = await one.do(
        """const session = device.session(given);
        window.row = session.send("", [new File([new Uint8Array(2_097_153)], "film.mov")]);
        return session.largestFile;""",
        session.id,
    )
    assert told == 2 * 1024 * 1024
    await one.until("row.state === 'failed'")
    problem = await one.do("return row.problem;")
    assert problem == "film.mov is too large: a file may have 2 MB."
    await one.do("await device.session(given).discard(row.id);", session.id)
    assert await one.do("return device.session(given).story.rows.length;", session.id) == 0
    assert await person.read(session) == []


@pytest.mark.req("page.outbox.once")
@pytest.mark.slow
async def test_two_tabs_send_what_waits_once(wired: Tab, person: Phone) -> None:
    session = await room(person)
    await wired.log_in(person)
    await wired.enter(session.id)
    await wired.cut_off()
    await wired.do(SEND, {"id": session.id, "texts": ["a", "b"]})
    async with asyncio.timeout(PATIENCE):
        while await kept(wired) < 2:
            await asyncio.sleep(0.02)
    other = Tab(await wired.page.context.new_page(), wired.watch, wired.url)
    await other.open()
    await asyncio.gather(other.start(), wired.connect())
    await received(person, session, 2)
    await other.until("device.connection.state === 'online'")
    await other.do("await device.outbox.send();")
    await tell(person, session, spoken(1))
    await other.enter(session.id)
    assert words((await person.read(session))[:-1]) == ["a", "b"]
    assert await other.texts(session.id) == ["a", "b", "said 1"]


@pytest.mark.req("page.drafts")
async def test_what_was_begun_is_there_after_a_reload(one: Tab, person: Phone) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.until("device.session(given)", session.id)
    await one.do("await device.session(given).keepDraft('half a sent');", session.id)
    await one.reload()
    assert await one.do("return device.session(given).draft;", session.id) == "half a sent"
    await one.do("await device.session(given).keepDraft('');", session.id)
    await one.reload()
    assert await one.do("return device.session(given).draft;", session.id) == ""


@pytest.mark.req("page.outbox.receipt")
async def test_words_are_sent_when_the_relay_says_it_has_them_and_not_before(
    one: Tab, person: Phone
) -> None:
    session = await room(person)
    await one.log_in(person)
    await one.enter(session.id)
    one.watch.expect("status of 502")
    left = ["<html>", "[]", "null", "7", '{"messages": 7}', '{"messages": [7]}', '{"messages": []}']

    async def lie(route: Route) -> None:
        if route.request.method == "POST" and left:
            await route.fulfill(status=502 if len(left) == 3 else 200, body=left.pop())
        else:
            await route.fallback()

    await one.page.route("**/v3/sessions/*/messages", lie)
    await one.do("device.session(given).send('true words');", session.id)
    async with asyncio.timeout(PATIENCE):
        while left:
            # It would try again by itself; nobody has to wait for that here.
            await one.do("await device.outbox.send();")
    assert await person.read(session) == []
    await one.do("await device.outbox.send();")
    assert words(await received(person, session, 1)) == ["true words"]
    await one.until(f"{STATES}.every(([, state]) => state === 'sent')", session.id)
    assert await kept(one) == 0
