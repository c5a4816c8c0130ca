"""Files of agents are sent once, whatever becomes of the gateway meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from apps.web.tests.gateway.phone import endings, in_order, kinds, story
from apps.web.tests.gateway.processes import Killable, gateway_of
from apps.web.tests.gateway.sending import Sending
from apps.web.tests.gateway.world import World, world
from crabtalk_web.gateway import Store
from crabtalk_web.relay import Relay, RelayConfig
from crabtalk_web.stream import Envelope, File
from tests.daemon.served import calling, told

SEND = calling([("send_file", {"path": "note.txt"})])


@asynccontextmanager
async def killable(tmp_path: Path) -> AsyncIterator[tuple[World, Killable]]:
    """A world whose gateway is a process, and an agent that has something to send."""
    async with world(tmp_path, starts=False, hooks={"sending": Sending()}) as w:
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (w.daemon.home / "config").mkdir()
        (w.daemon.home / "config" / "web.toml").write_text(f'cwd = "{tmp_path / "work"}"\n')
        gateway = gateway_of(w.daemon.home, tmp_path / "gateway.log")
        await gateway.start()
        try:
            yield w, gateway
        finally:
            await gateway.kill()


async def becomes(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)


def journal(w: World) -> bytes:
    return b"".join(path.read_bytes() for path in Store(w.daemon.home).journal.glob("*.jsonl"))


def files(envelopes: list[Envelope]) -> list[File]:
    return [e.ev for e in envelopes if isinstance(e.ev, File)]


@pytest.mark.req("gateway.files.crash")
async def test_a_file_survives_a_gateway_that_dies_before_it_is_uploaded(tmp_path: Path) -> None:
    async with killable(tmp_path) as (w, gateway), w.daemon.client() as client:
        session = await w.phone.session()
        await told(client.stream("crab", "!say hello"))
        await w.phone.until_ended(session)
        await w.relay.__aexit__(None, None, None)
        await told(client.stream("crab", SEND))
        await becomes(lambda: b'"stage":"due"' in journal(w))
        await gateway.kill()
        config = RelayConfig(tmp_path / "relay", port=w.relay.port, durability="os")
        async with Relay(config):
            await gateway.start()
            await w.phone.until(session, lambda found: "file" in kinds(found))
            await told(client.stream("crab", "!say after"))
            is_over = "after"
            envelopes = await w.phone.until(session, lambda found: is_over in story(found[-2:]))
            (file,) = files(in_order(envelopes))
            assert await w.phone.download(session, file.ref) == b"the note"
            await gateway.kill()


@pytest.mark.req("gateway.files.crash")
@pytest.mark.slow
async def test_a_file_is_told_of_once_though_the_gateway_dies_when_it_is_uploaded(
    tmp_path: Path,
) -> None:
    async with killable(tmp_path) as (w, gateway), w.daemon.client() as client:
        session = await w.phone.session()
        await told(client.stream("crab", "!say hello"))
        await w.phone.until_ended(session)
        blobs = tmp_path / "relay" / "blobs"
        for number in range(1, 4):
            before = len(uploaded(blobs))
            await told(client.stream("crab", SEND))
            await becomes(partial(has_more, blobs, before))
            await gateway.kill()
            await gateway.start()
            envelopes = await w.phone.until(session, partial(has_files, number))
            assert len(files(envelopes)) == number
        await told(client.stream("crab", "!say after"))
        envelopes = in_order(await w.phone.until(session, lambda found: "after" in story(found)))
        assert len(files(envelopes)) == 3
        assert len({file.ref for file in files(envelopes)}) == 3


def has_more(blobs: Path, before: int) -> bool:
    return len(uploaded(blobs)) > before


def has_files(count: int, envelopes: list[Envelope]) -> bool:
    return len(files(envelopes)) >= count


def uploaded(blobs: Path) -> list[Path]:
    return [path for path in blobs.rglob("*") if path.is_file()]


@pytest.mark.req("gateway.files.crash")
async def test_what_was_sent_while_the_gateway_was_away_is_sent_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with (
        world(tmp_path, hooks={"sending": Sending()}) as w,
        w.daemon.client() as client,
    ):
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (tmp_path / "work" / "refused").write_bytes(b"not this one")
        session = await w.phone.session()
        await w.stop_gateway()
        await told(client.stream("crab", SEND))
        await told(client.stream("crab", calling([("send_file", {"path": "refused"})])))
        await w.start_gateway()
        await w.phone.until(session, lambda found: "file" in kinds(found))
        await told(client.stream("crab", "!say after"))
        envelopes = in_order(await w.phone.until(session, lambda found: "after" in story(found)))
        assert [file.name for file in files(envelopes)] == ["note.txt"]
        assert set(endings(envelopes)) == {"completed"}
