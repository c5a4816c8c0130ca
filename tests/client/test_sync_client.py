"""SyncClient: the blocking calls, with a daemon in another process."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import crabtalk
from crabtalk.client import Client, ServerError, SyncClient, connect_sync
from crabtalk.client.errors import ConnectionClosedError, DaemonNotRunningError
from crabtalk.protocol import wire

SERVE = """
import asyncio, sys
from pathlib import Path
from tests.scripted_server import ScriptedServer, open_listener

async def main() -> None:
    server = ScriptedServer()
    server.release.set()
    async with open_listener(server, Path(sys.argv[1])):
        print("ready", flush=True)
        await server.until_ended("forever: cancelled")
        print("cancelled", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    path = tmp_path / "s"
    command = [sys.executable, "-c", SERVE, str(path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"unix:{path}", process
        process.kill()


@pytest.mark.req("client.sync")
def test_calls_and_streams_block(server: tuple[str, "subprocess.Popen[str]"]) -> None:
    with crabtalk.connect_sync(server[0]) as client:
        client.ping()
        assert client.hello().server_version == "scripted"
        assert client.send("crab", "hi").content == "hi"
        assert list(client.stream("crab", "count 1")) == [
            wire.StreamStart(agent="crab"),
            wire.StreamChunk(content="0"),
            wire.StreamEnd(agent="crab"),
        ]
        with pytest.raises(ServerError, match="list_agents"):
            client.list_agents()
        with pytest.raises(ServerError, match="no such thing"):
            list(client.stream("crab", "fail 1"))


@pytest.mark.req("client.stream.close_cancels")
def test_leaving_a_stream_early_cancels_the_run(
    server: tuple[str, "subprocess.Popen[str]"],
) -> None:
    address, process = server
    with connect_sync(address) as client:
        for _ in client.stream("crab", "forever"):
            break
        assert process.stdout is not None
        assert process.stdout.readline() == "cancelled\n"
        client.ping()


def test_a_missing_daemon_is_an_error_on_entry(home: Path) -> None:
    with pytest.raises(DaemonNotRunningError), connect_sync(home=home):
        pass


@pytest.mark.req("client.sync")
def test_it_has_every_public_method_of_the_client_with_its_arguments() -> None:
    public = {
        name: method
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_")
    }
    for name, method in public.items():
        facade = getattr(SyncClient, name)
        assert facade.__name__ == name
        assert facade.__doc__ == method.__doc__
        assert inspect.signature(facade, follow_wrapped=True).parameters.keys() >= {"self"}
    extra = {n for n, _ in inspect.getmembers(SyncClient, inspect.isfunction)} - set(public)
    assert {name for name in extra if not name.startswith("_")} == set()


def test_a_closed_client_says_so_and_its_streams_end_quietly(
    server: tuple[str, "subprocess.Popen[str]"],
) -> None:
    with connect_sync(server[0]) as client:
        events = client.stream("crab", "forever")
        next(events)
    events.close()
    with pytest.raises(ConnectionClosedError, match="this client is closed"):
        client.ping()


def test_a_daemon_that_was_restarted_is_found_by_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "s"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SERVE, str(path)]
    clients = connect_sync(f"unix:{path}")
    for round_number in range(2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if round_number == 0:
                client = clients.__enter__()
            client.ping()
            process.kill()
    clients.__exit__(None, None, None)
