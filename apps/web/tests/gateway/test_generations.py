"""Generations: a conversation goes on in another session, with another key."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.command import called
from apps.web.tests.gateway.phone import Phone, Session, in_order, kinds, texts
from apps.web.tests.gateway.world import World, world
from crabtalk_web.gateway import Store
from crabtalk_web.sealing import from_base64, unwrap_key
from tests.daemon.served import told


async def machine_of(device: Phone) -> Session:
    (machine,) = await device.ask("GET", "/v1/machines")
    wrapped = from_base64(machine["dataEncryptionKey"])
    assert wrapped is not None
    key = unwrap_key(device.secret.content_keys.secret, wrapped)
    assert key is not None
    found = Session(machine["id"], key)
    found.metadata = found.sealer.open(machine["metadata"])
    return found


async def spawned(device: Phone, **params: Any) -> dict[str, Any]:
    machine = await machine_of(device)
    answer: dict[str, Any] = await device.call(machine, "spawn-happy-session", **params)
    return answer


async def session(device: Phone, of: str) -> Session:
    async with asyncio.timeout(20):
        while True:
            for one in await device.sessions():
                if one.id == of:
                    return one
            await asyncio.sleep(0.02)


async def other_session(device: Phone, than: Session) -> Session:
    """The one that shows the same agent now."""
    async with asyncio.timeout(20):
        while True:
            for one in await device.sessions():
                is_its = one.metadata["name"] == than.metadata["name"] and one.id != than.id
                if is_its and one.metadata["lifecycleState"] == "running":
                    return one
            await asyncio.sleep(0.02)


@pytest.mark.req("gateway.spawn")
async def test_a_device_that_wants_a_session_of_an_agent_is_shown_the_one_there_is(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        there = await w.phone.session()
        await w.phone.connect()
        assert (await machine_of(w.phone)).metadata["machineKind"] == "crabtalk"
        shown = {"type": "success", "sessionId": there.id}
        assert await spawned(w.phone, agent="crab", directory="/") == shown
        assert await spawned(w.phone, agent="claude", directory="/home/me/crab") == shown
        refused = await spawned(w.phone, agent="claude")
        assert refused["type"] == "error"
        assert "crab" in refused["errorMessage"]
        await w.phone.call(there, "killSession")
        assert await spawned(w.phone, agent="crab") == shown
        async with asyncio.timeout(20):
            while (await w.phone.session()).metadata["lifecycleState"] != "running":
                await asyncio.sleep(0.02)


@pytest.mark.req("gateway.generations")
async def test_a_fresh_session_has_another_key_and_goes_on_after_restarts(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(old, "!say before")
        await w.phone.until_ended(old)
        answer = await spawned(w.phone, agent="crab", fresh=True)
        assert answer["type"] == "success", answer
        fresh = await session(w.phone, answer["sessionId"])
        assert fresh.id != old.id
        assert fresh.key != old.key
        await w.phone.say(fresh, "!say one")
        assert texts(in_order(await w.phone.until_ended(fresh))) == ["one"]
        past = await session(w.phone, old.id)
        assert past.metadata["lifecycleState"] == "archived"
        assert past.metadata["continuedBy"] == fresh.id
        assert texts(await w.phone.envelopes(past)) == ["before"]
        await w.stop_gateway()
        await told(client.stream("crab", "!say two"))
        await w.start_gateway()
        await w.phone.say(fresh, "!say three")
        envelopes = in_order(await w.phone.until_ended(fresh, 3))
        assert texts(envelopes) == ["one", "two", "three"]
        said = [m["text"] for m in w.daemon.kept() if m["role"] == "user"]
        assert said == ["!say before", "!say one", "!say two", "!say three"]
        await lose_the_journals(w)
        await w.phone.say(fresh, "!say four")
        assert texts(in_order(await w.phone.until_ended(fresh, 4)))[-1] == "four"


async def lose_the_journals(w: World) -> None:
    await w.stop_gateway()
    for path in Store(w.daemon.home).journal.iterdir():
        path.unlink()
    await w.start_gateway()


@pytest.mark.req("gateway.generations")
async def test_none_is_begun_while_the_agent_is_at_work(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        there = await w.phone.session()
        await w.phone.connect()
        await w.phone.say(there, "!say a\n!hang")
        await w.phone.until(there, lambda found: "turn-start" in kinds(found))
        refused = await spawned(w.phone, agent="crab", fresh=True)
        assert refused["type"] == "error"
        assert "at work" in refused["errorMessage"]
        await w.phone.call(there, "abort")
        await w.phone.until_ended(there)
        assert (await spawned(w.phone, agent="crab", fresh=True))["type"] == "success"


@pytest.mark.req("web.cli.renew")
async def test_a_person_begins_one_from_the_command_line(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        old = await w.phone.session()
        await w.phone.connect()
        await w.phone.call(old, "abort")  # who answers is there
        outcome = await called("renew", "crab", "--home", w.daemon.home)
        fresh = await other_session(w.phone, old)
        assert fresh.id in outcome.answer
        unknown = await called("renew", "heron", "--home", w.daemon.home)
        assert unknown.code == 1
        assert "there are crab, owl" in unknown.err
        await w.stop_gateway()
        alone = await called("renew", "crab", "--home", w.daemon.home)
        assert alone.code == 1
        assert "crabtalk-web gateway" in alone.err


@pytest.mark.req("gateway.generations.cleared")
async def test_one_that_is_cleared_as_soon_as_it_was_told_begins_another_session(
    tmp_path: Path,
) -> None:
    """Before anybody has looked how many messages there are."""
    async with world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.session()
        await told(client.stream("crab", "!say one"))
        await w.phone.until_ended(old)
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        await other_session(w.phone, old)


@pytest.mark.req("gateway.generations.cleared")
async def test_a_conversation_that_was_cleared_begins_another_session(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.daemon.client() as client:
        old = await w.phone.session()
        for word in ("one", "two"):
            await told(client.stream("crab", f"!say {word}"))
        await w.phone.until_ended(old, 2)
        await w.stop_gateway()
        await w.start_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        fresh = await other_session(w.phone, old)
        assert texts(await w.phone.envelopes(old)) == ["one", "two"]
        await w.phone.say(fresh, "!say anew")
        assert texts(in_order(await w.phone.until_ended(fresh))) == ["anew"]
        await w.stop_gateway()
        (stored,) = (await client.list_conversations("crab")).conversations
        await client.delete_conversation(stored.file_path)
        for word in ("again", "and", "again"):
            await told(client.stream("crab", f"!say {word}"))
        await w.start_gateway()
        async with asyncio.timeout(20):
            while (last := await other_session(w.phone, old)).id == fresh.id:
                await asyncio.sleep(0.05)
        envelopes = in_order(await w.phone.until_ended(last, 3))
        assert texts(envelopes) == ["again", "and", "again"]
        assert texts(await w.phone.envelopes(fresh)) == ["anew"]
