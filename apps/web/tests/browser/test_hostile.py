"""Hostile texts, agents and relays: nothing runs, sends requests elsewhere, or breaks the page."""

import json
import time
from itertools import count
from typing import Any

import pytest
from playwright.async_api import Route, expect

from apps.web.tests.gateway.device_client import DeviceClient, DeviceSession, list_texts
from crabtalk_web.sealing import new_key, to_base64, wrap_key
from crabtalk_web.stream import derive_id, new_id

from .browser_user import read_script
from .page_setup import OWL, SharedPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMES = count(int(time.time() * 1000))
MARKDOWN = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload='window.pwned = 1'><a xlink:href='javascript:window.pwned=1'><rect/></a></svg>",
    "<iframe srcdoc='<script>parent.pwned = 1</script>'></iframe>",
    "<form action='javascript:window.pwned=1'><button>send</button></form>",
    "<base href='http://192.0.2.1/'><link rel=stylesheet href='http://192.0.2.1/x.css'>",
    "<style>@import url(http://192.0.2.1/x.css)</style>",
    "<meta http-equiv=refresh content='0;url=http://192.0.2.1/'>",
    "[click](javascript:window.pwned=1) [click](JaVaScRiPt&colon;window.pwned=1)",
    "[click](data:text/html;base64,PHNjcmlwdD5wYXJlbnQucHduZWQ9MTwvc2NyaXB0Pg==)",
    "[click](vbscript:x) [click](java\nscript:window.pwned=1)",
    "[click](\x01javascript:window.pwned=1) [click](//192.0.2.1) [click](\\\\192.0.2.1)",
    "[click](http://192.0.2.1/ 'title\" onmouseover=\"window.pwned=1')",
    "![picture](http://192.0.2.1/pixel.png) ![x](javascript:window.pwned=1)",
    "[a]: javascript:window.pwned=1\n\n[a] [b][a] <javascript:window.pwned=1>",
    "```html\n<script>window.pwned = 1</script>\n```\n\n`<img src=x onerror=window.pwned=1>`",
    "| a | b |\n|---|---|\n| <img src=x onerror=window.pwned=1> | [x](javascript:window.pwned=1) |",
    '```"><img src=x onerror=window.pwned=1>\nx\n```',
    "# <b onclick=window.pwned=1>heading</b>\n\n> <details open ontoggle=window.pwned=1>quote",
    "*".join("a" for _ in range(2000)) + "[" * 2000 + "(" * 2000 + "`" * 501 + ">" * 500,
    "\u202egnp.exe\u202c \u2066x\u2069 \ud83d\udc4d\u200d" + "\u0301" * 500,
    "__proto__ [__proto__](constructor) {{constructor.constructor('window.pwned=1')()}} ${7*7}",
]


def build_events(texts: list[str]) -> list[dict[str, Any]]:
    """The same text in every place where text can be."""
    found: list[dict[str, Any]] = [{"t": "turn-start"}]
    for number, text in enumerate(texts):
        call = {"call": f"call{number}{text[:20]}"}
        found += [
            {"t": "text", "text": text},
            {"t": "text", "text": text, "thinking": True},
            {"t": "service", "text": text},
            {
                **call,
                "t": "tool-call-start",
                "name": text[:200],
                "title": text,
                "description": text,
                "args": {
                    "path": text,
                    "old_string": text,
                    "new_string": text[::-1],
                    text[:50]: text,
                },
            },
            {**call, "t": "tool-call-end", "result": text, "isError": number % 2 == 0},
            {"t": "file", "ref": text[:100], "name": text, "size": 1, "mimeType": text[:50]},
        ]
    return found


async def send_as_agent(
    device: DeviceClient, session: DeviceSession, told: list[dict[str, Any]]
) -> None:
    """Send as the agent, with its session's key."""
    turn = new_id()
    bodies: list[dict[str, Any]] = [
        {
            "role": "session",
            "content": {
                "id": new_id(),
                "time": next(TIMES),
                "role": "agent",
                "turn": turn,
                "ev": event,
            },
        }
        for event in told
    ]
    for first in range(0, len(bodies), 100):
        messages = [
            {"content": session.sealer.seal(body), "localId": body["content"]["id"]}
            for body in bodies[first : first + 100]
        ]
        await device.request("POST", f"/v3/sessions/{session.id}/messages", {"messages": messages})


