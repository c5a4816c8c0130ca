"""Presence: who is online, according to heartbeats."""

import asyncio
import time
from pathlib import Path

import pytest

from apps.web.tests.relay.relay_world import PATIENCE, RelayUser, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.relay.ids import now_ms


async def is_active(person: RelayUser, session: str) -> bool:
    sessions = (await person.get("/v1/sessions")).ok["sessions"]
    return bool(next(each["active"] for each in sessions if each["id"] == session))


@pytest.mark.req("relay.presence.heartbeat")
async def test_heartbeats_are_forwarded_with_the_thinking_flag(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session, machine = await ada.create_session(), await ada.create_machine()
        phone = await ada.connect()
        gateway = await ada.connect(clientType="session-scoped", sessionId=session)
        now = now_ms()
        await gateway.call("session-alive", {"sid": session, "time": now, "thinking": True})
        event = await phone.wait_for_ephemeral("activity", thinking=True)
        assert (event["id"], event["active"], event["activeAt"]) == (session, True, now)
        await gateway.call("machine-alive", {"machineId": machine, "time": now})
        assert (await phone.wait_for_ephemeral("machine-activity"))["id"] == machine
        assert gateway.events == []


@pytest.mark.req("relay.presence.time")
async def test_future_heartbeats_count_as_now_and_old_ones_are_ignored(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        now = now_ms()
        await phone.call("session-alive", {"sid": session, "time": now - 11 * 60_000})
        await phone.call("session-alive", {"sid": "not mine", "time": now})
        await phone.call("session-alive", {"sid": session, "time": now + 3_600_000})
        event = await phone.wait_for_ephemeral("activity")
        assert now <= event["activeAt"] <= now_ms()
        assert len(phone.events) == 1


@pytest.mark.req("relay.presence.end")
async def test_an_ended_session_ignores_late_heartbeats(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        await phone.call("session-end", {"sid": session, "time": now_ms()})
        await phone.wait_for_ephemeral("activity", active=False)
        assert not await is_active(ada, session)
        await phone.call("session-alive", {"sid": session, "time": now_ms()})
        assert [it["active"] for _, it in phone.events] == [False]
        # Opening a session by its tag makes it active again.
        assert await ada.create_session() == session
        await phone.call("session-alive", {"sid": session, "time": now_ms()})
        await phone.wait_for_ephemeral("activity", active=True)
        await world.relay.context.presence.flush()
        assert await is_active(ada, session)


@pytest.mark.req("relay.presence.sweep")
async def test_records_without_heartbeats_become_inactive(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(inactivity=0.05)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        until = time.monotonic() + PATIENCE
        while await is_active(ada, session):
            assert time.monotonic() < until
            await world.relay.context.presence.expire_inactive()
        event = await phone.wait_for_ephemeral("activity", active=False)
        assert event["id"] == session
    assert RelayLimits().inactivity == 600


@pytest.mark.req("relay.presence.seldom")
async def test_heartbeats_are_rarely_stored(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        gateway = await ada.connect()
        await gateway.call("session-alive", {"sid": session, "time": now_ms()})
        await world.relay.context.presence.flush()
        writes = world.relay.statistics()["writes"]
        await asyncio.gather(
            *(gateway.call("session-alive", {"sid": session, "time": now_ms()}) for _ in range(100))
        )
        await world.relay.context.presence.flush()
        assert world.relay.statistics()["writes"] == writes


@pytest.mark.req("relay.usage")
async def test_usage_is_forwarded_and_not_stored(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        report = {"key": "k", "sessionId": session, "tokens": {"total": 4242}, "cost": {"total": 1}}
        assert (await phone.call("usage-report", report))["success"]
        assert (await phone.wait_for_ephemeral("usage"))["tokens"] == {"total": 4242}
        assert (await phone.call("usage-report", {**report, "tokens": {}}))["success"] is False
        assert (await ada.post("/v1/usage/query")).ok["totalReports"] == 0
