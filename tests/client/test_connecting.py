"""Many clients connecting at once: each gets in, or an error in time."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from crabtalk.client import CannotConnectError, connect
from crabtalk.transport import Listener, ListenOptions
from tests.scripted_server import ScriptedServer

CLIENT_COUNT = 200


@contextmanager
def fill_backlog(path: Path) -> Iterator[socket.socket]:
    """A listening socket with a full backlog, from which no connection is accepted."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))
        listening.listen(2)
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(path))
            except BlockingIOError:
                break
        yield listening


async def connect_and_ping(path: Path) -> None:
    async with connect(f"unix:{path}", connect_timeout=30) as client:
        await client.ping()


@pytest.mark.req("bounds.crowd.client")
async def test_a_client_that_finds_the_backlog_full_retries_until_there_is_room(
    tmp_path: Path,
) -> None:
    with fill_backlog(tmp_path / "s") as sock:
        crowd = [
            asyncio.ensure_future(connect_and_ping(tmp_path / "s")) for _ in range(CLIENT_COUNT)
        ]
        for _ in range(5):  # by then each has tried once
            await asyncio.sleep(0)
        assert not any(client.done() for client in crowd)
        listener = Listener(ScriptedServer())
        listener.open(sock, ListenOptions("unix"))
        await asyncio.gather(*crowd)
        assert listener.statistics().requests == CLIENT_COUNT
        await listener.close()


@pytest.mark.req("bounds.crowd.client")
@pytest.mark.clock
async def test_a_client_that_finds_no_room_in_time_gets_an_error(tmp_path: Path) -> None:
    start = asyncio.get_running_loop().time()
    with (
        fill_backlog(tmp_path / "s"),
        pytest.raises(CannotConnectError, match=r"too many are connecting; try again"),
    ):
        async with connect(f"unix:{tmp_path / 's'}", connect_timeout=0.3):
            pass
    assert asyncio.get_running_loop().time() - start < 5


async def test_a_client_cancelled_while_the_backlog_is_full_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    with fill_backlog(tmp_path / "s"):
        connecting = asyncio.ensure_future(connect_and_ping(tmp_path / "s"))
        for _ in range(5):
            await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
