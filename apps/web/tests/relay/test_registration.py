"""Who may create an account at a relay, and what an account or an address may use."""

import asyncio
import json
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apps.web.tests.gateway.web_command import run_web_command, start_web_command
from apps.web.tests.relay.relay_process import run_relay_process
from apps.web.tests.relay.relay_world import (
    RefusedConnection,
    RelayClient,
    RelayUser,
    RelayWorld,
    open_relay_world,
)
from crabtalk_web.relay import (
    RelayConfig,
    RelayConfigError,
    RelayLimits,
    RelayServer,
    administration,
    registration,
)
from crabtalk_web.relay.addresses import TrustedProxies
from crabtalk_web.relay.administration import compute_invite_expiry
from crabtalk_web.relay.limits import read_limits
from crabtalk_web.relay.schema import MIGRATIONS, migrate_database
from crabtalk_web.sealing import MasterSecret, new_key, to_base64

HOUR = 3600.0


def build_login(secret: MasterSecret, **more: Any) -> dict[str, Any]:
    challenge = os.urandom(32)
    return {
        "publicKey": to_base64(secret.account_key),
        "challenge": to_base64(challenge),
        "signature": to_base64(secret.sign(challenge)),
        **more,
    }


async def register_account(
    client: RelayClient, secret: MasterSecret | None = None, **more: Any
) -> Any:
    return await client.post("/v1/auth", **build_login(secret or MasterSecret(new_key()), **more))


async def register_from_address(client: RelayClient, address: str) -> int:
    """Register through a proxy that reports this address."""
    body = build_login(MasterSecret(new_key()))
    reply = await client.request("POST", "/v1/auth", body, headers={"X-Forwarded-For": address})
    return reply.status


# ── Registration ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("relay.registration.default")
def test_a_public_relay_requires_invites_by_default(tmp_path: Path) -> None:
    tls: dict[str, Any] = {
        "tls_certificate": tmp_path,
        "tls_key": tmp_path,
        "host_name": "relay.example",
    }
    local = RelayConfig(tmp_path)
    assert (local.registration_mode, local.notices()) == ("open", [])
    # A configured proxy makes the relay public, even if it listens only on this machine.
    assert RelayConfig(tmp_path, trusted_proxies=("127.0.0.1",)).registration_mode == "invite"
    assert RelayConfig(tmp_path, public_url="http://localhost:8000").registration_mode == "open"
    for public in (
        RelayConfig(tmp_path, host="0.0.0.0", **tls),
        RelayConfig(tmp_path, public_url="https://relay.example"),
    ):
        assert public.registration_mode == "invite"
        assert "crabtalk-web relay invites create" in public.notices()[0]
    opened = RelayConfig(tmp_path, host="0.0.0.0", registration="open", **tls)
    assert opened.registration_mode == "open"
    assert "Anybody who reaches it" in opened.notices()[0]
    with pytest.raises(RelayConfigError, match=r'"open", "invite" or "closed", not \'shut\''):
        RelayConfig(tmp_path, registration="shut")  # type: ignore[arg-type]


