"""Files: sealed bytes in, the same bytes out, for their owner only."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.relay_world import RelayClient, RelayUser, open_relay_world
from crabtalk_web.relay import RelayLimits
from crabtalk_web.relay.blobs import BlobStore
from crabtalk_web.sealing import derive_blob_key, new_key, open_blob, seal_blob


async def request_upload(person: RelayUser, session: str, size: int) -> Any:
    path = f"/v1/sessions/{session}/attachments/request-upload"
    return await person.post(path, filename="holiday.png", size=size)


async def upload_bytes(client: RelayClient, url: str, data: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    return await client.request("PUT", url, data=data, headers=headers)


async def upload_file(person: RelayUser, session: str, data: bytes) -> str:
    offered = (await request_upload(person, session, len(data))).ok
    assert offered["method"] == "PUT"
    assert (await upload_bytes(person, offered["uploadUrl"], data)).ok["success"]
    return str(offered["ref"])


async def request_download(person: RelayUser, session: str, ref: str) -> str:
    path = f"/v1/sessions/{session}/attachments/request-download"
    return str((await person.post(path, ref=ref)).ok["downloadUrl"])


def list_blobs(data: Path) -> list[Path]:
    return [path for path in (data / "blobs").rglob("*") if path.is_file()]


@pytest.mark.req("relay.files.round_trip")
async def test_a_file_is_returned_unchanged(tmp_path: Path) -> None:
    key, plain = derive_blob_key(new_key()), os.urandom(300_000)
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        ref = await upload_file(ada, session, seal_blob(key, plain))
        assert ref.startswith(f"sessions/{session}/attachments/")
        assert ref.endswith(".enc")
        got = await ada.get(await request_download(ada, session, ref))
        assert got.headers["Content-Type"] == "application/octet-stream"
        opened = open_blob(key, got.ok)
        assert opened is not None
        assert hashlib.sha256(opened).digest() == hashlib.sha256(plain).digest()


@pytest.mark.req("relay.files.owner")
async def test_files_need_the_owners_token(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada, eve = await world.create_user(), await world.create_user()
        session = await ada.create_session()
        ref = await upload_file(ada, session, b"sealed")
        url = await request_download(ada, session, ref)
        stranger = await world.open_client()
        assert (await stranger.get(url)).status == 401
        assert (await eve.get(url)).status == 404
        assert (await stranger.get(f"/files/{ref}")).status == 404
        name = ref.rpartition("/")[2]
        mine = await eve.create_session()
        assert (await eve.get(f"/v1/sessions/{mine}/attachments/{name}")).status == 404
        path = f"/v1/sessions/{mine}/attachments/request-download"
        assert (await eve.post(path, ref=ref)).status == 400
        offered = (await request_upload(ada, session, 6)).ok
        assert (await upload_bytes(stranger, offered["uploadUrl"], b"forged")).status == 401
        assert (await upload_bytes(eve, offered["uploadUrl"], b"forged")).status == 404


@pytest.mark.req("relay.files.size")
async def test_uploads_must_have_the_announced_size(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        offered = (await request_upload(ada, session, 10)).ok
        url = offered["uploadUrl"]
        assert (await upload_bytes(ada, url, b"x" * 11)).status == 413
        assert (await upload_bytes(ada, url, b"x" * 9)).status == 400
        assert (await ada.get(url)).status == 404
        assert list_blobs(tmp_path) == []
        assert (await upload_bytes(ada, url, b"x" * 10)).ok
        second_upload = await upload_bytes(ada, url, b"y" * 10)
        assert second_upload.status == 409
        assert (await ada.get(url)).ok == b"x" * 10


@pytest.mark.req("relay.files.limits")
async def test_files_are_limited_in_size_rate_and_total(tmp_path: Path) -> None:
    limits = RelayLimits(attachment=1000, uploads_a_minute=4, account_files=2500)
    async with open_relay_world(tmp_path, limits) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        assert (await request_upload(ada, session, 1001)).body["message"] == (
            "body/size must be at most 1000"
        )
        assert (await request_upload(ada, session, 0)).status == 400
        for _ in range(2):
            assert (await request_upload(ada, session, 1000)).ok
        full = await request_upload(ada, session, 1000)
        assert (full.status, "delete sessions" in full.body["error"]) == (413, True)
        assert (await request_upload(ada, session, 400)).ok
        assert (await request_upload(ada, session, 1)).status == 429
    assert RelayLimits().attachment == 10_485_760


@pytest.mark.req("relay.files.deleted")
async def test_a_deleted_session_takes_its_files_with_it(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        one, two = await ada.create_session("one"), await ada.create_session("two")
        await upload_file(ada, one, b"one")
        ref = await upload_file(ada, two, b"two")
        await ada.delete(f"/v1/sessions/{one}")
        assert [path.name for path in list_blobs(tmp_path)] == [ref.rpartition("/")[2]]
        assert (await ada.get(await request_download(ada, two, ref))).ok == b"two"


@pytest.mark.req("relay.files.retention")
async def test_expired_files_and_unused_uploads_are_deleted(
    tmp_path: Path,
) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        ref = await upload_file(ada, session, b"kept")
        await request_upload(ada, session, 5)
        await world.relay.remove_expired()
        assert len(list_blobs(tmp_path)) == 1
    async with open_relay_world(tmp_path, RelayLimits(file_retention=1e-3)) as world:
        await world.relay.remove_expired()
        assert list_blobs(tmp_path) == []
        ada = await world.create_user(ada.secret)
        path = f"/v1/sessions/{session}/attachments/request-download"
        assert (await ada.post(path, ref=ref)).status == 404


@pytest.mark.req("relay.files.retention")
async def test_files_without_a_row_are_removed(tmp_path: Path) -> None:
    async with open_relay_world(tmp_path, RelayLimits(upload=1e-3)) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        await upload_file(ada, session, b"kept")
        left = tmp_path / "blobs" / "ab"
        left.mkdir(exist_ok=True)
        for name in ("abandoned", "ab.enc.1f2e"):
            (left / name).write_bytes(b"half")
            os.utime(left / name, (0, 0))
        await world.relay.remove_expired()
        assert len(list_blobs(tmp_path)) == 1


@pytest.mark.req("relay.files.names")
@pytest.mark.parametrize("name", ["../relay.db", "x", "", "..%2f..%2frelay.db", "a/b"])
async def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    async with open_relay_world(tmp_path) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        got = await ada.get(f"/v1/sessions/{session}/attachments/{name}")
        assert got.status == 404
    with pytest.raises(ValueError, match="no name of a blob"):
        BlobStore(tmp_path / "blobs").path(name)


@pytest.mark.req("relay.files.public_url")
async def test_urls_are_those_by_which_devices_reach_the_relay(tmp_path: Path) -> None:
    async with open_relay_world(
        tmp_path, registration="open", public_url="https://relay.example/"
    ) as world:
        ada = await world.create_user()
        session = await ada.create_session()
        url = (await request_upload(ada, session, 5)).ok["uploadUrl"]
        assert url.startswith(f"https://relay.example/v1/sessions/{session}/attachments/")
