"""A full disk and a read-only home, on a small file system that only the daemon uses."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError, connect
from tests.daemon.in_process_daemon import collect_events
from tests.faults.tmpfs_home import (
    TmpfsHome,
    is_possible,
    read_all_stderr,
    read_first_line,
    run_on_tmpfs,
)
from tests.model_server import ModelServer, model_server

pytestmark = [
    pytest.mark.one_loop,
    pytest.mark.skipif(not is_possible(), reason="no mount namespaces here: no disk of its own"),
]

FULL = "No space left on device"
READ_ONLY = "Read-only file system"


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as model:
        yield model


def config_command(model: ModelServer) -> str:
    """The shell command that writes the configuration."""
    lines = ["[[providers]]", 'name = "tests"', 'kind = "openai"', f'base_url = "{model.url}"']
    lines += ['api_key = "k"', 'models = ["scripted"]']
    return f"printf '%s\\n' {' '.join(repr(line) for line in lines)} > config.toml"


def list_files(disk: TmpfsHome) -> set[Path]:
    """All files but the logs and the search index, which is updated in the background."""
    paths = (path for path in disk.home.rglob("*") if path.is_file())
    return {path for path in paths if not {"logs", "index"} & set(path.parts)}


async def wait_until_ready(disk: TmpfsHome) -> None:
    line = await read_first_line(disk)
    assert "is ready" in line, line + await read_all_stderr(disk)


async def read_failure(client: Client, content: str, sender: str = "") -> str:
    """The error of a turn that never started, because it could not be stored."""
    with pytest.raises(ServerError) as caught:
        await collect_events(client.stream("crab", content, sender=sender))
    assert caught.value.code == 500
    return str(caught.value)


@pytest.mark.req("durability.storage_failure_told")
async def test_on_a_full_disk_every_refusal_says_so_and_nothing_is_half_written(
    home: Path, model: ModelServer
) -> None:
    async with run_on_tmpfs(home, config_command(model)) as disk:
        await wait_until_ready(disk)
        async with connect(home=disk.home, reconnect_timeout=0) as client:
            assert (await client.send("crab", "!say one")).content == "one"
            before = list_files(disk)
            disk.fill()
            request_count = model.request_count
            long = "x" * 8000  # more than is left of the block that a log ends in
            assert FULL in await read_failure(client, f"!say never\n{long}")
            assert FULL in await read_failure(client, f"!say never\n{long}", sender="another")
            for request in (
                client.send("crab", f"!say never\n{long}"),
                client.create_agent("owl", "You are owl."),
                client.update_agent("crab", {"description": "d" * 5000}),
                client.subscribe_event("tide", "crab"),
            ):
                with pytest.raises(ServerError, match=FULL) as caught:
                    await request
                assert caught.value.code == 500
            assert model.request_count == request_count
            await client.ping()
            page = await client.list_messages("crab")
            assert [message.content for message in page.messages] == ["!say one", "one"]
            assert [agent.name for agent in (await client.list_agents()).agents] == ["crab"]
            disk.clear()
            assert list_files(disk) == before
            assert (await client.send("crab", "!say two")).content == "two"
            await client.create_agent("owl", "You are owl.")
            page = await client.list_messages("crab")
            assert len(page.messages) == 4


@pytest.mark.req("faults.start.told")
@pytest.mark.parametrize("has_run", [False, True])
async def test_a_daemon_that_has_no_room_to_start_says_so_in_a_sentence(
    home: Path, has_run: bool
) -> None:
    setup = "mkdir -m 700 run && touch run/crabtalk.lock; " if has_run else ""
    fill = f"{setup}cat /dev/zero > filler 2>/dev/null || true"
    async with run_on_tmpfs(home, fill) as disk:
        stderr = await read_all_stderr(disk)
    assert disk.process.returncode == 1
    assert FULL in stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("crabtalkd: ")


@pytest.mark.req("faults.start.told")
@pytest.mark.parametrize("has_run", [False, True])
async def test_a_home_that_is_read_only_is_named_in_a_sentence(home: Path, has_run: bool) -> None:
    setup = "mkdir -m 700 run && touch run/crabtalk.lock && " if has_run else ""
    async with run_on_tmpfs(home, f'{setup}mount -o remount,ro "$0"') as disk:
        stderr = await read_all_stderr(disk)
    assert disk.process.returncode == 1
    assert READ_ONLY in stderr
    assert stderr.count("\n") == 1, stderr
    assert "choose another home with --home" in stderr


@pytest.mark.req("durability.storage_failure_told")
async def test_a_home_that_becomes_read_only_can_be_read_and_later_written_again(
    home: Path, model: ModelServer
) -> None:
    async with run_on_tmpfs(home, config_command(model)) as disk:
        await wait_until_ready(disk)
        async with connect(home=disk.home, reconnect_timeout=0) as client:
            assert (await client.send("crab", "!say one")).content == "one"
            await disk.make_read_only()
            request_count = model.request_count
            assert READ_ONLY in await read_failure(client, "!say never", sender="another")
            with pytest.raises(ServerError, match=READ_ONLY) as caught:
                await client.create_agent("owl", "You are owl.")
            assert caught.value.code == 500
            assert model.request_count == request_count
            page = await client.list_messages("crab")
            assert [message.content for message in page.messages] == ["!say one", "one"]
            await client.ping()
            await disk.make_writable()
            assert (await client.send("crab", "!say two", sender="another")).content == "two"
            await client.create_agent("owl", "You are owl.")
        disk.process.terminate()
        async with asyncio.timeout(20):
            assert await disk.process.wait() == 0