@pytest.mark.req("relay.registration.closed")
async def test_a_closed_relay_refuses_new_accounts_but_not_its_own(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
    async with open_relay_world(tmp_path, registration="closed") as world:
        stranger = await world.open_client()
        refused = await register_account(stranger)
        assert refused.status == 403
        assert refused.body["code"] == "registration-closed"
        assert "ask its operator" in refused.body["error"]
        assert (await register_account(stranger, ada.secret)).status == 200


@pytest.mark.req("relay.registration.invite")
async def test_an_invite_has_limited_uses_and_time(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, registration="invite") as world:
        stranger = await world.open_client()
        refused = await register_account(stranger)
        assert (refused.status, refused.body["code"]) == (403, "invite-needed")
        code = await world.relay.create_invite(2, HOUR)
        ada = MasterSecret(new_key())
        assert (await register_account(stranger, ada, invite=f" {code.lower()} ")).status == 200
        # An existing account needs no invite, and uses none up.
        assert (await register_account(stranger, ada, invite=code)).status == 200
        assert (await register_account(stranger, ada)).status == 200
        assert (await register_account(stranger, invite=code)).status == 200
        again = await register_account(stranger, invite=code)
        assert (again.status, again.body["code"]) == (403, "invite-needed")
        assert "used up" in again.body["error"]
        late = await world.relay.context.database.write(
            registration.create_invite, 1, compute_invite_expiry(-1)
        )
        assert (await register_account(stranger, invite=late)).status == 403
        assert (await register_account(stranger, invite="x" * 1000)).status == 400


@pytest.mark.req("relay.registration.invite")
async def test_an_invite_used_twice_at_once_gives_one_account(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, registration="invite") as world:
        stranger = await world.open_client()
        code = await world.relay.create_invite(1, HOUR)
        replies = await asyncio.gather(*(register_account(stranger, invite=code) for _ in range(8)))
        assert sorted(reply.status for reply in replies) == [200] + 7 * [403]


@pytest.mark.req("relay.registration.commands")
async def test_invites_are_created_listed_and_revoked_while_a_relay_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = ("relay", "--home", home, "--port", "0", "--registration", "invite")
    async with start_web_command(tmp_path / "log", *words) as relay:
        url = (await relay.wait_for_line("http://.*"))[0]
        await relay.wait_for_line("New accounts need an invite")
        invite_data = json.loads(
            (
                await run_web_command(
                    "relay", "invites", "create", "--uses", "2", "--home", home, "--json"
                )
            ).output
        )
        async with open_relay_client(url) as stranger:
            assert (await register_account(stranger)).status == 403
            assert (await register_account(stranger, invite=invite_data["invite"])).status == 200
            listed = json.loads(
                (await run_web_command("relay", "--home", home, "invites", "list", "--json")).output
            )
            (item,) = listed["invites"]
            assert (item["usesLeft"], item["used"]) == (1, 1)
            assert invite_data["invite"] not in json.dumps(listed)
            assert (
                await run_web_command("relay", "invites", "revoke", item["id"], "--home", home)
            ).output
            assert (await register_account(stranger, invite=invite_data["invite"])).status == 403
        result = await run_web_command("relay", "invites", "revoke", item["id"], "--home", home)
        assert result.code == 1
        assert "relay invites list" in result.err
        odd = await run_web_command(
            "relay", "invites", "create", "--expires", "soon", "--home", home
        )
        assert odd.code == 2


@asynccontextmanager
async def open_relay_client(url: str) -> AsyncIterator[RelayClient]:
    async with aiohttp.ClientSession(url) as http:
        yield RelayClient(http)


# ── Accounts ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("relay.accounts.commands")
async def test_an_account_is_listed_and_removed_while_the_relay_runs(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    async with open_relay_world(data) as world:
        ada, bob = await world.create_user(), await world.create_user()
        session = await ada.create_session()
        await ada.send_messages(session, *(f"word {number}" for number in range(50)))
        upload = await ada.post(f"/v1/sessions/{session}/attachments/request-upload", size=7)
        path = upload.ok["uploadUrl"].removeprefix(world.url)
        await ada.request("PUT", path, data=b"sealed!")
        await bob.send_messages(await bob.create_session(), "mine")
        listed = json.loads(
            (await run_web_command("relay", "accounts", "list", "--data", data, "--json")).output
        )["accounts"]
        (item,) = [account for account in listed if account["messages"] == 50]
        sizes = await asyncio.to_thread(
            query_number,
            data,
            "SELECT sum(size) FROM sizes WHERE account = (SELECT min(id) FROM accounts)",
        )
        assert item["sessions"] == 1
        assert item["bytes"] == sizes + 7
        assert item["lastSeenAt"] >= item["createdAt"] > 0
        assert (
            item["id"]
            in (await run_web_command("relay", "accounts", "list", "--data", data)).output
        )
        listener = await ada.connect(clientType="user-scoped")
        assert (
            await run_web_command("relay", "accounts", "remove", item["id"], "--data", data)
        ).output
        async with asyncio.timeout(10):
            while listener.io.connected:
                await asyncio.sleep(0.02)
        assert (await ada.get("/v1/sessions")).status == 401
        with pytest.raises(RefusedConnection):
            await ada.connect(clientType="user-scoped")
        assert list((data / "blobs").glob("??/*")) == []
        left = "SELECT count(*) FROM messages WHERE session = 1"
        assert await asyncio.to_thread(query_number, data, left) == 0
        assert await asyncio.to_thread(query_number, data, "SELECT count(*) FROM sessions") == 1
        assert len((await bob.get("/v1/sessions")).ok["sessions"]) == 1
        # The same key may register again, and has no data.
        await ada.log_in()
        assert (await ada.get("/v1/sessions")).ok["sessions"] == []
        result = await run_web_command("relay", "accounts", "remove", item["id"], "--data", data)
        assert result.code == 1
        assert "relay accounts list" in result.err
    nowhere = await run_web_command("relay", "accounts", "list", "--data", tmp_path / "nowhere")
    assert nowhere.code == 1
    assert "there is no relay" in nowhere.err


def query_number(data: Path, query: str) -> int:
    with sqlite3.connect(data / "relay.db") as db:
        return int(db.execute(query).fetchone()[0])


@pytest.mark.req("relay.accounts.flood")
async def test_a_flood_of_accounts_does_not_lock_out_others(tmp_path: Path) -> None:
    limits = RelayLimits(strangers_requests=10_000)
    async with open_relay_world(
        tmp_path, limits, registration="open", trusted_proxies=("127.0.0.1",)
    ) as world:
        ada = await world.create_user()
        flood = await world.open_client()
        statuses = await asyncio.gather(
            *(register_from_address(flood, "203.0.113.9") for _ in range(1000))
        )
        assert statuses.count(200) == limits.accounts_an_hour
        assert statuses.count(429) == 1000 - limits.accounts_an_hour
        # Other addresses register, and existing accounts log in, from that address too.
        assert await register_from_address(flood, "198.51.100.7") == 200
        body = build_login(ada.secret)
        headers = {"X-Forwarded-For": "203.0.113.9"}
        assert (await flood.request("POST", "/v1/auth", body, headers=headers)).status == 200


@pytest.mark.req("relay.accounts.flood")
async def test_unused_accounts_make_room_for_others(tmp_path: Path) -> None:
    limits = RelayLimits(accounts=3, unused_account=0.2)
    async with open_relay_world(tmp_path, limits) as world:
        ada, idle, other = [await world.create_user() for _ in range(3)]
        await ada.create_session()
        refused = await register_account(await world.open_client())
        assert refused.status == 403
        assert "takes no more accounts" in refused.body["error"]
        await asyncio.sleep(0.3)
        new = await world.create_user()
        await new.create_session()
        async with asyncio.timeout(10):
            while (await idle.get("/v1/sessions")).status != 401:
                await asyncio.sleep(0.05)
        assert (await ada.get("/v1/sessions")).status == 200
        assert (await other.get("/v1/sessions")).status in (200, 401)


# ── Quotas ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_running_relay_deletes_handled_removals(tmp_path: Path) -> None:
    query = "SELECT count(*) FROM removals"
    async with (
        RelayServer(RelayConfig(tmp_path, port=0)) as relay,
        open_relay_client(relay.url) as client,
    ):
        for _ in range(3):
            assert (await register_account(client)).status == 200
        with administration.open_database(tmp_path) as db:
            for item in administration.list_accounts(db):
                assert administration.remove_account(db, tmp_path, item["id"])
        assert await asyncio.to_thread(query_number, tmp_path, query) == 3
        async with asyncio.timeout(10):
            while await asyncio.to_thread(query_number, tmp_path, query):
                await relay.remove_expired()
                await asyncio.sleep(0.05)
        assert (await register_account(client)).status == 200


async def create_user_with_session(world: RelayWorld) -> tuple[RelayUser, str]:
    ada = await world.create_user()
    return ada, await ada.create_session()


@pytest.mark.req("relay.quota")
async def test_an_account_has_a_quota_and_deleting_makes_room(
    tmp_path: Path,
) -> None:
    limits = RelayLimits(account_messages=10, account_bytes=4000)
    async with open_relay_world(tmp_path, limits) as world:
        ada, session = await create_user_with_session(world)
        path = f"/v3/sessions/{session}/messages"
        await ada.send_messages(session, *map(str, range(8)))
        many = await ada.post(path, messages=[ada.build_message("x", f"y{n}") for n in range(3)])
        assert many.status == 413
        assert "may keep 10 messages; delete sessions" in many.body["error"]
        # Known messages are confirmed although there is no room for more.
        await ada.send_messages(session, "8", "9")
        assert len(await ada.send_messages(session, "9")) == 1
        assert len(await ada.read_messages(session)) == 10
        socket = await ada.connect(clientType="user-scoped")
        sent = {"sid": session, "message": ada.build_message("x", "z")["content"], "localId": "z"}
        assert "may keep 10 messages" in (await socket.call("message", sent))["message"]
        other = await ada.create_session("other")
        assert (await ada.delete(f"/v1/sessions/{session}")).status == 200
        large = await ada.post(
            f"/v3/sessions/{other}/messages", messages=[build_big_message(ada, 5000)]
        )
        assert large.status == 413
        assert "may keep 4000 bytes" in large.body["error"]
        fits = await ada.post(
            f"/v3/sessions/{other}/messages", messages=[build_big_message(ada, 1500)]
        )
        assert fits.status == 200
        value = to_base64(b"x" * 3000)
        pair = {"key": "k", "value": value, "version": -1}
        assert (await ada.post("/v1/kv", mutations=[pair])).status == 413
        artifact = {"id": "a", "header": "AAAA", "body": value, "dataEncryptionKey": "AAAA"}
        assert (await ada.post("/v1/artifacts", **artifact)).status == 413
        pair["value"] = to_base64(b"x" * 30)
        assert (await ada.post("/v1/kv", mutations=[pair])).status == 200


@pytest.mark.req("relay.quota")
async def test_many_empty_records_use_up_the_quota_as_well(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(account_bytes=4000)) as world:
        ada = await world.create_user()
        stored = 0
        for number in range(50):
            pair = {"key": f"{number}" + "k" * 300, "value": None, "version": -1}
            stored += (await ada.post("/v1/kv", mutations=[pair])).status == 200
        assert 0 < stored < 10
        artifact = {"header": "AA==", "body": "AA==", "dataEncryptionKey": to_base64(b"x" * 900)}
        assert (await ada.post("/v1/artifacts", id="a", **artifact)).status == 413


def build_big_message(ada: RelayUser, size: int) -> dict[str, str]:
    return ada.build_message("x" * size, f"big {size}")


@pytest.mark.req("relay.quota")
async def test_sessions_and_machines_of_an_account_are_limited(tmp_path: Path) -> None:
    async with open_relay_world(
        tmp_path, RelayLimits(account_sessions=2, account_machines=1)
    ) as world:
        ada = await world.create_user()
        await ada.create_session("one")
        await ada.create_session("two")
        await ada.create_session("one")  # it exists already
        body = {"tag": "three", "metadata": ada.sealer.seal({})}
        refused = await ada.post("/v1/sessions", **body)
        assert (refused.status, "at most 2 sessions" in refused.body["error"]) == (413, True)
        machine = {"metadata": ada.sealer.seal({})}
        assert (await ada.post("/v1/machines", id="one", **machine)).status == 200
        refused = await ada.post("/v1/machines", id="two", **machine)
        assert (refused.status, "at most 1 machines" in refused.body["error"]) == (413, True)


@pytest.mark.req("relay.quota")
async def test_sockets_without_a_token_are_limited_by_address(tmp_path: Path) -> None:
    limits = RelayLimits(strangers_sockets=2)
    async with open_relay_world(
        tmp_path, limits, registration="open", trusted_proxies=("127.0.0.1",)
    ) as world:
        ada, stranger = await world.create_user(), await world.open_client()
        path = "/v1/updates/?EIO=4&transport=websocket"
        silent = [await stranger.http.ws_connect(path) for _ in range(2)]
        refused = await stranger.get(path, EIO="4", transport="websocket")
        assert (refused.status, "without a token" in refused.body["error"]) == (429, True)
        headers = {"X-Forwarded-For": "198.51.100.7"}
        other = await ada.http.ws_connect(path, headers=headers)
        assert (await other.receive()).data.startswith("0")
        for each in (*silent, other):
            await each.close()
        listener = await ada.connect(clientType="user-scoped")
        assert listener.io.connected


@pytest.mark.req("relay.quota")
def test_limits_are_read_from_a_file_and_errors_are_named() -> None:
    assert read_limits({"accounts": 5, "unused_account": 60}).accounts == 5
    with pytest.raises(RelayConfigError, match=r"relay.limits.acounts is no bound; docs/relay.md"):
        read_limits({"acounts": 5})
    for wrong in ({"accounts": 0}, {"accounts": 1.5}, {"unused_account": -1}):
        with pytest.raises(RelayConfigError, match="must be a number above zero"):
            read_limits(wrong)


@pytest.mark.req("relay.quota")
async def test_usage_is_counted_when_an_earlier_database_is_opened(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "relay.db", isolation_level=None) as db:
        migrate_database(db, MIGRATIONS[:1])
        db.execute("INSERT INTO accounts (id, public_key, created_at) VALUES ('a', x'00', 1)")
        db.execute(
            "INSERT INTO sessions (no, id, account, tag, seq, metadata, active_at, created_at,"
            " updated_at) VALUES (1, 's', 'a', 't', 2, x'00', 1, 1, 1)"
        )
        for seq in (1, 2):
            db.execute("INSERT INTO messages VALUES (1, ?, ?, NULL, x'0000', 1)", (seq, str(seq)))
        db.execute("INSERT INTO pairs VALUES ('a', 'k', x'000000', 0)")
    db.close()
    async with RelayServer(RelayConfig(tmp_path, port=0)):
        pass
    (item,) = json.loads(
        (await run_web_command("relay", "accounts", "list", "--data", tmp_path, "--json")).output
    )["accounts"]
    assert (item["messages"], item["bytes"], item["sessions"]) == (2, 109, 1)


@pytest.mark.req("relay.quota")
async def test_counted_usage_always_equals_stored_data(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session, other, machine = (
            await ada.create_session(),
            await ada.create_session("b"),
            await ada.create_machine(),
        )
        socket = await ada.connect(clientType="user-scoped")
        await ada.send_messages(session, "one", "two", "two")
        await ada.send_messages(other, "three")
        for number, value in enumerate(("a" * 50, "b")):
            sealed = ada.sealer.seal(value)
            payload = {"sid": session, "metadata": sealed, "expectedVersion": number}
            assert (await socket.call("update-metadata", payload))["result"] == "success"
            payload = {"sid": session, "agentState": sealed, "expectedVersion": number}
            assert (await socket.call("update-state", payload))["result"] == "success"
            pair = {"key": "k", "value": sealed, "version": number - 1}
            assert (await ada.post("/v1/kv", mutations=[pair])).status == 200
            settings = {"settings": sealed, "expectedVersion": number}
            assert (await ada.post("/v1/account/settings", **settings)).status == 200
        artifact = {"header": "AAAA", "body": "AAAA", "dataEncryptionKey": "AAAA"}
        assert (await ada.post("/v1/artifacts", id="a", **artifact)).status == 200
        assert (await ada.post("/v1/artifacts", id="b", **artifact)).status == 200
        assert (await ada.delete("/v1/artifacts/a")).status == 200
        for each in (session, other):
            key = await ada.post(f"/v1/access-keys/{each}/{machine}", data="AAAAAAAA")
            assert key.status == 200
        await check_counts(tmp_path)
        assert (await ada.delete(f"/v1/sessions/{session}")).status == 200
        await check_counts(tmp_path)
        assert (await ada.delete(f"/v1/machines/{machine}")).status == 200
        await check_counts(tmp_path)
        assert await asyncio.to_thread(query_number, tmp_path, "SELECT messages FROM accounts") == 1


async def check_counts(data: Path) -> None:
    counted = await asyncio.to_thread(query_number, data, "SELECT bytes FROM accounts")
    world = await asyncio.to_thread(query_number, data, "SELECT sum(size) FROM sizes")
    stored = await asyncio.to_thread(query_number, data, "SELECT sum(bytes) FROM sessions")
    messages = await asyncio.to_thread(
        query_number, data, "SELECT coalesce(sum(length(content)), 0) FROM messages"
    )
    keys = await asyncio.to_thread(
        query_number, data, "SELECT coalesce(sum(length(data)), 0) FROM access_keys"
    )
    assert (counted, stored) == (world, messages + keys)


# ── Proxies ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("relay.proxies")
@pytest.mark.parametrize(
    ("peer", "headers", "client"),
    [
        ("203.0.113.5", [], "203.0.113.5"),
        ("203.0.113.5", ["198.51.100.1"], "203.0.113.5"),  # any client can write a header
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["1.1.1.1, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),  # the rightmost
        ("10.0.0.1", ["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, nonsense"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fd00::1", ["[2001:db8:1:2:3::4]:80"], "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", ["1.1.1.1"], "2001:db8:1:2::/64"),
        ("::1", [], "::1"),
        ("", ["1.1.1.1"], ""),
    ],
)
def test_the_rightmost_untrusted_hop_is_the_client(
    peer: str, headers: list[str], client: str
) -> None:
    proxies = TrustedProxies(["10.0.0.0/8", "fd00::/8"])
    assert proxies.resolve(peer, headers) == client


@pytest.mark.req("relay.proxies")
async def test_clients_behind_a_proxy_are_distinguished_and_cannot_be_faked(
    tmp_path: Path,
) -> None:
    limits = RelayLimits(strangers_requests=3)

    async def ask_from(client: RelayClient, address: str) -> int:
        headers = {"X-Forwarded-For": address}
        return (await client.request("POST", "/v1/auth/nonce", {}, headers=headers)).status

    async with open_relay_world(
        tmp_path / "one", limits, registration="open", trusted_proxies=("127.0.0.0/8",)
    ) as world:
        proxy = await world.open_client()
        assert [await ask_from(proxy, "198.51.100.1") for _ in range(4)] == [200, 200, 200, 429]
        assert await ask_from(proxy, "198.51.100.2") == 200
        assert await ask_from(proxy, "9.9.9.9, 198.51.100.1") == 429
    async with open_relay_world(tmp_path / "two", limits) as world:
        liar = await world.open_client()
        found = [await ask_from(liar, f"198.51.100.{number}") for number in range(4)]
        assert found == [200, 200, 200, 429]


@pytest.mark.req("relay.proxies")
async def test_an_invalid_proxy_is_an_error_and_a_missing_one_a_notice(
    tmp_path: Path,
) -> None:
    with pytest.raises(RelayConfigError, match="neither an address nor a network"):
        RelayConfig(tmp_path, trusted_proxies=("my proxy",))
    config = RelayConfig(tmp_path, public_url="https://relay.example", registration="closed")
    assert any("trusted_proxies" in notice for notice in config.notices())
    options = ("--registration", "closed", "--trusted-proxy", "10.0.0.0/8")
    log = tmp_path / "log"
    async with run_relay_process(tmp_path / "data", *options, log=log):
        pass
    assert "No new accounts are taken." in log.read_text()
