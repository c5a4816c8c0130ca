"""Session renewal: a conversation continues in another session, with another key."""

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
    """Wait for another session of the same agent."""
    async with asyncio.timeout(20):
        while True:
            for one in await device.list_sessions():
                is_its = one.metadata["name"] == than.metadata["name"] and one.id != than.id
                if is_its and one.metadata["lifecycleState"] == "running":
                    return one
            await asyncio.sleep(0.02)


@pytest.mark.req("gateway.spawn")
async def test_a_device_that_asks_for_a_session_gets_the_existing_one(
    tmp_path: Path,
) -> None:
    async with open_world(tmp_path) as world:
        current = await world.phone.wait_for_session()
        await world.phone.connect()
        assert (await open_machine(world.phone)).metadata["machineKind"] == "crabtalk"
        expected = {"type": "success", "sessionId": current.id}
        assert await request_session(world.phone, agent="crab", directory="/") == expected
        assert (
            await request_session(world.phone, agent="claude", directory="/home/me/crab")
            == expected
        )
        refused = await request_session(world.phone, agent="claude")
        assert refused["type"] == "error"
        assert "crab" in refused["errorMessage"]
        await world.phone.call_method(current, "killSession")
        assert await request_session(world.phone, agent="crab") == expected
        async with asyncio.timeout(20):
            while (await world.phone.wait_for_session()).metadata["lifecycleState"] != "running":
                await asyncio.sleep(0.02)


@pytest.mark.req("gateway.generations")
async def test_a_fresh_session_has_another_key_and_survives_restarts(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        old = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(old, "!say before")
        await world.phone.wait_for_turns(old)
        answer = await request_session(world.phone, agent="crab", fresh=True)
        assert answer["type"] == "success", answer
        fresh = await wait_for_session(world.phone, answer["sessionId"])
        assert fresh.id != old.id
        assert fresh.key != old.key
        await world.phone.send_text(fresh, "!say one")
        assert list_texts(check_order(await world.phone.wait_for_turns(fresh))) == ["one"]
        past = await wait_for_session(world.phone, old.id)
        assert past.metadata["lifecycleState"] == "archived"
        assert past.metadata["continuedBy"] == fresh.id
        assert list_texts(await world.phone.read_envelopes(past)) == ["before"]
        await world.stop_gateway()
        await collect_events(client.stream("crab", "!say two"))
        await world.start_gateway()
        await world.phone.send_text(fresh, "!say three")
        envelopes = check_order(await world.phone.wait_for_turns(fresh, 3))
        assert list_texts(envelopes) == ["one", "two", "three"]
        texts = [m["text"] for m in world.daemon.read_messages() if m["role"] == "user"]
        assert texts == ["!say before", "!say one", "!say two", "!say three"]
        await delete_journals(world)
        await world.phone.send_text(fresh, "!say four")
        assert list_texts(check_order(await world.phone.wait_for_turns(fresh, 4)))[-1] == "four"


async def delete_journals(world: WebGatewayWorld) -> None:
    await world.stop_gateway()
    for path in WebFolder(world.daemon.home).journal_folder.iterdir():
        path.unlink()
    await world.start_gateway()


@pytest.mark.req("gateway.generations")
async def test_no_session_is_renewed_during_a_turn(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        current = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(current, "!say a\n!hang")
        await world.phone.wait_for_envelopes(
            current, lambda envelopes: "turn-start" in list_event_tags(envelopes)
        )
        refused = await request_session(world.phone, agent="crab", fresh=True)
        assert refused["type"] == "error"
        assert "at work" in refused["errorMessage"]
        await world.phone.call_method(current, "abort")
        await world.phone.wait_for_turns(current)
        assert (await request_session(world.phone, agent="crab", fresh=True))["type"] == "success"


@pytest.mark.req("web.cli.renew")
async def test_the_command_line_can_renew_a_session(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        old = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.call_method(old, "abort")  # the session answers, so it is registered
        outcome = await run_web_command("renew", "crab", "--home", world.daemon.home)
        fresh = await wait_for_other_session(world.phone, old)
        assert fresh.id in outcome.output
        unknown = await run_web_command("renew", "heron", "--home", world.daemon.home)
        assert unknown.code == 1
        assert "there are crab, owl" in unknown.err
        await world.stop_gateway()
        alone = await run_web_command("renew", "crab", "--home", world.daemon.home)
        assert alone.code == 1
        assert "crabtalk-web gateway" in alone.err


@pytest.mark.req("gateway.generations.cleared")
async def test_a_conversation_cleared_right_after_a_turn_begins_another_session(
    tmp_path: Path,
) -> None:
    """Before the gateway has looked how many messages there are."""
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        old = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say one"))
        await world.phone.wait_for_turns(old)
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        await wait_for_other_session(world.phone, old)


@pytest.mark.req("gateway.generations.cleared")
async def test_a_cleared_conversation_begins_another_session(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        old = await world.phone.wait_for_session()
        for word in ("one", "two"):
            await collect_events(client.stream("crab", f"!say {word}"))
        await world.phone.wait_for_turns(old, 2)
        await world.stop_gateway()
        await world.start_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        fresh = await wait_for_other_session(world.phone, old)
        assert list_texts(await world.phone.read_envelopes(old)) == ["one", "two"]
        await world.phone.send_text(fresh, "!say anew")
        assert list_texts(check_order(await world.phone.wait_for_turns(fresh))) == ["anew"]
        await world.stop_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        for word in ("again", "and", "again"):
            await collect_events(client.stream("crab", f"!say {word}"))
        await world.start_gateway()
        async with asyncio.timeout(20):
            while (last := await wait_for_other_session(world.phone, old)).id == fresh.id:
                await asyncio.sleep(0.05)
        envelopes = check_order(await world.phone.wait_for_turns(last, 3))
        assert list_texts(envelopes) == ["again", "and", "again"]
        assert list_texts(await world.phone.read_envelopes(fresh)) == ["anew"]
