"""Sockets: the handshake, versioned values, and invalid packets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apps.web.tests.relay.relay_world import (
    PATIENCE,
    RefusedConnection,
    RelayUser,
    RelayWorld,
    open_relay_world,
)
from crabtalk_web.relay import RelayLimits


async def open_raw_socket(world: RelayWorld, person: RelayUser) -> aiohttp.ClientWebSocketResponse:
    """A WebSocket after the relay's first packet."""
    ws = await person.http.ws_connect("/v1/updates/?EIO=4&transport=websocket")
    world.stack.push_async_callback(ws.close)
    opening = await ws.receive_str(timeout=PATIENCE)
    assert opening.startswith("0{")
    open_data = json.loads(opening[1:])
    assert (open_data["pingInterval"], open_data["pingTimeout"]) == (15_000, 45_000)
    return ws


@pytest.mark.req("relay.socket.wire")
async def test_a_raw_websocket_sees_the_expected_packets(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        ws = await open_raw_socket(world, ada)
        await ws.send_str("40" + json.dumps({"token": ada.token}))
        assert (await ws.receive_str()).startswith('40{"sid":')
        await ws.send_str('421["ping",{}]')
        assert await ws.receive_str() == "431[{}]"
        await ws.send_str("2probe")
        assert await ws.receive_str() == "3probe"
        await ada.send_messages(session, "a")
        event = await ws.receive_str()
        assert event.startswith('42["update",{')
        await ws.send_str("41")
        assert (await ws.receive()).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.req("relay.socket.handshake")
@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        ({"token": ""}, "Missing authentication token"),
        ({"token": "wrong"}, "Invalid authentication token"),
        ({"clientType": "session-scoped"}, "Missing sessionId"),
        ({"clientType": "machine-scoped"}, "Missing machineId"),
        ({"clientType": "other"}, "clientType is one of"),
    ],
)
async def test_a_refused_handshake_says_why(
    tmp_path: Path, auth: dict[str, str], reason: str
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        ws = await open_raw_socket(world, ada)
        await ws.send_str("40" + json.dumps({"token": ada.token, **auth}))
        answer = await ws.receive_str()
        assert answer.startswith("44{")
        assert json.loads(answer[2:])["message"].startswith(reason)
        with pytest.raises(RefusedConnection):
            await ada.connect(**auth)


@pytest.mark.req("relay.socket.handshake")
async def test_a_silent_client_times_out(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(connect_timeout=0.05)) as world:
        ws = await open_raw_socket(world, await world.create_user())
        assert (await ws.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.req("relay.socket.transports")
async def test_only_websockets_of_this_version_are_accepted(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        stranger = await world.open_client()
        polling = await stranger.get("/v1/updates/", EIO=4, transport="polling")
        assert (polling.status, polling.body["code"]) == (400, 0)
        old = await stranger.get("/v1/updates/", EIO=3, transport="websocket")
        assert (old.status, old.body["code"]) == (400, 5)


@pytest.mark.req("relay.socket.cas")
async def test_values_change_only_with_the_current_version_and_all_are_notified(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session, machine = await ada.create_session(), await ada.create_machine()
        phone = await ada.connect()
        gateway = await ada.connect(clientType="session-scoped", sessionId=session)
        daemon = await ada.connect(clientType="machine-scoped", machineId=machine)
        for name, field, record, version in (
            ("update-metadata", "metadata", {"sid": session}, 0),
            ("update-state", "agentState", {"sid": session}, 0),
            ("machine-update-metadata", "metadata", {"machineId": machine}, 1),
            ("machine-update-state", "daemonState", {"machineId": machine}, 0),
        ):
            change = {**record, field: "AAAA", "expectedVersion": version}
            done = await gateway.call(name, change)
            assert done == {"result": "success", "version": version + 1, field: "AAAA"}
            late = await phone.call(name, {**change, field: "BBBB"})
            assert late == {"result": "version-mismatch", "version": version + 1, field: "AAAA"}
            reader, kind = (gateway, "session") if "sid" in record else (daemon, "machine")
            for each in (phone, reader):
                payload = await each.wait_for_change(f"update-{kind}", field)
                assert payload == {"value": "AAAA", "version": version + 1}
        cleared = {"sid": session, "agentState": None, "expectedVersion": 1}
        assert (await gateway.call("update-state", cleared))["agentState"] is None


@pytest.mark.req("relay.socket.ack")
@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("update-metadata", {"sid": "none", "metadata": "AAAA", "expectedVersion": 0}),
        ("update-metadata", {"sid": "none", "metadata": "no seal!", "expectedVersion": 0}),
        ("update-metadata", None),
        ("update-state", {"sid": "none", "agentState": 7, "expectedVersion": 0}),
        ("update-state", {"sid": 1}),
        ("machine-update-state", {"machineId": "none", "daemonState": "", "expectedVersion": 0}),
        ("message", {"sid": "none", "message": "AAAA"}),
        ("message", []),
        ("artifact-create", {"id": "x"}),
        ("session-alive", {"sid": "none"}),
        ("no-such-event", {}),
    ],
)
async def test_every_event_that_asks_for_an_answer_gets_one(
    tmp_path: Path, name: str, payload: Any
) -> None:
    async with open_relay_world(tmp_path) as world:
        socket = await (await world.create_user()).connect()
        refused = await socket.call(name, payload)
        assert refused["result"] == "error"
        assert refused["error"] == refused["message"] != ""
        assert await socket.call("ping", {}) == {}


@pytest.mark.req("relay.socket.ack")
async def test_many_changes_at_once_lose_nothing(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        sockets = [await ada.connect() for _ in range(4)]

        async def count_up(socket: Any) -> None:
            version = 0
            for _ in range(10):
                while True:
                    change = {"sid": session, "metadata": "AAAA", "expectedVersion": version}
                    done = await socket.call("update-metadata", change)
                    version = done["version"]
                    if done["result"] == "success":
                        break

        await asyncio.gather(*(count_up(each) for each in sockets))
        assert (await ada.get("/v1/sessions")).ok["sessions"][0]["metadataVersion"] == 40


@pytest.mark.req("relay.socket.packets")
@pytest.mark.parametrize("packet", ["4", "49", "42{}", "42[]", "42[1]", "4251-[", "40/admin,{}"])
async def test_an_invalid_packet_ends_only_its_own_connection(tmp_path: Path, packet: str) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        other = await ada.connect()
        ws = await open_raw_socket(world, ada)
        await ws.send_str("40" + json.dumps({"token": ada.token}))
        await ws.receive_str()
        await ws.send_str(packet)
        assert (await ws.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE
        assert await other.call("ping", {}) == {}


@pytest.mark.req("relay.socket.frames")
async def test_frames_are_accepted_up_to_the_limit(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path, RelayLimits(frame=3_000_000)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        socket = await ada.connect()
        large = {"sid": session, "message": "A" * 2_000_000, "localId": "large"}
        assert (await socket.call("message", large))["result"] == "success"
        heavy = {"sid": session, "metadata": "A" * 2_000_000, "expectedVersion": 0}
        refused = await socket.call("update-metadata", heavy)
        assert "at most 1048576 bytes" in refused["error"]
        await socket.emit("message", {**large, "message": "A" * 4_000_000})
        async with asyncio.timeout(PATIENCE):
            await socket.io.wait()  # until it is disconnected
        assert await (await ada.connect()).call("ping", {}) == {}


@pytest.mark.req("relay.limits.sockets")
async def test_sockets_are_limited_in_total_and_by_account(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(sockets=3, account_sockets=2)) as world:
        ada, eve = await world.create_user(), await world.create_user()
        sockets = [await ada.connect() for _ in range(2)]
        with pytest.raises(RefusedConnection):
            await ada.connect()
        await eve.connect()
        with pytest.raises(RefusedConnection):
            await eve.connect()
        await sockets[0].io.disconnect()
        async with asyncio.timeout(PATIENCE):
            while world.relay.statistics()["sockets"] == 3:
                await asyncio.sleep(0)
        await ada.connect()


@pytest.mark.req("relay.socket.silence")
async def test_a_socket_without_pongs_is_closed(tmp_path: Path) -> None:
    async with open_relay_world(
        tmp_path, RelayLimits(ping_interval=0.1, ping_timeout=0.5)
    ) as world:
        ada = await world.create_user()
        ws = await ada.http.ws_connect("/v1/updates/?EIO=4&transport=websocket")
        await ws.receive_str()
        await ws.send_str("40" + json.dumps({"token": ada.token}))
        await ws.receive_str()
        async with asyncio.timeout(PATIENCE):
            packets = {message.data async for message in ws}
        assert packets == {"2"}
        assert world.relay.statistics()["sockets"] == 0


@pytest.mark.req("relay.socket.silence")
async def test_a_socket_that_answers_pings_stays_open(tmp_path: Path) -> None:
    async with open_relay_world(
        tmp_path, RelayLimits(ping_interval=0.1, ping_timeout=2.5)
    ) as world:
        ada = await world.create_user()
        ws = await ada.http.ws_connect("/v1/updates/?EIO=4&transport=websocket")
        await ws.receive_str()
        await ws.send_str("40" + json.dumps({"token": ada.token}))
        await ws.receive_str()
        for _ in range(4):
            assert await ws.receive_str(timeout=PATIENCE) == "2"
            await ws.send_str("3")
        await ws.send_str('421["ping",{}]')
        assert await ws.receive_str() == "431[{}]"
        await ws.close()


@pytest.mark.req("relay.socket.slow")
async def test_a_client_that_does_not_read_is_disconnected_without_delaying_others(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path, RelayLimits(outbox=1_000_000)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        ws = await open_raw_socket(world, ada)
        await ws.send_str("40" + json.dumps({"token": ada.token}))
        await ws.receive_str()
        # From now on the client reads nothing from the connection.
        connection = ws._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.pause_reading()
        other = await ada.connect()
        count = 0
        async with asyncio.timeout(PATIENCE):
            while world.relay.statistics()["sockets"] == 2 or count == 0:
                count += 1
                payload = {"content": "A" * 400_000, "localId": str(count)}
                path = f"/v3/sessions/{session}/messages"
                assert (await ada.post(path, messages=[payload])).status == 200
        connection.transport.resume_reading()
        await other.wait_for(lambda _, it: it["body"]["message"]["seq"] == count)
        assert [each["seq"] for each in other.messages(session)] == list(range(1, count + 1))