@pytest.mark.req("page.hostile.words")
async def test_text_never_becomes_more_than_text(home: SharedPage) -> None:
    async with home.open_new_conversation() as s:
        page = s.person.page
        session = await s.wait_for_session()
        for first in range(0, len(MARKDOWN), 5):  # so that each is in view for a while
            await send_as_agent(s.device, session, build_events(MARKDOWN[first : first + 5]))
        await send_as_agent(s.device, session, [{"t": "text", "text": "the end of it"}])
        await s.person.wait_for_text("the end of it")
        for _ in range(12):
            await s.person.log.hover()
            await page.mouse.wheel(0, -3000)
            await page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
            found = await page.evaluate(read_script("dangers"))
            assert (found["elements"], found["handlers"], found["pwned"]) == ([], [], None)
            assert found["loose"] == 0
            assert set(found["protocols"]) <= {"http:", "https:", "mailto:"}
            assert all(one.startswith(("blob:", "data:image/")) for one in found["sources"])
        assert await page.evaluate("() => Object.prototype.polluted") is None
        await s.person.send_text("!say still here")
        await s.person.wait_for_text("still here", 2)


@pytest.mark.req("page.hostile.names")
async def test_names_and_titles_are_text_as_well(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s:
        for number, text in enumerate(MARKDOWN[:6]):
            key = new_key()
            session = DeviceSession("", key)
            metadata = {"name": text, "host": text, "path": text, "summary": {"text": text * 50}}
            await s.device.request(
                "POST",
                "/v1/sessions",
                {
                    "tag": derive_id("hostile", number),
                    "metadata": session.sealer.seal(metadata),
                    "dataEncryptionKey": to_base64(
                        wrap_key(s.device.secret.content_keys.public, key)
                    ),
                },
            )
        nav = s.person.page.get_by_role("navigation", name="Conversations")
        await expect(nav.get_by_role("link").filter(has_text="<script>").first).to_be_visible()
        assert await s.person.page.evaluate("() => window.pwned") is None
        assert await s.person.find_faults() == []


@pytest.mark.req("page.hostile.relay")
async def test_a_lying_relay_is_not_believed(home: SharedPage) -> None:
    async with home.open_new_conversation(enters=False) as s:
        mine, owl = await s.wait_for_session(), await s.device.wait_for_session(OWL)
        await s.device.send_text(owl, "!say only for owl")
        await s.device.wait_for_envelopes(
            owl, lambda envelopes: "only for owl" in list_texts(envelopes)
        )
        (first, *_) = (
            await s.device.request("GET", f"/v3/sessions/{owl.id}/messages?after_seq=0&limit=5")
        )["messages"]
        made_up = [
            first["content"]["c"],  # from another conversation
            "AAAA",
            to_base64(bytes(100)),
            mine.sealer.seal({"role": "session", "content": None}),
            mine.sealer.seal([]),
            mine.sealer.seal("words"),
            mine.sealer.seal({"role": "agent", "content": {"type": "output"}}),
            mine.sealer.seal({"role": "user", "content": {"type": "text", "text": 7}}),
        ]
        messages = [{"content": c, "localId": f"m{n}"} for n, c in enumerate(made_up)]
        await s.device.request("POST", f"/v3/sessions/{mine.id}/messages", {"messages": messages})
        await s.person.open_conversation(s.agent)
        await s.person.send_text("!say none of that")
        await s.person.wait_for_text("none of that", 2)
        assert "only for owl" not in json.dumps(await s.person.read_rows())


@pytest.mark.req("page.hostile.relay")
@pytest.mark.slow
async def test_invalid_answers_are_reported_and_survived(home: SharedPage) -> None:
    rubbish = ["<html>gateway timeout</html>", "[]", "null", '{"messages": 7}', '{"messages": [7]}']
    async with home.open_new_conversation() as s:
        s.person.watch.allow_faults("status of 500", "status of 502")
        await s.person.send_text("!say at first")
        await s.person.wait_for_text("at first", 2)
        left = list(rubbish)

        async def lie(route: Route) -> None:
            if left:
                await route.fulfill(status=200 if len(left) % 2 else 500, body=left.pop())
            else:
                await route.fallback()

        await s.person.page.route("**/v3/sessions/**", lie)
        await s.person.page.reload()
        await s.person.wait_for_text("at first", 2)
        await s.person.send_text("!say and then")
        await s.person.wait_for_text("and then", 2)
        await s.person.page.unroute("**/v3/sessions/**")
        assert left == []
