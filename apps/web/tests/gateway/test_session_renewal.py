"""Generations: a conversation goes on in another session, with another key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    DeviceSession,
    check_order,
    list_event_tags,
    list_texts,
)
from apps.web.tests.gateway.web_command import run_web_command
from apps.web.tests.gateway.web_gateway_world import WebGatewayWorld, open_world
from crabtalk_web.gateway import WebFolder
from crabtalk_web.sealing import from_base64, unwrap_key
from tests.daemon.in_process_daemon import collect_events


async def open_machine(device: DeviceClient) -> DeviceSession:
    (machine,) = await device.request("GET", "/v1/machines")
    wrapped = from_base64(machine["dataEncryptionKey"])
    assert wrapped is not None
    key = unwrap_key(device.secret.content_keys.secret, wrapped)
    assert key is not None
    found = DeviceSession(machine["id"], key)
    found.metadata = found.sealer.open(machine["metadata"])
    return found


async def request_session(device: DeviceClient, **params: Any) -> dict[str, Any]:
    machine = await open_machine(device)
    answer: dict[str, Any] = await device.call_method(machine, "spawn-happy-session", **params)
    return answer


async def wait_for_session(device: DeviceClient, of: str) -> DeviceSession:
    async with asyncio.timeout(20):
        while True:
            for one in await device.list_sessions():
                if one.id == of:
                    return one
            await asyncio.sleep(0.02)


async def wait_for_other_session(device: DeviceClient, than: DeviceSession) -> DeviceSession:
    """The one that shows the same agent now."""
    async with asyncio.timeout(20):
        while True:
            for one in await device.list_sessions():
                is_its = one.metadata["name"] == than.metadata["name"] and one.id != than.id
                if is_its and one.metadata["lifecycleState"] == "running":
                    return one
            await asyncio.sleep(0.02)


@pytest.mark.req("gateway.spawn")
async def test_a_device_that_wants_a_session_of_an_agent_is_shown_the_one_there_is(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as w:
        there = await w.phone.wait_for_session()
        await w.phone.connect()
        assert (await open_machine(w.phone)).metadata["machineKind"] == "crabtalk"
        shown = {"type": "success", "sessionId": there.id}
        assert await request_session(w.phone, agent="crab", directory="/") == shown
        assert await request_session(w.phone, agent="claude", directory="/home/me/crab") == shown
        refused = await request_session(w.phone, agent="claude")
        assert refused["type"] == "error"
        assert "crab" in refused["errorMessage"]
        await w.phone.call_method(there, "killSession")
        assert await request_session(w.phone, agent="crab") == shown
        async with asyncio.timeout(20):
            while (await w.phone.wait_for_session()).metadata["lifecycleState"] != "running":
                await asyncio.sleep(0.02)


@pytest.mark.req("gateway.generations")
async def test_a_fresh_session_has_another_key_and_goes_on_after_restarts(tmp_path: Path) -> None:
    async with open_world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.wait_for_session()
        await w.phone.connect()
        await w.phone.send_text(old, "!say before")
        await w.phone.wait_for_turns(old)
        answer = await request_session(w.phone, agent="crab", fresh=True)
        assert answer["type"] == "success", answer
        fresh = await wait_for_session(w.phone, answer["sessionId"])
        assert fresh.id != old.id
        assert fresh.key != old.key
        await w.phone.send_text(fresh, "!say one")
        assert list_texts(check_order(await w.phone.wait_for_turns(fresh))) == ["one"]
        past = await wait_for_session(w.phone, old.id)
        assert past.metadata["lifecycleState"] == "archived"
        assert past.metadata["continuedBy"] == fresh.id
        assert list_texts(await w.phone.read_envelopes(past)) == ["before"]
        await w.stop_gateway()
        await collect_events(client.stream("crab", "!say two"))
        await w.start_gateway()
        await w.phone.send_text(fresh, "!say three")
        envelopes = check_order(await w.phone.wait_for_turns(fresh, 3))
        assert list_texts(envelopes) == ["one", "two", "three"]
        said = [m["text"] for m in w.daemon.read_messages() if m["role"] == "user"]
        assert said == ["!say before", "!say one", "!say two", "!say three"]
        await delete_journals(w)
        await w.phone.send_text(fresh, "!say four")
        assert list_texts(check_order(await w.phone.wait_for_turns(fresh, 4)))[-1] == "four"


async def delete_journals(w: WebGatewayWorld) -> None:
    await w.stop_gateway()
    for path in WebFolder(w.daemon.home).journal_folder.iterdir():
        path.unlink()
    await w.start_gateway()


@pytest.mark.req("gateway.generations")
async def test_none_is_begun_while_the_agent_is_at_work(tmp_path: Path) -> None:
    async with open_world(tmp_path) as w:
        there = await w.phone.wait_for_session()
        await w.phone.connect()
        await w.phone.send_text(there, "!say a\n!hang")
        await w.phone.wait_for_envelopes(
            there, lambda found: "turn-start" in list_event_tags(found)
        )
        refused = await request_session(w.phone, agent="crab", fresh=True)
        assert refused["type"] == "error"
        assert "at work" in refused["errorMessage"]
        await w.phone.call_method(there, "abort")
        await w.phone.wait_for_turns(there)
        assert (await request_session(w.phone, agent="crab", fresh=True))["type"] == "success"


@pytest.mark.req("web.cli.renew")
async def test_a_person_begins_one_from_the_command_line(tmp_path: Path) -> None:
    async with open_world(tmp_path) as w:
        old = await w.phone.wait_for_session()
        await w.phone.connect()
        await w.phone.call_method(old, "abort")  # who answers is there
        outcome = await run_web_command("renew", "crab", "--home", w.daemon.home)
        fresh = await wait_for_other_session(w.phone, old)
        assert fresh.id in outcome.output
        unknown = await run_web_command("renew", "heron", "--home", w.daemon.home)
        assert unknown.code == 1
        assert "there are crab, owl" in unknown.err
        await w.stop_gateway()
        alone = await run_web_command("renew", "crab", "--home", w.daemon.home)
        assert alone.code == 1
        assert "crabtalk-web gateway" in alone.err


@pytest.mark.req("gateway.generations.cleared")
async def test_one_that_is_cleared_as_soon_as_it_was_told_begins_another_session(
    tmp_path: Path,
) -> None:
    """Before anybody has looked how many messages there are."""
    async with open_world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say one"))
        await w.phone.wait_for_turns(old)
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        await wait_for_other_session(w.phone, old)


@pytest.mark.req("gateway.generations.cleared")
async def test_a_conversation_that_was_cleared_begins_another_session(tmp_path: Path) -> None:
    async with open_world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.wait_for_session()
        for word in ("one", "two"):
            await collect_events(client.stream("crab", f"!say {word}"))
        await w.phone.wait_for_turns(old, 2)
        await w.stop_gateway()
        await w.start_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        fresh = await wait_for_other_session(w.phone, old)
        assert list_texts(await w.phone.read_envelopes(old)) == ["one", "two"]
        await w.phone.send_text(fresh, "!say anew")
        assert list_texts(check_order(await w.phone.wait_for_turns(fresh))) == ["anew"]
        await w.stop_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        for word in ("again", "and", "again"):
            await collect_events(client.stream("crab", f"!say {word}"))
        await w.start_gateway()
        async with asyncio.timeout(20):
            while (last := await wait_for_other_session(w.phone, old)).id == fresh.id:
                await asyncio.sleep(0.05)
        envelopes = check_order(await w.phone.wait_for_turns(last, 3))
        assert list_texts(envelopes) == ["again", "and", "again"]
        assert list_texts(await w.phone.read_envelopes(fresh)) == ["anew"]
