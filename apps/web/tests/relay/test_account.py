"""Account data besides conversations: settings, key-value pairs, artifacts, push tokens; and what
the relay does not support."""

from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import open_relay_world


@pytest.mark.req("relay.settings")
async def test_settings_change_only_with_the_current_version(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        socket = await ada.connect()
        path = "/v1/account/settings"
        assert (await ada.get(path)).ok == {"settings": None, "settingsVersion": 0}
        set_ = await ada.post(path, settings="AAAA", expectedVersion=0)
        assert set_.ok == {"success": True, "version": 1}
        late = await ada.post(path, settings="BBBB", expectedVersion=0)
        assert late.ok == {
            "success": False,
            "error": "version-mismatch",
            "currentVersion": 1,
            "currentSettings": "AAAA",
        }
        update = await socket.wait_for_update("update-account")
        assert update["settings"] == {"value": "AAAA", "version": 1}


@pytest.mark.req("relay.kv")
async def test_key_value_pairs_change_together_or_not_at_all(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        socket = await ada.connect()

        async def change(*mutations: tuple[str, str | None, int]) -> Any:
            changes = [{"key": k, "value": v, "version": n} for k, v, n in mutations]
            return await ada.post("/v1/kv", mutations=changes)

        created = (await change(("a.1", "AAAA", -1), ("a.2", "BBBB", -1), ("b", "CCCC", -1))).ok
        assert created["results"][0] == {"key": "a.1", "version": 0}
        update = await socket.wait_for_update("kv-batch-update")
        assert [each["key"] for each in update["changes"]] == ["a.1", "a.2", "b"]
        clash = await change(("b", "DDDD", 0), ("a.1", "EEEE", 7))
        assert clash.status == 409
        mismatch = {"key": "a.1", "error": "version-mismatch", "version": 0, "value": "AAAA"}
        assert clash.body == {"success": False, "errors": [mismatch]}
        assert (await ada.get("/v1/kv/b")).ok == {"key": "b", "value": "CCCC", "version": 0}

        assert (await change(("b", None, 0))).ok["success"]
        assert (await ada.get("/v1/kv/b")).status == 404
        # Creating the key again requires having seen the deletion.
        assert (await change(("b", "FFFF", -1))).status == 409
        assert (await change(("b", "FFFF", 1))).ok["results"] == [{"key": "b", "version": 2}]

        listed = (await ada.get("/v1/kv", prefix="a.")).ok["items"]
        assert [each["key"] for each in listed] == ["a.1", "a.2"]
        bulk = (await ada.post("/v1/kv/bulk", keys=["a.2", "b", "none"])).ok["values"]
        assert {each["key"] for each in bulk} == {"a.2", "b"}
        assert (await change(("x", "AAAA", -1), ("x", "BBBB", -1))).status == 400
        assert (await ada.post("/v1/kv/bulk", keys=["k"] * 101)).status == 400
        assert (await change(*((f"k{n}", "AAAA", -1) for n in range(101)))).status == 400


@pytest.mark.req("relay.artifacts")
async def test_artifacts_work_over_http_and_over_the_socket(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        socket = await ada.connect()
        new = {"id": "doc", "header": "AAAA", "body": "BBBB", "dataEncryptionKey": "CCCC"}
        created = (await ada.post("/v1/artifacts", **new)).ok
        assert (created["headerVersion"], created["bodyVersion"], created["seq"]) == (1, 1, 0)
        assert (await ada.post("/v1/artifacts", **new)).ok == created
        assert (await eve.post("/v1/artifacts", **new)).status == 409
        assert (await eve.get("/v1/artifacts/doc")).status == 404
        (listed,) = (await ada.get("/v1/artifacts")).ok
        assert "body" not in listed
        changed = await ada.post("/v1/artifacts/doc", body="DDDD", expectedBodyVersion=1)
        assert changed.ok == {"success": True, "bodyVersion": 2}
        late = (await ada.post("/v1/artifacts/doc", body="EEEE", expectedBodyVersion=1)).ok
        assert (late["success"], late["currentBodyVersion"], late["currentBody"]) == (
            False,
            2,
            "DDDD",
        )
        assert (await ada.post("/v1/artifacts/doc", body="EEEE")).status == 400

        header = {"data": "FFFF", "expectedVersion": 1}
        request = {"artifactId": "doc", "header": header}
        done = await socket.call("artifact-update", request)
        assert done == {"result": "success", "header": {"version": 2, "data": "FFFF"}}
        late = await socket.call("artifact-update", request)
        assert late["header"] == {"currentVersion": 2, "currentData": "FFFF"}
        read = await socket.call("artifact-read", {"artifactId": "doc"})
        assert (read["artifact"]["header"], read["artifact"]["body"]) == ("FFFF", "DDDD")
        assert (await socket.call("artifact-update", {"artifactId": "doc"}))["result"] == "error"
        assert (await socket.call("artifact-delete", {"artifactId": "doc"}))["result"] == "success"
        reply = await socket.call("artifact-read", {"artifactId": "doc"})
        assert (reply["result"], reply["message"]) == ("error", "Artifact not found")
        made_again = await socket.call("artifact-create", new)
        assert made_again["result"] == "success"
        assert (await ada.delete("/v1/artifacts/doc")).ok["success"]
        await socket.wait_for_update("new-artifact")
        await socket.wait_for_update("update-artifact")
        await socket.wait_for_update("delete-artifact")


@pytest.mark.req("relay.push")
async def test_push_tokens_are_kept_and_listed_for_their_owner(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        for _ in range(2):
            assert (await ada.post("/v1/push-tokens", token="t1")).ok["success"]
        (token,) = (await ada.get("/v1/push-tokens")).ok["tokens"]
        assert token.keys() == {"id", "token", "createdAt", "updatedAt"}
        assert (await eve.delete("/v1/push-tokens/t1")).ok["success"]
        assert len((await ada.get("/v1/push-tokens")).ok["tokens"]) == 1
        assert (await ada.delete("/v1/push-tokens/t1")).ok["success"]
        assert (await ada.get("/v1/push-tokens")).ok == {"tokens": []}


@pytest.mark.req("relay.quiet")
async def test_unsupported_features_are_answered_with_empty_results(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        assert (await ada.post("/v1/version", platform="ios")).ok["updateUrl"] is None
        assert (await ada.get("/v1/feed")).ok == {"items": [], "hasMore": False}
        assert (await ada.get("/v1/friends")).ok == {"friends": []}
        assert (await ada.post("/v1/usage/query")).ok["usage"] == []
        assert (await ada.get("/v1/account/profile")).ok["github"] is None
        assert (await ada.get("/v1/nothing/of/this/kind")).status == 404
        assert (await ada.request("PUT", "/v1/sessions")).status == 405
        assert (await (await world.open_client()).get("/health")).ok == {"status": "ok"}
