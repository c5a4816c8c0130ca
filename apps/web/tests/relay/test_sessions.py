"""Sessions and machines: records with sealed insides, found again by those who own them."""

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
async def test_a_tag_names_one_session_and_the_first_word_stays(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        key = to_base64(wrap_key(ada.secret.content_keys.public, new_key()))
        first = ada.sealer.seal({"path": "/one"})
        body = {"tag": "t", "metadata": first, "agentState": first, "dataEncryptionKey": key}
        made = (await ada.post("/v1/sessions", **body)).ok["session"]
        assert made.keys() == {*SESSION, "lastMessage"}
        assert (made["metadata"], made["dataEncryptionKey"]) == (first, key)
        # What an agent's state is, is said by its gateway, with a version.
        assert (made["agentState"], made["agentStateVersion"], made["metadataVersion"]) == (
            None,
            0,
            0,
        )
        again = await ada.post("/v1/sessions", tag="t", metadata=ada.sealer.seal({"path": "/two"}))
        assert again.ok["session"] == made
        other = await (await there.create_user()).post("/v1/sessions", **body)
        assert other.ok["session"]["id"] != made["id"]


@pytest.mark.req("relay.sessions.told")
async def test_devices_are_told_of_a_new_session_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        socket = await ada.connect()
        session = await ada.create_session("one")
        await ada.create_session("one")
        assert (await socket.wait_for_update("new-session")).keys() == {"t", *SESSION}
        await ada.delete(f"/v1/sessions/{session}")
        assert (await socket.wait_for_update("delete-session"))["sid"] == session
        kinds = [it["body"]["t"] for _, it in socket.events]
        assert kinds == ["new-session", "delete-session"]


@pytest.mark.req("relay.sessions.lists")
async def test_the_lists_of_sessions(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        ids = [await ada.create_session(f"t{n}") for n in range(7)]
        made = (await ada.get("/v1/sessions")).ok["sessions"]
        while time.time_ns() // 1_000_000 <= made[0]["updatedAt"]:  # times are in milliseconds
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
async def test_what_is_somebody_elses_is_not_there(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada, eve = await there.create_user(), await there.create_user()
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
        said = await socket.call("message", {"sid": session, "message": "AAAA"})
        assert said["result"] == "error"
        assert len(await ada.read_messages(session)) == 1


@pytest.mark.req("relay.machines")
async def test_a_machine_is_registered_once_and_told_of(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada, eve = await there.create_user(), await there.create_user()
        socket = await ada.connect()
        own = await ada.connect(clientType="machine-scoped", machineId="m1")
        body = {"id": "m1", "metadata": "AAAA", "daemonState": "BBBB"}
        made = (await ada.post("/v1/machines", **body)).ok["machine"]
        versions = (made["metadataVersion"], made["daemonStateVersion"], made["active"])
        assert versions == (1, 1, False)
        again = await ada.post("/v1/machines", id="m1", metadata="CCCC")
        assert again.ok["machine"] == made
        assert (await ada.get("/v1/machines")).ok == [made]
        assert (await ada.get("/v1/machines/m1")).ok["machine"] == made
        told = await socket.wait_for_update("new-machine")
        assert {**told, "id": "m1"}.items() >= made.items()
        assert (await own.wait_for_update("update-machine"))["metadata"] == {
            "value": "AAAA",
            "version": 1,
        }

        taken = await eve.post("/v1/machines", **body)
        assert taken.status == 409
        assert "new id" in taken.body["error"]

        assert (await ada.delete("/v1/machines/m1")).ok["success"]
        assert (await socket.wait_for_update("delete-machine"))["machineId"] == "m1"
        assert (await ada.get("/v1/machines")).ok == []


@pytest.mark.req("relay.access_keys")
async def test_access_keys_change_only_for_those_who_saw_them(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
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
        asked = {"sessionId": session, "machineId": machine}
        found = await socket.call("access-key-get", asked)
        assert (found["ok"], found["accessKey"]["data"]) == (True, "BBBB")
        missing = await socket.call("access-key-get", {**asked, "machineId": "none"})
        assert missing["ok"] is False


@pytest.mark.req("relay.push")
async def test_an_announcement_reaches_devices_that_are_there_and_no_push_service(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        event = {"kind": "done", "title": "Finished", "body": "It is done"}
        path = f"/v1/sessions/{session}/push-event"
        assert (await ada.post(path, **event)).ok == {"success": True, "result": "no_tokens"}
        socket = await ada.connect(appState="active")
        assert (await ada.post(path, **event)).ok["result"] == "suppressed"
        told = await socket.wait_for_ephemeral("session-event")
        assert (told["sessionId"], told["title"]) == (session, "Finished")
        await socket.call("app-state", {"state": "background"})
        assert (await ada.post(path, **event)).ok["result"] == "no_tokens"
        for bad in ({"kind": "other"}, {"title": ""}, {"title": "x" * 201}, {"body": "x" * 501}):
            assert (await ada.post(path, **{**event, **bad})).status == 400


@pytest.mark.req("relay.sealed_only")
@pytest.mark.parametrize("words", ['{"path": "/home"}', "plain words", ""])
async def test_what_was_not_sealed_is_not_kept(tmp_path: Path, words: str) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        session = await ada.create_session()
        refused = await ada.post("/v1/sessions", tag="x", metadata=words)
        assert refused.status == 400
        assert refused.body["error"] == "Error"
        assert refused.body["message"].startswith("body/metadata ")
        message = {"content": words, "localId": "a"}
        path = f"/v3/sessions/{session}/messages"
        assert (await ada.post(path, messages=[message])).status == 400
        assert await ada.read_messages(session) == []
