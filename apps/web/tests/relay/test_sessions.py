"""Sessions and machines: records with sealed values, found again by their owners."""

import asyncio
import time
from pathlib import Path

import pytest

from apps.web.tests.relay.relay_world import open_relay_world
from crabtalk_web.sealing import new_key, to_base64, wrap_key

SESSION = {
    *("id", "seq", "metadata", "metadataVersion", "agentState", "agentStateVersion"),
    *("dataEncryptionKey", "active", "activeAt", "createdAt", "updatedAt"),
}


@pytest.mark.req("relay.sessions.tag")
async def test_a_tag_identifies_one_session_and_its_first_metadata_stays(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        key = to_base64(wrap_key(ada.secret.content_keys.public, new_key()))
        first = ada.sealer.seal({"path": "/one"})
        body = {"tag": "t", "metadata": first, "agentState": first, "dataEncryptionKey": key}
        created = (await ada.post("/v1/sessions", **body)).ok["session"]
        assert created.keys() == {*SESSION, "lastMessage"}
        assert (created["metadata"], created["dataEncryptionKey"]) == (first, key)
        # The agent state is set by the session's gateway, with a version.
        assert (
            created["agentState"],
            created["agentStateVersion"],
            created["metadataVersion"],
        ) == (
            None,
            0,
            0,
        )
        repeated = await ada.post(
            "/v1/sessions", tag="t", metadata=ada.sealer.seal({"path": "/two"})
        )
        assert repeated.ok["session"] == created
        other = await (await world.create_user()).post("/v1/sessions", **body)
        assert other.ok["session"]["id"] != created["id"]


@pytest.mark.req("relay.sessions.told")
async def test_devices_are_told_of_a_new_session_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        socket = await ada.connect()
        session = await ada.create_session("one")
        await ada.create_session("one")
        assert (await socket.wait_for_update("new-session")).keys() == {"t", *SESSION}
        await ada.delete(f"/v1/sessions/{session}")
        assert (await socket.wait_for_update("delete-session"))["sid"] == session
        kinds = [it["body"]["t"] for _, it in socket.events]
        assert kinds == ["new-session", "delete-session"]


@pytest.mark.req("relay.sessions.lists")
async def test_sessions_are_listed_by_page_and_by_activity(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        ids = [await ada.create_session(f"t{n}") for n in range(7)]
        created = (await ada.get("/v1/sessions")).ok["sessions"]
        while time.time_ns() // 1_000_000 <= created[0]["updatedAt"]:  # times are in milliseconds
            await asyncio.sleep(0)
        await ada.send_messages(ids[2], "x")
        newest = (await ada.get("/v1/sessions")).ok["sessions"]
        assert newest[0]["id"] == ids[2]
        assert {each["id"] for each in newest} == set(ids)

        found: list[str] = []
        query: dict[str, str] = {}
        while True:
            page = (await ada.get("/v2/sessions", limit=3, **query)).ok
            found += [each["id"] for each in page["sessions"]]
            if not page["hasNext"]:
                assert page["nextCursor"] is None
                break
            query = {"cursor": page["nextCursor"]}
        assert found == sorted(ids, reverse=True)
        changed_at = newest[0]["updatedAt"]
        later = (await ada.get("/v2/sessions", changedSince=changed_at)).ok["sessions"]
        assert later == []
        assert (await ada.get("/v2/sessions", cursor="x")).status == 400
        assert (await ada.get("/v2/sessions", limit=201)).status == 400

        assert len((await ada.get("/v2/sessions/active")).ok["sessions"]) == 7
        assert (await ada.post(f"/v1/sessions/{ids[0]}/archive")).ok["success"]
        active = (await ada.get("/v2/sessions/active")).ok["sessions"]
        assert {each["id"] for each in active} == set(ids[1:])


@pytest.mark.req("relay.owner")
async def test_records_of_other_accounts_are_not_found(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        session, machine = await ada.create_session(), await ada.create_machine()
        await ada.send_messages(session, "a")
        assert (await eve.get("/v1/sessions")).ok["sessions"] == []
        assert (await eve.get("/v1/machines")).ok == []
        for method, path, body in (
            ("GET", f"/v3/sessions/{session}/messages", None),
            (
                "POST",
                f"/v3/sessions/{session}/messages",
                {"messages": [eve.build_message("x", "x")]},
            ),
            ("GET", f"/v1/sessions/{session}/messages", None),
            ("POST", f"/v1/sessions/{session}/archive", None),
            ("DELETE", f"/v1/sessions/{session}", None),
            ("POST", f"/v1/sessions/{session}/attachments/request-upload", {"size": 9}),
            ("GET", f"/v1/machines/{machine}", None),
            ("DELETE", f"/v1/machines/{machine}", None),
            ("GET", f"/v1/access-keys/{session}/{machine}", None),
            (
                "POST",
                f"/v1/sessions/{session}/push-event",
                {"kind": "done", "title": "t", "body": "b"},
            ),
        ):
            assert (await eve.request(method, path, body)).status == 404, path
        socket = await eve.connect()
        change = {"sid": session, "metadata": "AAAA", "expectedVersion": 0}
        assert (await socket.call("update-metadata", change))["result"] == "error"
        reply = await socket.call("message", {"sid": session, "message": "AAAA"})
        assert reply["result"] == "error"
        assert len(await ada.read_messages(session)) == 1


@pytest.mark.req("relay.machines")
async def test_a_machine_is_registered_and_announced_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        socket = await ada.connect()
        own = await ada.connect(clientType="machine-scoped", machineId="m1")
        body = {"id": "m1", "metadata": "AAAA", "daemonState": "BBBB"}
        created = (await ada.post("/v1/machines", **body)).ok["machine"]
        versions = (created["metadataVersion"], created["daemonStateVersion"], created["active"])
        assert versions == (1, 1, False)
        repeated = await ada.post("/v1/machines", id="m1", metadata="CCCC")
        assert repeated.ok["machine"] == created
        assert (await ada.get("/v1/machines")).ok == [created]
        assert (await ada.get("/v1/machines/m1")).ok["machine"] == created
        event = await socket.wait_for_update("new-machine")
        assert {**event, "id": "m1"}.items() >= created.items()
        assert (await own.wait_for_update("update-machine"))["metadata"] == {
            "value": "AAAA",
            "version": 1,
        }

        refused = await eve.post("/v1/machines", **body)
        assert refused.status == 409
        assert "new id" in refused.body["error"]

        assert (await ada.delete("/v1/machines/m1")).ok["success"]
        assert (await socket.wait_for_update("delete-machine"))["machineId"] == "m1"
        assert (await ada.get("/v1/machines")).ok == []


@pytest.mark.req("relay.access_keys")
async def test_access_keys_change_only_with_the_current_version(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session, machine = await ada.create_session(), await ada.create_machine()
        path = f"/v1/access-keys/{session}/{machine}"
        assert (await ada.get(path)).ok == {"accessKey": None}
        assert (
            await ada.request("PUT", path, {"data": "AAAA", "expectedVersion": 1})
        ).status == 404
        assert (await ada.post(path, data="AAAA")).ok["accessKey"]["dataVersion"] == 1
        assert (await ada.post(path, data="AAAA")).status == 409
        put = await ada.request("PUT", path, {"data": "BBBB", "expectedVersion": 1})
        assert put.ok == {"success": True, "version": 2}
        late = await ada.request("PUT", path, {"data": "CCCC", "expectedVersion": 1})
        assert late.ok == {
            "success": False,
            "error": "version-mismatch",
            "currentVersion": 2,
            "currentData": "BBBB",
        }
        socket = await ada.connect()
        query = {"sessionId": session, "machineId": machine}
        found = await socket.call("access-key-get", query)
        assert (found["ok"], found["accessKey"]["data"]) == (True, "BBBB")
        missing = await socket.call("access-key-get", {**query, "machineId": "none"})
        assert missing["ok"] is False


@pytest.mark.req("relay.push")
async def test_a_push_event_reaches_connected_devices_and_no_push_service(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        event = {"kind": "done", "title": "Finished", "body": "It is done"}
        path = f"/v1/sessions/{session}/push-event"
        assert (await ada.post(path, **event)).ok == {"success": True, "result": "no_tokens"}
        socket = await ada.connect(appState="active")
        assert (await ada.post(path, **event)).ok["result"] == "suppressed"
        received = await socket.wait_for_ephemeral("session-event")
        assert (received["sessionId"], received["title"]) == (session, "Finished")
        await socket.call("app-state", {"state": "background"})
        assert (await ada.post(path, **event)).ok["result"] == "no_tokens"
        for bad in ({"kind": "other"}, {"title": ""}, {"title": "x" * 201}, {"body": "x" * 501}):
            assert (await ada.post(path, **{**event, **bad})).status == 400


@pytest.mark.req("relay.sealed_only")
@pytest.mark.parametrize("words", ['{"path": "/home"}', "plain words", ""])
async def test_unsealed_values_are_not_stored(tmp_path: Path, words: str) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        refused = await ada.post("/v1/sessions", tag="x", metadata=words)
        assert refused.status == 400
        assert refused.body["error"] == "Error"
        assert refused.body["message"].startswith("body/metadata ")
        message = {"content": words, "localId": "a"}
        path = f"/v3/sessions/{session}/messages"
        assert (await ada.post(path, messages=[message])).status == 400
        assert await ada.read_messages(session) == []
