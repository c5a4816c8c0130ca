"""Tokens: how one is come by, and how it is taken away."""

import os
from pathlib import Path

import pytest

from apps.web.tests.relay.relay_world import RefusedConnection, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.sealing import MasterSecret, from_base64, new_key, to_base64


@pytest.mark.req("relay.auth.login")
async def test_who_signs_a_challenge_has_the_account_of_that_key(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        again = await there.create_user(ada.secret)
        other = await there.create_user()
        accounts = [
            (await each.get("/v1/account/profile")).ok["id"] for each in (ada, again, other)
        ]
        assert accounts[0] == accounts[1] != accounts[2]
        assert ada.token != again.token


@pytest.mark.req("relay.auth.login")
@pytest.mark.parametrize(
    ("field", "data"),
    [("signature", b"\0" * 64), ("signature", b"short"), ("challenge", b"another")],
)
async def test_a_wrong_signature_is_refused(tmp_path: Path, field: str, data: bytes) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        login = {**ada.build_login(os.urandom(32)), field: to_base64(data)}
        refused = await ada.post("/v1/auth", **login)
        assert (refused.status, refused.body) == (401, {"error": "Invalid signature"})


@pytest.mark.req("relay.auth.keys")
async def test_a_public_key_has_32_bytes(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        stranger = await there.open_client()
        refused = await stranger.post("/v1/auth/request", publicKey=to_base64(b"short"))
        assert (refused.status, refused.body) == (401, {"error": "Invalid public key"})


@pytest.mark.req("relay.auth.replay")
async def test_a_login_that_was_overheard_cannot_be_repeated(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        overheard = ada.build_login(b"a challenge of the client's own")
        assert (await ada.post("/v1/auth", **overheard)).ok["success"]
        refused = await (await there.open_client()).post("/v1/auth", **overheard)
        assert refused.status == 401
        assert "sign a new one" in refused.body["error"]
    async with open_relay_world(tmp_path) as there:  # nor after a restart
        assert (await (await there.open_client()).post("/v1/auth", **overheard)).status == 401


@pytest.mark.req("relay.auth.nonce")
async def test_a_relay_can_insist_on_nonces_of_its_own(tmp_path: Path) -> None:
    secret = MasterSecret(new_key())
    async with open_relay_world(tmp_path, nonce_only=True) as there:
        stranger = await there.open_client()
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
async def test_a_nonce_is_taken_beside_challenges_of_the_client(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
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
async def test_without_a_token_there_is_nothing(
    tmp_path: Path, headers: dict[str, str], error: str
) -> None:
    async with open_relay_world(tmp_path) as there:
        stranger = await there.open_client()
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
async def test_devices_are_listed_and_one_that_is_revoked_is_out(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        lost = await there.create_user(ada.secret)
        socket = await lost.connect()
        devices = (await ada.get("/v1/devices")).ok["devices"]
        assert [each["current"] for each in devices] == [True, False]
        assert all(each["seenAt"] >= each["createdAt"] for each in devices)
        assert not any("token" in each for each in devices)

        assert (await ada.delete(f"/v1/devices/{devices[1]['id']}")).ok["success"]
        assert (await lost.get("/v1/sessions")).body == {"error": "Invalid token"}
        await socket.io.wait()  # it was put out
        with pytest.raises(RefusedConnection):
            await lost.connect()
        assert len((await ada.get("/v1/devices")).ok["devices"]) == 1


@pytest.mark.req("relay.auth.devices")
async def test_nobody_revokes_a_device_of_others(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada, eve = await there.create_user(), await there.create_user()
        (device,) = (await ada.get("/v1/devices")).ok["devices"]
        assert (await eve.delete(f"/v1/devices/{device['id']}")).status == 404
        assert (await ada.get("/v1/sessions")).ok


@pytest.mark.req("relay.auth.hashed")
async def test_the_database_has_no_token_in_it(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        ada = await there.create_user()
        await ada.create_session()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("relay.db*"))
    assert kept
    assert ada.token.encode() not in kept


@pytest.mark.req("relay.limits.accounts")
async def test_a_relay_takes_as_many_accounts_as_it_was_told(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(accounts=1)) as there:
        ada = await there.create_user()
        await there.create_user(ada.secret)
        other = await there.open_client()
        secret = MasterSecret(new_key())
        refused = await other.post(
            "/v1/auth",
            publicKey=to_base64(secret.account_key),
            challenge=to_base64(b"x"),
            signature=to_base64(secret.sign(b"x")),
        )
        assert refused.status == 403
        assert "ask whoever runs it" in refused.body["error"]


@pytest.mark.req("relay.limits.strangers")
async def test_strangers_who_knock_too_often_are_told_to_wait(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(strangers_requests=3)) as there:
        stranger = await there.open_client()
        statuses = [(await stranger.post("/v1/auth/nonce")).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]


@pytest.mark.req("relay.limits.body")
async def test_a_stranger_sends_little_at_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as there:
        stranger = await there.open_client()
        refused = await stranger.post("/v1/auth", publicKey="A" * 100_000)
        assert refused.status == 413
        assert "at most 65536 bytes" in refused.body["error"]
