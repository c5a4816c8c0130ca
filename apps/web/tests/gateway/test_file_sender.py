"""Files of agents are sent once, whatever happens to the gateway meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from apps.web.tests.gateway.device_client import (
    check_order,
    format_envelopes,
    list_event_tags,
    list_turn_statuses,
)
from apps.web.tests.gateway.killable_process import KillableProcess, build_gateway_process
from apps.web.tests.gateway.send_file_tool import WebSendFileHook
from apps.web.tests.gateway.web_gateway_world import WebGatewayWorld, open_world
from crabtalk_web.gateway import WebFolder
from crabtalk_web.relay import RelayConfig, RelayServer
from crabtalk_web.stream import Envelope, FileEvent
from tests.daemon.in_process_daemon import collect_events, script_tool_calls

SEND = script_tool_calls([("send_file", {"path": "note.txt"})])


@asynccontextmanager
async def run_killable_gateway(
    tmp_path: Path,
) -> AsyncIterator[tuple[WebGatewayWorld, KillableProcess]]:
    """A setup whose gateway is a process, and an agent with a file to send."""
    async with open_world(tmp_path, starts=False, hooks={"sending": WebSendFileHook()}) as world:
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (world.daemon.home / "config").mkdir()
        (world.daemon.home / "config" / "web.toml").write_text(f'cwd = "{tmp_path / "work"}"\n')
        gateway = build_gateway_process(world.daemon.home, tmp_path / "gateway.log")
        await gateway.start()
        try:
            yield world, gateway
        finally:
            await gateway.kill()


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)


def read_journals(world: WebGatewayWorld) -> bytes:
    return b"".join(
        path.read_bytes() for path in WebFolder(world.daemon.home).journal_folder.glob("*.jsonl")
    )


def list_files(envelopes: list[Envelope]) -> list[FileEvent]:
    return [e.ev for e in envelopes if isinstance(e.ev, FileEvent)]


@pytest.mark.req("gateway.files.crash")
async def test_a_file_survives_a_gateway_that_dies_before_it_is_uploaded(tmp_path: Path) -> None:
    async with run_killable_gateway(tmp_path) as (world, gateway), world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say hello"))
        await world.phone.wait_for_turns(session)
        await world.relay.__aexit__(None, None, None)
        await collect_events(client.stream("crab", SEND))
        await wait_until(lambda: b'"stage":"due"' in read_journals(world))
        await gateway.kill()
        config = RelayConfig(tmp_path / "relay", port=world.relay.port, durability="os")
        async with RelayServer(config):
            await gateway.start()
            await world.phone.wait_for_envelopes(
                session, lambda envelopes: "file" in list_event_tags(envelopes)
            )
            await collect_events(client.stream("crab", "!say after"))
            is_over = "after"
            envelopes = await world.phone.wait_for_envelopes(
                session, lambda envelopes: is_over in format_envelopes(envelopes[-2:])
            )
            (file,) = list_files(check_order(envelopes))
            assert await world.phone.download(session, file.ref) == b"the note"
            await gateway.kill()


@pytest.mark.req("gateway.files.crash")
@pytest.mark.slow
async def test_a_file_is_shown_once_though_the_gateway_dies_during_upload(
    tmp_path: Path,
) -> None:
    async with run_killable_gateway(tmp_path) as (world, gateway), world.daemon.client() as client:
        session = await world.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say hello"))
        await world.phone.wait_for_turns(session)
        blobs = tmp_path / "relay" / "blobs"
        for number in range(1, 4):
            before = len(list_uploaded(blobs))
            await collect_events(client.stream("crab", SEND))
            await wait_until(partial(has_more, blobs, before))
            await gateway.kill()
            await gateway.start()
            envelopes = await world.phone.wait_for_envelopes(session, partial(has_files, number))
            assert len(list_files(envelopes)) == number
        await collect_events(client.stream("crab", "!say after"))
        envelopes = check_order(
            await world.phone.wait_for_envelopes(
                session, lambda envelopes: "after" in format_envelopes(envelopes)
            )
        )
        assert len(list_files(envelopes)) == 3
        assert len({file.ref for file in list_files(envelopes)}) == 3


def has_more(blobs: Path, before: int) -> bool:
    return len(list_uploaded(blobs)) > before


def has_files(count: int, envelopes: list[Envelope]) -> bool:
    return len(list_files(envelopes)) >= count


def list_uploaded(blobs: Path) -> list[Path]:
    return [path for path in blobs.rglob("*") if path.is_file()]


@pytest.mark.req("gateway.files.crash")
async def test_a_file_sent_during_a_gateway_outage_is_sent_afterwards(
    tmp_path: Path,
) -> None:
    async with (
        open_world(tmp_path, hooks={"sending": WebSendFileHook()}) as world,
        world.daemon.client() as client,
    ):
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (tmp_path / "work" / "refused").write_bytes(b"not this one")
        session = await world.phone.wait_for_session()
        await world.stop_gateway()
        await collect_events(client.stream("crab", SEND))
        await collect_events(
            client.stream("crab", script_tool_calls([("send_file", {"path": "refused"})]))
        )
        await world.start_gateway()
        await world.phone.wait_for_envelopes(
            session, lambda envelopes: "file" in list_event_tags(envelopes)
        )
        await collect_events(client.stream("crab", "!say after"))
        envelopes = check_order(
            await world.phone.wait_for_envelopes(
                session, lambda envelopes: "after" in format_envelopes(envelopes)
            )
        )
        assert [file.name for file in list_files(envelopes)] == ["note.txt"]
        assert set(list_turn_statuses(envelopes)) == {"completed"}
