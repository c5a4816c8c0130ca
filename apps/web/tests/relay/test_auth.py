"""Tokens: how they are issued and revoked."""

import os
from pathlib import Path

import pytest

from apps.web.tests.relay.relay_world import RefusedConnection, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.sealing import MasterSecret, from_base64, new_key, to_base64


@pytest.mark.req("relay.auth.login")
async def test_signing_a_challenge_logs_in_to_the_account_of_that_key(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        second_device = await world.create_user(ada.secret)
        other = await world.create_user()
        accounts = [
            (await each.get("/v1/account/profile")).ok["id"] for each in (ada, second_device, other)
        ]
        assert accounts[0] == accounts[1] != accounts[2]
        assert ada.token != second_device.token


@pytest.mark.req("relay.auth.login")
@pytest.mark.parametrize(
    ("field", "data"),
    [("signature", b"\0" * 64), ("signature", b"short"), ("challenge", b"another")],
)
async def test_a_wrong_signature_is_refused(tmp_path: Path, field: str, data: bytes) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        login = {**ada.build_login(os.urandom(32)), field: to_base64(data)}
        refused = await ada.post("/v1/auth", **login)
        assert (refused.status, refused.body) == (401, {"error": "Invalid signature"})


@pytest.mark.req("relay.auth.keys")
async def test_a_public_key_has_32_bytes(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        stranger = await world.open_client()
        refused = await stranger.post("/v1/auth/request", publicKey=to_base64(b"short"))
        assert (refused.status, refused.body) == (401, {"error": "Invalid public key"})


@pytest.mark.req("relay.auth.replay")
async def test_a_captured_login_cannot_be_repeated(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        overheard = ada.build_login(b"a challenge of the client's own")
        assert (await ada.post("/v1/auth", **overheard)).ok["success"]
        refused = await (await world.open_client()).post("/v1/auth", **overheard)
        assert refused.status == 401
        assert "sign a new one" in refused.body["error"]
    async with open_relay_world(tmp_path) as world:  # nor after a restart
        assert (await (await world.open_client()).post("/v1/auth", **overheard)).status == 401


@pytest.mark.req("relay.auth.nonce")
async def test_a_relay_can_require_its_own_nonces(tmp_path: Path) -> None:
    secret = MasterSecret(new_key())
    async with open_relay_world(tmp_path, nonce_only=True) as world:
        stranger = await world.open_client()
        nonce = from_base64((await stranger.post("/v1/auth/nonce")).ok["nonce"])
        assert nonce is not None

        def login(challenge: bytes) -> dict[str, str]:
            return {
                "publicKey": to_base64(secret.account_key),
                "challenge": to_base64(challenge),
                "signature": to_base64(secret.sign(challenge)),
            }

        assert (await stranger.post("/v1/auth", **login(os.urandom(32)))).status == 401
        assert (await stranger.post("/v1/auth", **login(nonce))).ok["token"]
        assert (await stranger.post("/v1/auth", **login(nonce))).status == 401


@pytest.mark.req("relay.auth.nonce")
async def test_a_nonce_is_accepted_besides_client_challenges(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        nonce = from_base64((await ada.post("/v1/auth/nonce")).ok["nonce"])
        assert nonce is not None
        assert (await ada.post("/v1/auth", **ada.build_login(nonce))).ok["token"]


@pytest.mark.req("relay.auth.bearer")
@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, "Missing authorization header"),
        ({"Authorization": "Basic abc"}, "Missing authorization header"),
        ({"Authorization": "Bearer nonsense"}, "Invalid token"),
    ],
)
async def test_every_route_needs_a_token(
    tmp_path: Path, headers: dict[str, str], error: str
) -> None:
    async with open_relay_world(tmp_path) as world:
        stranger = await world.open_client()
        for method, path in (
            ("GET", "/v1/sessions"),
            ("POST", "/v1/sessions"),
            ("GET", "/v3/sessions/x/messages"),
            ("POST", "/v3/sessions/x/messages"),
            ("GET", "/v1/machines"),
            ("GET", "/v1/devices"),
            ("POST", "/v1/auth/response"),
            ("PUT", "/v1/sessions/x/attachments/y"),
            ("GET", "/v1/sessions/x/attachments/y"),
        ):
            refused = await stranger.request(method, path, headers=headers)
            assert (refused.status, refused.body) == (401, {"error": error})


@pytest.mark.req("relay.auth.devices")
async def test_devices_are_listed_and_a_revoked_one_is_locked_out(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        lost = await world.create_user(ada.secret)
        socket = await lost.connect()
        devices = (await ada.get("/v1/devices")).ok["devices"]
        assert [each["current"] for each in devices] == [True, False]
        assert all(each["seenAt"] >= each["createdAt"] for each in devices)
        assert not any("token" in each for each in devices)

        assert (await ada.delete(f"/v1/devices/{devices[1]['id']}")).ok["success"]
        assert (await lost.get("/v1/sessions")).body == {"error": "Invalid token"}
        await socket.io.wait()  # it was disconnected
        with pytest.raises(RefusedConnection):
            await lost.connect()
        assert len((await ada.get("/v1/devices")).ok["devices"]) == 1


@pytest.mark.req("relay.auth.devices")
async def test_an_account_cannot_revoke_devices_of_others(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        (device,) = (await ada.get("/v1/devices")).ok["devices"]
        assert (await eve.delete(f"/v1/devices/{device['id']}")).status == 404
        assert (await ada.get("/v1/sessions")).ok


@pytest.mark.req("relay.auth.hashed")
async def test_the_database_contains_no_tokens(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        await ada.create_session()
    database_bytes = b"".join(path.read_bytes() for path in tmp_path.rglob("relay.db*"))
    assert database_bytes
    assert ada.token.encode() not in database_bytes


@pytest.mark.req("relay.limits.accounts")
async def test_a_relay_limits_its_number_of_accounts(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(accounts=1)) as world:
        ada = await world.create_user()
        await world.create_user(ada.secret)
        other = await world.open_client()
        secret = MasterSecret(new_key())
        refused = await other.post(
            "/v1/auth",
            publicKey=to_base64(secret.account_key),
            challenge=to_base64(b"x"),
            signature=to_base64(secret.sign(b"x")),
        )
        assert refused.status == 403
        assert "ask its operator" in refused.body["error"]


@pytest.mark.req("relay.limits.strangers")
async def test_requests_without_a_token_are_rate_limited(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(strangers_requests=3)) as world:
        stranger = await world.open_client()
        statuses = [(await stranger.post("/v1/auth/nonce")).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]


@pytest.mark.req("relay.limits.body")
async def test_bodies_without_a_token_are_small(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        stranger = await world.open_client()
        refused = await stranger.post("/v1/auth", publicKey="A" * 100_000)
        assert refused.status == 413
        assert "at most 65536 bytes" in refused.body["error"]
