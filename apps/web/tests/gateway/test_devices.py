"""Devices of a session: what they see, what they may call, and that all see the same."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.gateway.device_client import (
    DeviceClient,
    DeviceSession,
    check_order,
    list_event_tags,
    list_texts,
    list_turn_statuses,
    open_device,
)
from apps.web.tests.gateway.web_gateway_world import open_world
from crabtalk_web.stream import SubagentStart, TextEvent
from tests.daemon.in_process_daemon import collect_events


@pytest.mark.req("gateway.metadata")
async def test_a_session_has_metadata_and_capabilities(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        await collect_events(client.stream("crab", "!say hello"))
        await client.set_title("crab", "All about shells")
        session = await world.phone.wait_for_session()
        await world.phone.send_text(session, "!say again")
        async with asyncio.timeout(20):
            while (session := await world.phone.wait_for_session()).metadata.get("summary") is None:
                await asyncio.sleep(0.02)
        told_of = session.metadata
        assert told_of["summary"]["text"] == "All about shells"
        assert told_of["path"] == str(tmp_path / "work")
        assert told_of["host"]
        assert "flavor" not in told_of
        assert told_of["lifecycleState"] == "running"
        assert told_of["models"] == [{"code": "scripted", "value": "scripted"}]
        assert told_of["capabilities"]["shell"] is False
        assert told_of["capabilities"]["abort"] is True
        assert set(told_of["capabilities"]["rpcMethods"]) >= {"abort", "communication"}


@pytest.mark.req("gateway.metadata")
async def test_metadata_of_devices_is_preserved(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world, world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await change_metadata(world.phone, session, permissionMode="plan")
        await collect_events(client.stream("crab", "!say hello"))
        await client.set_title("crab", "Plans")
        await world.phone.send_text(session, "!say more")
        async with asyncio.timeout(20):
            while (session := await world.phone.wait_for_session()).metadata.get("summary") is None:
                await asyncio.sleep(0.02)
        assert session.metadata["permissionMode"] == "plan"


async def change_metadata(device: DeviceClient, session: DeviceSession, **changes: Any) -> None:
    """Change it as an app does: based on the current value."""
    assert device._io is not None
    version, metadata = 0, session.metadata
    async with asyncio.timeout(20):
        while True:
            told_of = {
                "sid": session.id,
                "metadata": session.sealer.seal({**metadata, **changes}),
                "expectedVersion": version,
            }
            answer = await device._io.call("update-metadata", told_of)
            if answer["result"] == "success":
                return
            version, metadata = answer["version"], session.sealer.open(answer["metadata"])


@pytest.mark.req("gateway.agents")
async def test_there_is_a_session_for_every_agent_from_the_start(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        await world.phone.wait_for_session("crab")
        await world.phone.wait_for_session("owl")


@pytest.mark.req("gateway.agents")
async def test_without_announcing_a_session_is_created_by_the_first_message(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path, announce_agents=False) as world,
        world.daemon.client() as client,
    ):
        assert await world.phone.list_sessions() == []
        await collect_events(client.stream("owl", "!say hoo"))
        session = await world.phone.wait_for_session("owl")
        assert list_texts(check_order(await world.phone.wait_for_turns(session))) == ["hoo"]


@pytest.mark.req("gateway.presence")
async def test_devices_see_at_once_that_an_agent_is_at_work(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, "!wait\n!say done")

        def is_activity(name: str, it: Any) -> bool:
            is_one = name == "ephemeral" and it.get("type") == "activity"
            return is_one and it["id"] == session.id

        await world.phone.wait_for_event(lambda name, it: is_activity(name, it) and it["thinking"])
        world.phone.events.clear()
        await world.release_model()
        await world.phone.wait_for_event(
            lambda name, it: is_activity(name, it) and not it["thinking"]
        )


@pytest.mark.req("gateway.push")
async def test_push_notices_contain_no_text(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, "!say the canary sings")
        told_of = await world.phone.wait_for_event(
            lambda name, it: name == "ephemeral" and it.get("type") == "session-event"
        )
        assert told_of["kind"] == "done"
        assert told_of["title"] == "crabtalk"
        assert told_of["body"] == "A turn is over."


class LiveTextWatcher:
    """A device that shows live text."""

    def __init__(self, device: DeviceClient, session: DeviceSession) -> None:
        self._device = device
        self._session = session
        self._at = (0, 0)
        self.pieces: dict[int, str] = {}
        self.speakers: dict[int, tuple[str, str]] = {}
        self.became: dict[int, str] = {}

    async def watch_until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                segment, offset = self._at
                part = await self._device.call_method(
                    self._session, "watch", segment=segment, offset=offset
                )
                number = part["segment"]
                assert part["offset"] == len(self.pieces.get(number, ""))
                self.pieces[number] = self.pieces.get(number, "") + part["text"]
                self.speakers[number] = part["speaker"], part["subagent"]
                self.became |= {int(key): value for key, value in part["became"].items()}
                self._at = number, part["next"]


@pytest.mark.req("gateway.live")
async def test_text_can_be_watched_while_it_is_written(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        watching = LiveTextWatcher(world.phone, session)
        await world.phone.send_text(
            session, "!say so far \N{CRAB} so good\n!wait\n!say and the rest"
        )
        await watching.watch_until(lambda: "good" in str(watching.pieces.values()))
        assert list_texts(await world.phone.read_envelopes(session)) == []  # not an envelope yet
        (number,) = [key for key, text in watching.pieces.items() if "good" in text]
        assert watching.speakers[number] == ("crab", "")
        await world.release_model()
        await watching.watch_until(lambda: number in watching.became)
        envelopes = check_order(await world.phone.wait_for_turns(session))
        (said,) = [e for e in envelopes if e.id == watching.became[number]]
        assert isinstance(said.ev, TextEvent)
        assert said.ev.text.startswith(watching.pieces[number].strip())
        assert said.ev.text.endswith("rest")


@pytest.mark.req("gateway.live.guest")
async def test_live_text_names_the_guest_and_reports_dropped_text(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        watching = LiveTextWatcher(world.phone, session)
        await world.phone.send_text(session, "@owl !say hoo hoo\n!hang")
        await watching.watch_until(lambda: "hoo" in str(watching.pieces.values()))
        (number,) = [key for key, text in watching.pieces.items() if "hoo" in text]
        envelopes = await world.phone.wait_for_envelopes(
            session, lambda envelopes: "start" in list_event_tags(envelopes)
        )
        (start,) = [e for e in envelopes if isinstance(e.ev, SubagentStart)]
        assert watching.speakers[number] == ("owl", start.subagent)
        await world.phone.call_method(session, "abort")
        await watching.watch_until(lambda: number in watching.became)
        assert watching.became[number] == ""  # text of a stopped guest is not stored
        assert list_texts(check_order(await world.phone.wait_for_turns(session))) == []


@pytest.mark.req("gateway.rpc.replay")
async def test_a_replayed_call_is_refused(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        sealed = session.sealer.seal({})
        assert await world.phone.call_sealed(session, "abort", sealed) is None
        replayed = await world.phone.call_sealed(session, "abort", sealed)
        assert "made before" in replayed["error"]
        other = await world.phone.wait_for_session("owl")
        foreign = await world.phone.call_sealed(session, "abort", other.sealer.seal({}))
        assert "cannot be opened" in foreign["error"]


@pytest.mark.req("gateway.rpc.replay")
async def test_a_replayed_call_is_refused_by_the_next_process_too(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        sealed = session.sealer.seal({})
        assert await world.phone.call_sealed(session, "killSession", sealed) is not None
        await world.stop_gateway()
        await world.start_gateway()
        replayed = await world.phone.call_sealed(session, "killSession", sealed)
        assert "made before" in replayed["error"]
        assert await world.phone.call_method(session, "abort") is None


@pytest.mark.req("gateway.usage")
async def test_usage_is_reported_only_if_configured(tmp_path: Path) -> None:
    def is_usage(name: str, it: Any) -> bool:
        return name == "ephemeral" and it.get("type") == "usage"

    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, "!usage 70 7\n!say a")
        await world.phone.wait_for_turns(session)
        await world.stop_gateway()
        await world.start_gateway(report_usage=True)
        script = '!usage 100 10\n!tool recall {"query": "x"}\n!then\n!usage 200 20\n!say b'
        await world.phone.send_text(session, script)
        report = await world.phone.wait_for_event(is_usage)
        assert report["id"] == session.id
        assert report["tokens"] == {
            "total": 330,
            "input": 300,
            "output": 30,
            "cache_creation": 0,
            "cache_read": 0,
        }
        assert report["cost"] == {"total": 0, "input": 0, "output": 0}
        await world.phone.wait_for_turns(session, 2)
        assert sum(is_usage(name, it) for name, it in world.phone.events) == 1


@pytest.mark.req("gateway.rpc.shell")
@pytest.mark.parametrize("method", ["bash", "readFile", "writeFile", "listDirectory", "ripgrep"])
async def test_there_are_no_methods_for_shells_and_folders(tmp_path: Path, method: str) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.call_method(
            session, "abort"
        )  # a session that answers this has registered all methods
        assert world.phone._io is not None
        request = {
            "method": f"{session.id}:{method}",
            "params": session.sealer.seal({"command": "id", "path": "/etc/passwd"}),
        }
        answer = await world.phone._io.call("rpc-call", request, timeout=20)
        assert answer["ok"] is False


@pytest.mark.req("gateway.kill_session")
async def test_an_archived_session_is_reopened_by_the_next_message(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await world.phone.send_text(session, "!hang")
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "turn-start" in list_event_tags(envelopes)
        )
        told_of = await world.phone.call_method(session, "killSession")
        assert told_of["success"] is True
        assert list_turn_statuses(check_order(await world.phone.wait_for_turns(session))) == [
            "cancelled"
        ]
        async with asyncio.timeout(20):
            while (await world.phone.wait_for_session()).metadata["lifecycleState"] != "archived":
                await asyncio.sleep(0.02)
        await world.stop_gateway()
        await world.start_gateway()
        owl = await world.phone.wait_for_session("owl")
        await world.phone.send_text(owl, "!say hoo")
        await world.phone.wait_for_turns(owl)
        assert (await world.phone.wait_for_session()).metadata["lifecycleState"] == "archived"
        await world.phone.send_text(session, "!say back")
        assert list_texts(await world.phone.wait_for_turns(session, 2)) == ["back"]
        async with asyncio.timeout(20):
            while (await world.phone.wait_for_session()).metadata["lifecycleState"] != "running":
                await asyncio.sleep(0.02)


@pytest.mark.req("gateway.kill_session")
async def test_a_device_can_archive_through_the_metadata_too(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        session = await world.phone.wait_for_session()
        await world.phone.connect()
        await change_metadata(world.phone, session, lifecycleState="archiveRequested")
        async with asyncio.timeout(20):
            while (await world.phone.wait_for_session()).metadata["lifecycleState"] != "archived":
                await asyncio.sleep(0.02)


class MessageWatcher:
    """A device like an app: accepts the next message from the socket, and fetches missing ones."""

    def __init__(self, device: DeviceClient, session: DeviceSession) -> None:
        self._device = device
        self._session = session
        self._cursor = 0
        self.seen: list[str] = []

    async def watch(self, source: random.Random) -> None:
        """Run until cancelled; loses its connection now and then."""
        while True:
            await self._device.connect()
            for page in await self._device.read_messages(self._session):
                self._take(page.seq, page.local_id)
            until = asyncio.get_running_loop().time() + source.uniform(0.05, 0.4)
            while asyncio.get_running_loop().time() < until:
                told_of, self._device.events = self._device.events, []
                for name, payload in told_of:
                    body = payload["body"] if name == "update" else {}
                    if body.get("t") == "new-message" and body["sid"] == self._session.id:
                        message = body["message"]
                        if message["seq"] == self._cursor + 1:
                            self._take(message["seq"], message["localId"])
                await asyncio.sleep(0.005)
            await self._device.disconnect()

    def _take(self, seq: int, local_id: str) -> None:
        if seq > self._cursor:
            assert seq == self._cursor + 1
            self._cursor = seq
            self.seen.append(local_id)


@pytest.mark.req("gateway.two_devices")
async def test_two_devices_that_come_and_go_see_the_same_order(tmp_path: Path) -> None:
    async with (
        open_world(tmp_path) as world,
        open_device(world.phone.url, world.phone.secret) as other,
    ):
        session = await world.phone.wait_for_session()
        one, two = MessageWatcher(world.phone, session), MessageWatcher(other, session)
        watching = [
            asyncio.ensure_future(one.watch(random.Random(1))),
            asyncio.ensure_future(two.watch(random.Random(2))),
        ]
        async with open_device(world.phone.url, world.phone.secret) as speaker:
            for number in range(12):
                device = (speaker, other)[number % 2]
                await device.send_text(session, f"!say answer {number}")
                if number % 3 == 0:
                    async with world.daemon.client() as client:
                        await collect_events(client.stream("crab", f"!say aside {number}"))
            envelopes = check_order(await speaker.wait_for_turns(session, 16))
            everything = [said.local_id for said in await speaker.read_messages(session)]
        async with asyncio.timeout(20):
            while not (len(one.seen) == len(two.seen) == len(everything)):
                for task in watching:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
        assert one.seen == two.seen == everything
        answers = [text for text in list_texts(envelopes) if text.startswith("answer")]
        assert answers == [f"answer {number}" for number in range(12)]
