"""Logging in and out, and what a browser stores of it."""

import json
from typing import Any

import pytest
from playwright.async_api import Browser

from apps.web.tests.browser.browser_user import read_script
from apps.web.tests.gateway.device_client import DeviceClient
from apps.web.tests.page.fake_gateway import build_text_body, create_session, send_bodies
from apps.web.tests.page.page_tab import PageTab, open_page_tab
from crabtalk_web.relay import RelayServer
from crabtalk_web.sealing import (
    PairingSecret,
    from_backup_text,
    new_key,
    to_backup_text,
    to_base64,
    to_base64url,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

CANARY = "a canary of the beach"
FAILS = "try { %s; return ''; } catch (error) { return error.message; }"


async def read_stored(tab: PageTab) -> dict[str, Any]:
    found: dict[str, Any] = await tab.page.evaluate(read_script("kept"))
    return found


@pytest.mark.req("page.account.create")
async def test_an_account_is_made_and_is_there_after_a_reload(tab: PageTab) -> None:
    assert await tab.start_device() == "new"
    await tab.evaluate("await device.create();")
    words = await tab.evaluate("return device.backupWords();")
    assert from_backup_text(words) is not None
    assert await tab.reload() == "ready"
    await tab.wait_for("device.connection.state === 'online'")
    assert await tab.evaluate("return device.backupWords();") == words
    (device,) = await tab.evaluate("return device.devices();")
    assert (device["isThis"], device["client"]) == (True, "crabtalk-page/Chrome on Linux")


@pytest.mark.req("page.account.words")
async def test_an_incomplete_backup_text_is_refused_with_a_message(tab: PageTab) -> None:
    await tab.start_device()
    assert "52 letters" in await tab.evaluate(FAILS % "await device.restore('ABC')")
    assert await tab.evaluate("return device.stage;") == "new"


@pytest.mark.req("page.keys.sealed")
async def test_a_browser_stores_nothing_readable(tab: PageTab, person: DeviceClient) -> None:
    session = await create_session(person, agent="canary", summary={"text": CANARY})
    await send_bodies(person, session, build_text_body(1, CANARY), build_text_body(2, "another"))
    requests: list[str] = []
    tab.page.on("request", lambda request: requests.append(request.url))
    await tab.log_in(person)
    await tab.open_session(session.id)
    assert CANARY in await tab.read_texts(session.id)
    # Unsent messages are stored as well, and the relay does not get this one.
    await tab.page.route("**/v3/**", lambda route: route.abort())
    tab.watch.allow_faults("ERR_FAILED")
    await tab.evaluate(
        """device.session(given.id).send(given.canary, [new File([given.canary], given.canary)]);
        const { store } = device;
        while (!(await store.all("outbox")).length) await new Promise((r) => setTimeout(r, 10));""",
        {"id": session.id, "canary": CANARY},
    )
    found = await read_stored(tab)
    stored_text = json.dumps(found)
    rows = found["databases"]["crabtalk"]
    assert len(rows["messages"]) == 2
    assert (len(rows["outbox"]), len(rows["sessions"])) == (1, 1)
    token = await tab.evaluate("return device.http.token;")
    for secret in (
        CANARY,
        "canary",
        to_base64(CANARY.encode())[:-4],
        to_base64(person.secret.secret),
        to_base64(person.secret.content_keys.secret),
        to_base64(session.key),
        to_backup_text(person.secret.secret),
        token,
        to_base64(token.encode()),
    ):
        assert secret not in stored_text
        assert not any(secret in url for url in requests)
    keys = [value for row in list_objects(rows) for value in row.values() if is_key(value)]
    assert len(keys) == 4  # of the device, for content, to sign, and of the session
    assert not any(key["extractable"] for key in keys)
    assert (found["local"], found["session"], found["cookies"]) == ({}, {}, "")


def list_objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in list_objects(each))]
    return (
        [found for each in value for found in list_objects(each)] if isinstance(value, list) else []
    )


def is_key(value: Any) -> bool:
    return isinstance(value, dict) and "extractable" in value


@pytest.mark.req("page.logout")
async def test_logging_out_leaves_nothing_here_and_no_token_at_the_relay(
    browser: Browser, relay: RelayServer, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1))
    async with open_page_tab(browser, relay.url) as tab:
        await tab.log_in(person)
        await tab.open_session(session.id)
        await tab.evaluate("localStorage.theme = 'dark'; await caches.open('shell');")
        # Another tab of the same browser is open.
        other = PageTab(await tab.page.context.new_page(), tab.watch, relay.url)
        await other.open()
        assert await other.start_device() == "ready"
        token = await tab.evaluate("return device.http.token;")
        async with other.page.expect_navigation():
            await tab.evaluate("await device.logOut();")
        found = await read_stored(tab)
        # The other tab was reloaded, and found no account.
        assert (
            list_objects(
                [rows for tables in found["databases"].values() for rows in tables.values()]
            )
            == []
        )
        assert (found["local"], found["session"], found["caches"]) == ({}, {}, [])
        assert await tab.evaluate("return [device.stage, device.sessions.length];") == ["new", 0]
        headers = {"Authorization": f"Bearer {token}"}
        async with person.http.get(f"{relay.url}/v1/sessions", headers=headers) as answer:
            assert answer.status == 401
        # The person can log in again, with another account.
        await tab.evaluate("await device.create();")
        assert await tab.evaluate("return [device.stage, device.sessions.length];") == ["ready", 0]


