"""Messages: one order for all, no duplicates, no gaps."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import RelayUser, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.sealing import MasterSecret, new_key


def list_seqs(messages: list[dict[str, Any]]) -> list[int]:
    return [each["seq"] for each in messages]


@pytest.mark.req("relay.messages.append")
async def test_messages_are_numbered_from_one_and_read_back_unchanged(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        message = [ada.build_message(str(n), f"id{n}") for n in range(5)]
        reply = await ada.post(f"/v3/sessions/{session}/messages", messages=message)
        receipts = reply.ok["messages"]
        assert list_seqs(receipts) == [1, 2, 3, 4, 5]
        assert receipts[0].keys() == {"id", "seq", "localId", "createdAt", "updatedAt"}
        read = await ada.read_messages(session)
        assert [each["content"] for each in read] == [
            {"t": "encrypted", "c": each["content"]} for each in message
        ]
        assert [each["id"] for each in read] == [each["id"] for each in receipts]
        assert (await ada.get("/v1/sessions")).ok["sessions"][0]["seq"] == 5


@pytest.mark.req("relay.messages.local_id")
async def test_a_repeated_message_is_returned_but_not_stored_again(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        socket = await ada.connect()
        session = await ada.create_session()
        first = await ada.send_messages(session, "a", "b")
        repeated = await ada.send_messages(session, "b", "c", "c", "a")
        assert [(each["localId"], each["seq"]) for each in repeated] == [
            ("a", 1),
            ("b", 2),
            ("c", 3),
        ]
        assert repeated[:2] == first
        assert list_seqs(await ada.send_messages(session, "d")) == [4]
        # Over the socket as well, where no number may be skipped either.
        for local_id in ("d", "e", "e"):
            message = {"sid": session, "message": "AAAA", "localId": local_id}
            assert (await socket.call("message", message))["result"] == "success"
        assert list_seqs(await ada.read_messages(session)) == [1, 2, 3, 4, 5]
        words = [each["localId"] for each in await ada.read_messages(session)]
        assert words == ["a", "b", "c", "d", "e"]


@pytest.mark.req("relay.messages.local_id")
async def test_a_local_id_belongs_to_its_session(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        one, two = await ada.create_session("one"), await ada.create_session("two")
        assert (
            list_seqs(await ada.send_messages(one, "a"))
            == list_seqs(await ada.send_messages(two, "a"))
            == [1]
        )


@pytest.mark.req("relay.messages.pages")
async def test_pages_go_forward_and_backward_and_meet_everything_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        for start in range(0, 250, 50):
            await ada.send_messages(session, *(f"m{n}" for n in range(start, start + 50)))
        path = f"/v3/sessions/{session}/messages"
        page = (await ada.get(path)).ok
        assert (list_seqs(page["messages"]), page["hasMore"]) == (list(range(1, 101)), True)
        page = (await ada.get(path, after_seq=200)).ok
        assert (list_seqs(page["messages"]), page["hasMore"]) == (list(range(201, 251)), False)
        back: list[int] = []
        before = 2**31 - 1
        while True:
            page = (await ada.get(path, before_seq=before, limit=60)).ok
            back += list_seqs(page["messages"])
            if not page["hasMore"]:
                break
            before = back[-1]
        assert back == list(range(250, 0, -1))
        newest = (await ada.get(f"/v1/sessions/{session}/messages")).ok["messages"]
        assert list_seqs(newest) == list(range(250, 100, -1))


@pytest.mark.req("relay.messages.limits")
async def test_message_limits_have_clear_errors(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        path = f"/v3/sessions/{session}/messages"
        for query in (
            {"after_seq": 1, "before_seq": 2},
            {"after_seq": -1},
            {"before_seq": 0},
            {"limit": 0},
            {"limit": 501},
            {"limit": "many"},
        ):
            refused = await ada.get(path, **query)
            assert (refused.status, refused.body["statusCode"]) == (400, 400)
            assert refused.body["message"].startswith("querystring")
        many = [ada.build_message("x", str(n)) for n in range(101)]
        refused = await ada.post(path, messages=many)
        assert refused.body == {
            "error": "Error",
            "message": "body/messages must have at most 100 messages",
            "statusCode": 400,
        }
        for bad in ([], [{"content": "AAAA"}], [{"content": "AAAA", "localId": ""}], None):
            assert (await ada.post(path, messages=bad)).status == 400
        assert (await ada.request("POST", path, data=b"{")).body["message"] == "body is not JSON"
        assert await ada.read_messages(session) == []
        large = {"content": "A" * 4 * 1024 * 1024, "localId": "large"}
        assert list_seqs((await ada.post(path, messages=[large])).ok["messages"]) == [1]
        missing = await ada.get("/v3/sessions/none/messages")
        assert (missing.status, missing.body) == (404, {"error": "Session not found"})


@pytest.mark.req("relay.limits.body")
async def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(body=1000)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        message = {"content": "A" * 2000, "localId": "a"}
        refused = await ada.post(f"/v3/sessions/{session}/messages", messages=[message])
        assert refused.status == 413
        assert "send less at once" in refused.body["error"]


@pytest.mark.req("relay.limits.inbound")
async def test_all_bodies_together_are_bounded(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(inbound=1000)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        message = {"content": "A" * 2000, "localId": "a"}
        refused = await ada.post(f"/v3/sessions/{session}/messages", messages=[message])
        assert refused.status == 503
        assert list_seqs(await ada.send_messages(session, "small")) == [1]


@pytest.mark.req("relay.limits.inbound")
async def test_an_incomplete_request_times_out(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(body_timeout=0.05)) as world:
        stranger = await world.open_client()
        reader, writer = await asyncio.open_connection("127.0.0.1", stranger.port)
        writer.write(b"POST /v1/auth HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.req("relay.messages.told")
async def test_all_sockets_of_a_session_get_a_message_except_its_sender(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        session, other = await ada.create_session("one"), await ada.create_session("two")
        phone = await ada.connect()
        gateway = await ada.connect(clientType="session-scoped", sessionId=session)
        elsewhere = await ada.connect(clientType="session-scoped", sessionId=other)
        # Rooms belong to accounts: naming another account's session opens nothing.
        spy = await eve.connect(clientType="session-scoped", sessionId=session)
        await ada.send_messages(session, "by http")
        message = {"sid": session, "message": "AAAA", "localId": "by socket"}
        await gateway.emit("message", message)
        await phone.wait_for(lambda _, it: it["body"]["message"]["localId"] == "by socket")
        await ada.send_messages(session, "last")
        for each in (phone, gateway):
            await each.wait_for(lambda _, it: it["body"]["message"]["localId"] == "last")
        assert [each["localId"] for each in phone.messages(session)] == [
            "by http",
            "by socket",
            "last",
        ]
        assert [each["localId"] for each in gateway.messages(session)] == ["by http", "last"]
        assert phone.messages(session) == await ada.read_messages(session)
        assert elsewhere.events == spy.events == []


@pytest.mark.req("relay.messages.order")
async def test_concurrent_messages_reach_all_in_one_order(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        listeners = [await ada.connect() for _ in range(3)]
        speakers = [await world.create_user(ada.secret) for _ in range(6)]

        async def speak(who: RelayUser, name: int) -> None:
            for n in range(10):
                await who.send_messages(session, *(f"{name}-{n}-{m}" for m in range(3)))

        await asyncio.gather(*(speak(who, name) for name, who in enumerate(speakers)))
        read = await ada.read_messages(session)
        assert list_seqs(read) == list(range(1, 181))
        for listener in listeners:
            await listener.wait_for(lambda _, it: it["body"]["message"]["seq"] == 180)
            assert listener.messages(session) == read
        for name in range(6):  # and each writer's messages stay in order
            own = [each["localId"] for each in read if each["localId"].startswith(f"{name}-")]
            assert own == [f"{name}-{n}-{m}" for n in range(10) for m in range(3)]


@pytest.mark.req("relay.updates.numbers")
async def test_updates_are_numbered_by_account_and_continue_after_a_restart(
    tmp_path: Path,
) -> None:
    last, secret = 0, MasterSecret(new_key())
    for tag in ("one", "two"):
        async with open_relay_world(tmp_path) as world:
            ada = await world.create_user(secret)
            socket = await ada.connect()
            session = await ada.create_session(tag)
            await ada.send_messages(session, "a", "b", "c")
            await socket.wait_for(lambda _, it: it["body"].get("message", {}).get("seq") == 3)
            numbers = [it["seq"] for _, it in socket.events]
            assert numbers == sorted(set(numbers))
            assert numbers[0] > last
            last = numbers[-1]
            assert all(len(it["id"]) == 12 and it["id"].isalnum() for _, it in socket.events)


@pytest.mark.req("relay.sessions.delete")
async def test_a_deleted_session_takes_its_messages_with_it(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        await ada.send_messages(session, "a")
        assert (await ada.delete(f"/v1/sessions/{session}")).ok["success"]
        assert (await ada.get(f"/v3/sessions/{session}/messages")).status == 404
        assert (await ada.delete(f"/v1/sessions/{session}")).status == 404
        repeated = await ada.create_session()
        assert repeated != session
        assert await ada.read_messages(repeated) == []
