"""Presence: who is there, as far as it was heard."""

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
async def test_heartbeats_are_passed_on_with_whether_it_thinks(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session, machine = await ada.create_session(), await ada.create_machine()
        phone = await ada.connect()
        gateway = await ada.connect(clientType="session-scoped", sessionId=session)
        now = now_ms()
        await gateway.call("session-alive", {"sid": session, "time": now, "thinking": True})
        told = await phone.wait_for_ephemeral("activity", thinking=True)
        assert (told["id"], told["active"], told["activeAt"]) == (session, True, now)
        await gateway.call("machine-alive", {"machineId": machine, "time": now})
        assert (await phone.wait_for_ephemeral("machine-activity"))["id"] == machine
        assert gateway.events == []


@pytest.mark.req("relay.presence.time")
async def test_the_future_is_now_and_what_is_long_ago_was_never_said(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        now = now_ms()
        await phone.call("session-alive", {"sid": session, "time": now - 11 * 60_000})
        await phone.call("session-alive", {"sid": "not mine", "time": now})
        await phone.call("session-alive", {"sid": session, "time": now + 3_600_000})
        told = await phone.wait_for_ephemeral("activity")
        assert now <= told["activeAt"] <= now_ms()
        assert len(phone.events) == 1


@pytest.mark.req("relay.presence.end")
async def test_an_ended_session_is_not_woken_by_what_was_under_way(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        await phone.call("session-end", {"sid": session, "time": now_ms()})
        await phone.wait_for_ephemeral("activity", active=False)
        assert not await is_active(ada, session)
        await phone.call("session-alive", {"sid": session, "time": now_ms()})
        assert [it["active"] for _, it in phone.events] == [False]
        # Whoever asks for it by its tag means it.
        assert await ada.create_session() == session
        await phone.call("session-alive", {"sid": session, "time": now_ms()})
        await phone.wait_for_ephemeral("activity", active=True)
        await there.relay.context.presence.flush()
        assert await is_active(ada, session)


@pytest.mark.req("relay.presence.sweep")
async def test_what_is_not_heard_of_is_inactive_after_a_while(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(inactivity=0.05)) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        until = time.monotonic() + PATIENCE
        while await is_active(ada, session):
            assert time.monotonic() < until
            await there.relay.context.presence.expire_inactive()
        told = await phone.wait_for_ephemeral("activity", active=False)
        assert told["id"] == session
    assert RelayLimits().inactivity == 600


@pytest.mark.req("relay.presence.seldom")
async def test_heartbeats_are_written_seldom(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        gateway = await ada.connect()
        await gateway.call("session-alive", {"sid": session, "time": now_ms()})
        await there.relay.context.presence.flush()
        writes = there.relay.statistics()["writes"]
        await asyncio.gather(
            *(gateway.call("session-alive", {"sid": session, "time": now_ms()}) for _ in range(100))
        )
        await there.relay.context.presence.flush()
        assert there.relay.statistics()["writes"] == writes


@pytest.mark.req("relay.usage")
async def test_usage_is_shown_and_not_kept(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        phone = await ada.connect()
        report = {"key": "k", "sessionId": session, "tokens": {"total": 4242}, "cost": {"total": 1}}
        assert (await phone.call("usage-report", report))["success"]
        assert (await phone.wait_for_ephemeral("usage"))["tokens"] == {"total": 4242}
        assert (await phone.call("usage-report", {**report, "tokens": {}}))["success"] is False
        assert (await ada.post("/v1/usage/query")).ok["totalReports"] == 0