@pytest.mark.req("page.invite")
@pytest.mark.slow
async def test_an_invited_device_is_approved_and_sees_the_same(
    browser: Browser, relay: RelayServer, tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1, "hello"))
    await tab.log_in(person)
    link = await tab.evaluate(
        """window.invitation = await device.invite();
        window.asked = false;
        invitation.asked.then(() => { window.asked = true; });
        return invitation.url;"""
    )
    origin, _, seed = link.partition("/join#")
    assert (origin, len(seed)) == (relay.url, 43)
    requests: list[str] = []
    async with open_page_tab(browser, relay.url) as other:
        other.page.on("request", lambda request: requests.append(request.url))
        await other.start_device()
        await other.evaluate(
            """window.steps = [];
            window.joined = device.join(given, (step) => steps.push(step));
            joined.catch(() => {});""",
            link,
        )
        await tab.wait_for("window.asked")
        assert await other.evaluate("return [device.stage, steps];") == [
            "new",
            ["asking", "waiting"],
        ]
        await tab.evaluate("await invitation.letIn();")
        await other.evaluate("await joined;")
        assert await other.evaluate("return steps.at(-1);") == "letting in"
        await other.open_session(session.id)
        assert await other.read_texts(session.id) == ["hello"]
        words = await other.evaluate("return device.backupWords();")
        assert from_backup_text(words) == person.secret.secret
        assert not any(seed in url for url in requests)
    # It works once.
    message = await tab.evaluate(FAILS % "await invitation.letIn()")
    assert "used" in message


@pytest.mark.req("page.invite")
async def test_a_withdrawn_invitation_admits_no_device(tab: PageTab, person: DeviceClient) -> None:
    await tab.log_in(person)
    await tab.evaluate("window.invitation = await device.invite(); invitation.cancel();")
    assert "withdrawn" in await tab.evaluate(FAILS % "await invitation.asked")
    assert "withdrawn" in await tab.evaluate(FAILS % "await invitation.letIn()")
    assert "not whole" in await tab.evaluate(FAILS % "await device.join('/join#abc')")


@pytest.mark.req("page.pair.sentences")
async def test_a_machine_is_approved_once_and_gets_no_secret(
    tab: PageTab, person: DeviceClient
) -> None:
    await tab.log_in(person)
    machine = PairingSecret()
    requests = {"publicKey": to_base64(machine.public_key), "supportsV2": True, "sealsToken": True}
    assert (await person.request("POST", "/v1/auth/request", requests))["state"] == "requested"
    let = """const { fromBase64url } = await import("/crypto/bytes.js");
    try { await device.letMachineIn(fromBase64url(given)); return ""; }
    catch (error) { return error.message; }"""
    key = to_base64url(machine.public_key)
    assert await tab.evaluate(let, key) == ""
    reply = await person.request("POST", "/v1/auth/request", requests)
    approval = machine.open_approval(reply["response"])
    assert approval is not None
    assert approval.content_public_key == person.secret.content_keys.public
    assert approval.master_secret is None
    assert machine.open_token(reply["sealedToken"])
    assert "let in before" in await tab.evaluate(let, key)
    assert "too old" in await tab.evaluate(let, to_base64url(new_key()))


@pytest.mark.req("page.revoked")
async def test_a_revoked_device_says_so_and_keeps_its_data(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1, "kept"))
    await tab.log_in(person)
    await tab.open_session(session.id)
    own = next(each for each in await tab.evaluate("return device.devices();") if each["isThis"])
    tab.watch.allow_faults("401", "WebSocket")
    await person.request("DELETE", f"/v1/devices/{own['id']}")
    await tab.wait_for("device.isRevoked")
    assert "taken out" in await tab.evaluate("return device.connection.problem;")
    assert await tab.reload() == "ready"
    await tab.wait_for("device.isRevoked")
    await tab.evaluate("device.session(given).open();", session.id)
    await tab.wait_for("device.session(given).story.rows.length", session.id)
    assert await tab.read_texts(session.id) == ["kept"]
    await tab.evaluate("await device.logInAgain();")
    await tab.wait_for("device.connection.state === 'online'")
    assert await tab.evaluate("return device.isRevoked;") is False


