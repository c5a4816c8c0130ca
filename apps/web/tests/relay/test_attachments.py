"""Files: sealed bytes in, the same bytes out, for their owner alone."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from apps.web.tests.relay.people import Client, Person, town
from crabtalk_web.relay import Limits
from crabtalk_web.relay.blobs import Blobs
from crabtalk_web.sealing import blob_key, new_key, open_blob, seal_blob


async def offer(person: Person, session: str, size: int) -> Any:
    path = f"/v1/sessions/{session}/attachments/request-upload"
    return await person.post(path, filename="holiday.png", size=size)


async def put(client: Client, url: str, data: bytes) -> Any:
    headers = {"Content-Type": "application/octet-stream"}
    return await client.ask("PUT", url, data=data, headers=headers)


async def upload(person: Person, session: str, data: bytes) -> str:
    offered = (await offer(person, session, len(data))).ok
    assert offered["method"] == "PUT"
    assert (await put(person, offered["uploadUrl"], data)).ok["success"]
    return str(offered["ref"])


async def download_url(person: Person, session: str, ref: str) -> str:
    path = f"/v1/sessions/{session}/attachments/request-download"
    return str((await person.post(path, ref=ref)).ok["downloadUrl"])


def kept(data: Path) -> list[Path]:
    return [path for path in (data / "blobs").rglob("*") if path.is_file()]


@pytest.mark.req("relay.files.round_trip")
async def test_a_file_comes_back_as_it_was_sealed(tmp_path: Path) -> None:
    key, plain = blob_key(new_key()), os.urandom(300_000)
    async with town(tmp_path) as there:
        ada = await there.person()
        session = await ada.session()
        ref = await upload(ada, session, seal_blob(key, plain))
        assert ref.startswith(f"sessions/{session}/attachments/")
        assert ref.endswith(".enc")
        got = await ada.get(await download_url(ada, session, ref))
        assert got.headers["Content-Type"] == "application/octet-stream"
        opened = open_blob(key, got.ok)
        assert opened is not None
        assert hashlib.sha256(opened).digest() == hashlib.sha256(plain).digest()


@pytest.mark.req("relay.files.owner")
async def test_bytes_are_for_those_who_show_the_owners_token(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        ada, eve = await there.person(), await there.person()
        session = await ada.session()
        ref = await upload(ada, session, b"sealed")
        url = await download_url(ada, session, ref)
        stranger = await there.stranger()
        assert (await stranger.get(url)).status == 401
        assert (await eve.get(url)).status == 404
        assert (await stranger.get(f"/files/{ref}")).status == 404
        name = ref.rpartition("/")[2]
        mine = await eve.session()
        assert (await eve.get(f"/v1/sessions/{mine}/attachments/{name}")).status == 404
        path = f"/v1/sessions/{mine}/attachments/request-download"
        assert (await eve.post(path, ref=ref)).status == 400
        offered = (await offer(ada, session, 6)).ok
        assert (await put(stranger, offered["uploadUrl"], b"forged")).status == 401
        assert (await put(eve, offered["uploadUrl"], b"forged")).status == 404


@pytest.mark.req("relay.files.size")
async def test_what_comes_has_the_size_that_was_announced(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        ada = await there.person()
        session = await ada.session()
        offered = (await offer(ada, session, 10)).ok
        url = offered["uploadUrl"]
        assert (await put(ada, url, b"x" * 11)).status == 413
        assert (await put(ada, url, b"x" * 9)).status == 400
        assert (await ada.get(url)).status == 404
        assert kept(tmp_path) == []
        assert (await put(ada, url, b"x" * 10)).ok
        again = await put(ada, url, b"y" * 10)
        assert again.status == 409
        assert (await ada.get(url)).ok == b"x" * 10


@pytest.mark.req("relay.files.limits")
async def test_files_are_bounded_one_by_one_by_the_minute_and_together(tmp_path: Path) -> None:
    limits = Limits(attachment=1000, uploads_a_minute=4, account_files=2500)
    async with town(tmp_path, limits) as there:
        ada = await there.person()
        session = await ada.session()
        assert (await offer(ada, session, 1001)).body["message"] == (
            "body/size must be at most 1000"
        )
        assert (await offer(ada, session, 0)).status == 400
        for _ in range(2):
            assert (await offer(ada, session, 1000)).ok
        full = await offer(ada, session, 1000)
        assert (full.status, "delete sessions" in full.body["error"]) == (413, True)
        assert (await offer(ada, session, 400)).ok
        assert (await offer(ada, session, 1)).status == 429
    assert Limits().attachment == 10_485_760


@pytest.mark.req("relay.files.deleted")
async def test_a_deleted_session_takes_its_files_with_it(tmp_path: Path) -> None:
    async with town(tmp_path) as there:
        ada = await there.person()
        one, two = await ada.session("one"), await ada.session("two")
        await upload(ada, one, b"one")
        ref = await upload(ada, two, b"two")
        await ada.delete(f"/v1/sessions/{one}")
        assert [path.name for path in kept(tmp_path)] == [ref.rpartition("/")[2]]
        assert (await ada.get(await download_url(ada, two, ref))).ok == b"two"


@pytest.mark.req("relay.files.retention")
async def test_files_go_when_their_time_is_over_and_offers_that_were_not_taken(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as there:
        ada = await there.person()
        session = await ada.session()
        ref = await upload(ada, session, b"kept")
        await offer(ada, session, 5)
        await there.relay.clean()
        assert len(kept(tmp_path)) == 1
    async with town(tmp_path, Limits(file_retention=1e-3)) as there:
        await there.relay.clean()
        assert kept(tmp_path) == []
        ada = await there.person(ada.secret)
        path = f"/v1/sessions/{session}/attachments/request-download"
        assert (await ada.post(path, ref=ref)).status == 404


@pytest.mark.req("relay.files.retention")
async def test_bytes_that_no_row_speaks_of_are_found_and_removed(tmp_path: Path) -> None:
    async with town(tmp_path, Limits(upload=1e-3)) as there:
        ada = await there.person()
        session = await ada.session()
        await upload(ada, session, b"kept")
        left = tmp_path / "blobs" / "ab"
        left.mkdir(exist_ok=True)
        for name in ("abandoned", "ab.enc.1f2e"):
            (left / name).write_bytes(b"half")
            os.utime(left / name, (0, 0))
        await there.relay.clean()
        assert len(kept(tmp_path)) == 1


@pytest.mark.req("relay.files.names")
@pytest.mark.parametrize("name", ["../relay.db", "x", "", "..%2f..%2frelay.db", "a/b"])
async def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    async with town(tmp_path) as there:
        ada = await there.person()
        session = await ada.session()
        got = await ada.get(f"/v1/sessions/{session}/attachments/{name}")
        assert got.status == 404
    with pytest.raises(ValueError, match="no name of a blob"):
        Blobs(tmp_path / "blobs").path(name)


@pytest.mark.req("relay.files.public_url")
async def test_addresses_are_those_by_which_devices_reach_the_relay(tmp_path: Path) -> None:
    async with town(tmp_path, registration="open", public_url="https://relay.example/") as there:
        ada = await there.person()
        session = await ada.session()
        url = (await offer(ada, session, 5)).ok["uploadUrl"]
        assert url.startswith(f"https://relay.example/v1/sessions/{session}/attachments/")
