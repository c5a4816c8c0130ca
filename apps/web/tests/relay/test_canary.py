"""Texts and the names of agents and files appear nowhere in what the relay stores."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from apps.web.tests.relay.relay_process import run_relay_process
from apps.web.tests.relay.relay_world import RelayUser
from crabtalk_web.relay.ids import now_ms
from crabtalk_web.sealing import (
    DataSealer,
    MasterSecret,
    derive_blob_key,
    new_key,
    seal_blob,
    to_base64,
    wrap_key,
)

CANARIES = {
    name: f"canary-{name}-{os.urandom(8).hex()}"
    for name in ("agent", "title", "text", "file", "blob", "state", "call", "host", "push", "usage")
}


async def use_everything(ada: RelayUser, data_key: bytes) -> None:
    """Use every way in which text can reach a relay."""
    sealer = ada.sealer = DataSealer(data_key)
    wrapped = to_base64(wrap_key(ada.secret.content_keys.public, data_key))
    metadata = sealer.seal({"name": CANARIES["agent"], "summary": {"text": CANARIES["title"]}})
    body = {"tag": "hmac", "metadata": metadata, "dataEncryptionKey": wrapped}
    session = (await ada.post("/v1/sessions", **body)).ok["session"]["id"]
    host = sealer.seal({"host": CANARIES["host"]})
    await ada.post("/v1/machines", id="m", metadata=host, daemonState=host)
    messages = [{"content": sealer.seal({"text": CANARIES["text"]}), "localId": "a"}]
    assert (await ada.post(f"/v3/sessions/{session}/messages", messages=messages)).ok
    phone, gateway = await ada.connect(), await ada.connect()
    await gateway.call("message", {"sid": session, "message": sealer.seal(CANARIES["text"])})
    state = sealer.seal({"requests": CANARIES["state"]})
    change = {"sid": session, "agentState": state, "expectedVersion": 0}
    assert (await gateway.call("update-state", change))["result"] == "success"
    await gateway.call("session-alive", {"sid": session, "time": now_ms()})

    gateway.io.on("rpc-request", lambda request: request["params"])
    await gateway.emit("rpc-register", {"method": f"{session}:abort"})
    await gateway.wait_for(lambda name, _: name == "rpc-registered")
    call = {"method": f"{session}:abort", "params": sealer.seal(CANARIES["call"])}
    assert (await phone.call("rpc-call", call))["ok"]

    blob = seal_blob(derive_blob_key(data_key), CANARIES["blob"].encode())
    base = f"/v1/sessions/{session}/attachments"
    offer = {"filename": CANARIES["file"], "size": len(blob)}
    offered = (await ada.post(f"{base}/request-upload", **offer)).ok
    assert (await ada.request("PUT", offered["uploadUrl"], data=blob)).ok
    push = {"kind": "done", "title": CANARIES["push"], "body": CANARIES["push"]}
    assert (await ada.post(f"/v1/sessions/{session}/push-event", **push)).ok
    usage = {"key": CANARIES["usage"], "tokens": {"total": 1}, "cost": {"total": 1}}
    assert (await gateway.call("usage-report", {**usage, "sessionId": session}))["success"]
    # Also invalid requests: plain text where sealed bytes belong.
    for bad in (
        {"tag": "x", "metadata": CANARIES["title"]},
        {"tag": "x", "metadata": {"text": CANARIES["text"]}},
    ):
        assert (await ada.post("/v1/sessions", **bad)).status == 400
    bad_state = {**change, "agentState": CANARIES["state"]}
    assert (await gateway.call("update-state", bad_state))["result"] == "error"
    await gateway.call(CANARIES["call"], CANARIES["call"])
    assert (await ada.get(f"/v3/sessions/{CANARIES['text']}/messages")).status == 404
    for line in (
        f"GET {CANARIES['text']}\r\n\r\n",
        f"POST / HTTP/1.1\r\n{CANARIES['text']}\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", ada.port)
        writer.write(line.encode())
        assert b" 400 " in await reader.readline()
        writer.close()


@pytest.mark.one_loop
@pytest.mark.req("relay.blind")
async def test_no_content_is_readable_in_database_blobs_or_log(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    async with run_relay_process(data, log=log) as relay, AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(relay.url))
        ada = RelayUser(http, MasterSecret(new_key()))
        await stack.enter_async_context(ada.stack)
        data_key = new_key()
        await use_everything(await ada.log_in(), data_key)
        # As it is on disk while running, including SQLite's WAL.
        await relay.kill()
    contents = {path: path.read_bytes() for path in (*data.rglob("*"), log) if path.is_file()}
    assert {path.suffix for path in contents} >= {".db", ".db-wal", ".enc"}
    secrets = {
        **{name: word.encode() for name, word in CANARIES.items()},
        "token": ada.token.encode(),
        "data key": data_key,
        "master secret": ada.secret.secret,
    }
    found = [
        (name, path.name)
        for path, content in contents.items()
        for name, secret in secrets.items()
        for form in (secret, to_base64(secret).encode(), secret.hex().encode())
        if form in content
    ]
    assert found == []
    # The search works: a search that never finds anything proves nothing.
    assert any(b"hmac" in content for content in contents.values())