@pytest.mark.req("page.record")
async def test_a_gateways_metadata_is_shown_as_it_changes(
    tab: PageTab, person: DeviceClient
) -> None:
    reply: dict[str, Any] = {
        "slashCommands": ["plan", "/tidy", 7],
        "models": [{"code": "large"}, {"value": "none"}, None],
        "currentModelCode": "large",
        "lifecycleState": "archived",
        "continuedBy": "another",
    }
    session = await create_session(person, **reply)
    await tab.log_in(person)
    await tab.wait_for("device.session(given)", session.id)
    facts = """const session = device.session(given);
        const { commands, models, model, isArchived, continuedBy, title } = session;
        return [commands, models, model, isArchived, continuedBy, title];"""
    assert await tab.evaluate(facts, session.id) == [
        ["/plan", "/tidy"],
        ["large"],
        "large",
        True,
        "another",
        "",
    ]
    await person.connect()
    news = {"name": "crab", "summary": {"text": "Tides"}, "slashCommands": "none", "models": {}}
    change = {"sid": session.id, "metadata": session.sealer.seal(news), "expectedVersion": 0}
    assert person._io is not None
    answer = await person._io.call("update-metadata", change)
    assert answer["result"] == "success"
    await tab.wait_for("device.session(given).title === 'Tides'", session.id)
    assert await tab.evaluate(facts, session.id) == [[], [], "", False, "", "Tides"]
    # A list that was in transit meanwhile is older, and changes nothing.
    await tab.evaluate(
        "await device.session(given.id).take({ metadata: given.old, metadataVersion: 0 });",
        {"id": session.id, "old": session.sealer.seal({"summary": {"text": "Old"}})},
    )
    assert await tab.evaluate("return device.session(given).title;", session.id) == "Tides"
    await tab.reload()
    assert await tab.evaluate("return device.session(given).title;", session.id) == "Tides"


@pytest.mark.req("page.account.elsewhere")
async def test_sessions_with_other_keys_are_listed_and_cannot_be_opened(
    tab: PageTab, person: DeviceClient
) -> None:
    session = await create_session(person)
    wrapped = to_base64(b"\0" * 105)
    body = {"tag": "t", "metadata": session.sealer.seal({}), "dataEncryptionKey": wrapped}
    other = (await person.request("POST", "/v1/sessions", body))["session"]["id"]
    await tab.log_in(person)
    await tab.wait_for("device.sessions.length === 2")
    assert await tab.evaluate("return device.session(given).isSealed;", other) is True
    assert await tab.evaluate("return device.session(given).isSealed;", session.id) is False
    await tab.evaluate("await device.session(given).open();", other)
    assert await tab.read_texts(other) == []


@pytest.mark.req("page.invite")
async def test_an_invitation_expires_after_five_minutes(tab: PageTab, person: DeviceClient) -> None:
    await tab.log_in(person)
    await tab.evaluate("window.invitation = await device.invite();")
    left = await tab.evaluate("return invitation.expiresAt - Date.now();")
    assert 290_000 < left <= 300_000
    await tab.evaluate("const { now } = Date; Date.now = () => now.call(Date) + 301_000;")
    assert "too old" in await tab.evaluate(FAILS % "await invitation.asked")


# ── Browsers that lack something ────────────────────────────────────────────────────────────────

NO_CURVES = """
const { importKey } = SubtleCrypto.prototype;
SubtleCrypto.prototype.importKey = function (form, key, algorithm, ...rest) {
  const name = algorithm.name ?? algorithm;
  if (name === "X25519" || name === "Ed25519") throw new DOMException("no", "NotSupportedError");
  return importKey.call(this, form, key, algorithm, ...rest);
};
"""


@pytest.mark.req("page.crypto")
@pytest.mark.req("page.keys.sealed")
async def test_a_browser_without_curves_works_and_stores_no_plain_keys(
    tab: PageTab, person: DeviceClient
) -> None:
    await tab.page.add_init_script(NO_CURVES)
    await tab.open()
    session = await create_session(person)
    await send_bodies(person, session, build_text_body(1, "hello"))
    await tab.log_in(person)
    await tab.open_session(session.id)
    assert await tab.read_texts(session.id) == ["hello"]
    reply = json.dumps(await read_stored(tab))
    assert to_base64(person.secret.content_keys.secret) not in reply
    assert to_base64(person.secret.secret) not in reply
    await tab.reload()
    other = await create_session(person)
    await send_bodies(person, other, build_text_body(1, "again"))
    await tab.open_session(other.id)
    assert await tab.read_texts(other.id) == ["again"]
    await tab.evaluate("await device.logInAgain();")


@pytest.mark.req("page.account.unable")
@pytest.mark.parametrize(
    ("script", "stage", "problem"),
    [
        ("Object.defineProperty(crypto, 'subtle', { value: undefined });", "unsupported", "https"),
        ("indexedDB.open = () => { throw new Error('no'); };", "failed", "private mode"),
    ],
)
async def test_a_browser_that_cannot_store_keys_says_why(
    tab: PageTab, script: str, stage: str, problem: str
) -> None:
    await tab.evaluate(script)
    assert await tab.start_device() == stage
    assert problem in await tab.evaluate("return device.problem;")
