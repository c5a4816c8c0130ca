"""Files of agents are sent once, whatever becomes of the gateway meanwhile."""

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
    """A world whose gateway is a process, and an agent that has something to send."""
    async with open_world(tmp_path, starts=False, hooks={"sending": WebSendFileHook()}) as w:
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (w.daemon.home / "config").mkdir()
        (w.daemon.home / "config" / "web.toml").write_text(f'cwd = "{tmp_path / "work"}"\n')
        gateway = build_gateway_process(w.daemon.home, tmp_path / "gateway.log")
        await gateway.start()
        try:
            yield w, gateway
        finally:
            await gateway.kill()


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.001)


def read_journals(w: WebGatewayWorld) -> bytes:
    return b"".join(
        path.read_bytes() for path in WebFolder(w.daemon.home).journal_folder.glob("*.jsonl")
    )


def list_files(envelopes: list[Envelope]) -> list[FileEvent]:
    return [e.ev for e in envelopes if isinstance(e.ev, FileEvent)]


@pytest.mark.req("gateway.files.crash")
async def test_a_file_survives_a_gateway_that_dies_before_it_is_uploaded(tmp_path: Path) -> None:
    async with run_killable_gateway(tmp_path) as (w, gateway), w.daemon.client() as client:
        session = await w.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say hello"))
        await w.phone.wait_for_turns(session)
        await w.relay.__aexit__(None, None, None)
        await collect_events(client.stream("crab", SEND))
        await wait_until(lambda: b'"stage":"due"' in read_journals(w))
        await gateway.kill()
        config = RelayConfig(tmp_path / "relay", port=w.relay.port, durability="os")
        async with RelayServer(config):
            await gateway.start()
            await w.phone.wait_for_envelopes(
                session, lambda found: "file" in list_event_tags(found)
            )
            await collect_events(client.stream("crab", "!say after"))
            is_over = "after"
            envelopes = await w.phone.wait_for_envelopes(
                session, lambda found: is_over in format_envelopes(found[-2:])
            )
            (file,) = list_files(check_order(envelopes))
            assert await w.phone.download(session, file.ref) == b"the note"
            await gateway.kill()


@pytest.mark.req("gateway.files.crash")
@pytest.mark.slow
async def test_a_file_is_told_of_once_though_the_gateway_dies_when_it_is_uploaded(
    tmp_path: Path,
) -> None:
    async with run_killable_gateway(tmp_path) as (w, gateway), w.daemon.client() as client:
        session = await w.phone.wait_for_session()
        await collect_events(client.stream("crab", "!say hello"))
        await w.phone.wait_for_turns(session)
        blobs = tmp_path / "relay" / "blobs"
        for number in range(1, 4):
            before = len(list_uploaded(blobs))
            await collect_events(client.stream("crab", SEND))
            await wait_until(partial(has_more, blobs, before))
            await gateway.kill()
            await gateway.start()
            envelopes = await w.phone.wait_for_envelopes(session, partial(has_files, number))
            assert len(list_files(envelopes)) == number
        await collect_events(client.stream("crab", "!say after"))
        envelopes = check_order(
            await w.phone.wait_for_envelopes(
                session, lambda found: "after" in format_envelopes(found)
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
async def test_what_was_sent_while_the_gateway_was_away_is_sent_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with (
        open_world(tmp_path, hooks={"sending": WebSendFileHook()}) as w,
        w.daemon.client() as client,
    ):
        (tmp_path / "work" / "note.txt").write_bytes(b"the note")
        (tmp_path / "work" / "refused").write_bytes(b"not this one")
        session = await w.phone.wait_for_session()
        await w.stop_gateway()
        await collect_events(client.stream("crab", SEND))
        await collect_events(
            client.stream("crab", script_tool_calls([("send_file", {"path": "refused"})]))
        )
        await w.start_gateway()
        await w.phone.wait_for_envelopes(session, lambda found: "file" in list_event_tags(found))
        await collect_events(client.stream("crab", "!say after"))
        envelopes = check_order(
            await w.phone.wait_for_envelopes(
                session, lambda found: "after" in format_envelopes(found)
            )
        )
        assert [file.name for file in list_files(envelopes)] == ["note.txt"]
        assert set(list_turn_statuses(envelopes)) == {"completed"}
