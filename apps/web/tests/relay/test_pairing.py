"""Pairing: a machine shows a key, a device answers it."""

from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import RelayClient, RelayUser, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.sealing import (
    PairingSecret,
    approve_device_link,
    approve_with_content_key,
    approve_with_secret,
    to_base64,
)


async def request_pairing(terminal: RelayClient, secret: PairingSecret, **more: Any) -> Any:
    key = to_base64(secret.public_key)
    return (await terminal.post("/v1/auth/request", publicKey=key, supportsV2=True, **more)).ok


async def approve_terminal(ada: RelayUser, secret: PairingSecret) -> int:
    content_key = ada.secret.content_keys.public
    reply = await ada.post(
        "/v1/auth/response",
        publicKey=to_base64(secret.public_key),
        response=approve_with_content_key(secret.public_key, content_key),
    )
    return reply.status


async def read_status(ada: RelayClient, secret: PairingSecret) -> Any:
    return (await ada.get("/v1/auth/request/status", publicKey=to_base64(secret.public_key))).ok


@pytest.mark.req("relay.pairing.flow")
async def test_a_terminal_is_let_in_by_a_device_that_scanned_its_code(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, terminal, secret = (
            await world.create_user(),
            await world.open_client(),
            PairingSecret(),
        )
        assert (await read_status(ada, secret)) == {"status": "not_found", "supportsV2": False}
        assert await request_pairing(terminal, secret) == {"state": "requested"}
        assert await request_pairing(terminal, secret) == {"state": "requested"}
        assert (await read_status(ada, secret)) == {"status": "pending", "supportsV2": True}
        assert await approve_terminal(ada, secret) == 200
        assert (await read_status(ada, secret))["status"] == "authorized"
        granted = await request_pairing(terminal, secret)
        assert granted["state"] == "authorized"
        approval = secret.open_approval(granted["response"])
        assert approval is not None
        assert approval.content_public_key == ada.secret.content_keys.public
        terminal.token = granted["token"]
        profile = (await terminal.get("/v1/account/profile")).ok
        assert profile["id"] == (await ada.get("/v1/account/profile")).ok["id"]


@pytest.mark.req("relay.pairing.sealed")
async def test_the_token_is_sealed_for_the_requester(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, terminal, secret = (
            await world.create_user(),
            await world.open_client(),
            PairingSecret(),
        )
        await request_pairing(terminal, secret, sealsToken=True)
        await approve_terminal(ada, secret)
        # An attacker who has photographed the code asks first, and for an unsealed token.
        eve = await world.open_client()
        seen = await request_pairing(eve, secret, sealsToken=False)
        assert "token" not in seen
        assert PairingSecret().open_token(seen["sealedToken"]) is None
        granted = await request_pairing(terminal, secret, sealsToken=True)
        token = secret.open_token(granted["sealedToken"])
        assert token is not None
        terminal.token = token
        assert (await terminal.get("/v1/sessions")).ok
        # One pairing creates one device, however often it is fetched.
        assert len((await ada.get("/v1/devices")).ok["devices"]) == 2


@pytest.mark.req("relay.pairing.once")
async def test_an_unsealed_token_is_handed_out_once(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, terminal, secret = (
            await world.create_user(),
            await world.open_client(),
            PairingSecret(),
        )
        await request_pairing(terminal, secret)
        await approve_terminal(ada, secret)
        assert (await request_pairing(terminal, secret))["token"]
        key = to_base64(secret.public_key)
        replayed = await (await world.open_client()).post("/v1/auth/request", publicKey=key)
        assert replayed.status == 410
        assert "revoke its device" in replayed.body["error"]


@pytest.mark.req("relay.pairing.first")
async def test_the_first_answer_counts(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve, terminal = (
            await world.create_user(),
            await world.create_user(),
            await world.open_client(),
        )
        secret = PairingSecret()
        await request_pairing(terminal, secret)
        assert await approve_terminal(ada, secret) == 200
        assert await approve_terminal(eve, secret) == 200
        approval = secret.open_approval((await request_pairing(terminal, secret))["response"])
        assert approval is not None
        assert approval.content_public_key == ada.secret.content_keys.public


@pytest.mark.req("relay.pairing.expiry")
async def test_a_request_expires(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(pairing=1e-3)) as world:
        ada, terminal, secret = (
            await world.create_user(),
            await world.open_client(),
            PairingSecret(),
        )
        await request_pairing(terminal, secret)
        while (await read_status(ada, secret))["status"] != "not_found":
            pass
        assert await approve_terminal(ada, secret) == 404
    assert RelayLimits().pairing == 300


@pytest.mark.req("relay.pairing.expiry")
async def test_an_answer_that_is_not_fetched_in_time_expires_too(tmp_path: Path) -> None:
    secret = PairingSecret()
    async with open_relay_world(tmp_path) as world:
        ada, terminal = await world.create_user(), await world.open_client()
        await request_pairing(terminal, secret)
        await approve_terminal(ada, secret)
    async with open_relay_world(tmp_path, RelayLimits(pairing=1e-3)) as world:
        assert await request_pairing(await world.open_client(), secret) == {"state": "requested"}


@pytest.mark.req("relay.pairing.unknown")
async def test_an_answer_without_a_request_is_refused(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        assert await approve_terminal(await world.create_user(), PairingSecret()) == 404


@pytest.mark.req("relay.pairing.link")
async def test_a_device_links_another_one(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, tablet, secret = await world.create_user(), await world.open_client(), PairingSecret()
        key = to_base64(secret.public_key)
        reply = await tablet.post("/v1/auth/account/request", publicKey=key)
        assert reply.ok == {"state": "requested"}
        # An answer to one kind of request does not answer the other.
        assert await approve_terminal(ada, secret) == 404
        query = {"publicKey": key}
        terminals, accounts = "/v1/auth/request/status", "/v1/auth/account/request/status"
        assert (await ada.get(terminals, **query)).ok["status"] == "not_found"
        assert (await ada.get(accounts, **query)).ok["status"] == "pending"
        answer = approve_device_link(secret.public_key, ada.secret.secret)
        await ada.post("/v1/auth/account/response", publicKey=key, response=answer)
        assert (await tablet.get(accounts, **query)).ok["status"] == "authorized"
        granted = (await tablet.post("/v1/auth/account/request", publicKey=key)).ok
        approval = secret.open_approval(granted["response"])
        assert approval is not None
        assert approval.master_secret == ada.secret.secret
        assert granted["token"]


@pytest.mark.req("relay.pairing.flow")
async def test_the_older_pairing_shares_the_master_secret(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, terminal, secret = (
            await world.create_user(),
            await world.open_client(),
            PairingSecret(),
        )
        await request_pairing(terminal, secret)
        response = approve_with_secret(secret.public_key, ada.secret.secret)
        key = to_base64(secret.public_key)
        await ada.post("/v1/auth/response", publicKey=key, response=response)
        approval = secret.open_approval((await request_pairing(terminal, secret))["response"])
        assert approval is not None
        assert approval.master_secret == ada.secret.secret


@pytest.mark.req("relay.limits.pairings")
async def test_strangers_cannot_fill_the_relay_with_requests(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(pairings=2)) as world:
        terminal = await world.open_client()
        for _ in range(2):
            await request_pairing(terminal, PairingSecret())
        key = to_base64(PairingSecret().public_key)
        refused = await terminal.post("/v1/auth/request", publicKey=key)
        assert refused.status == 503
