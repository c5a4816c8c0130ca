"""Connecting while others do: a crowd is let in one after the other, and nobody waits for ever."""

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
    """A socket at which as many wait as may, and nobody lets them in."""
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
async def test_whoever_finds_no_room_at_the_door_comes_again_until_there_is(tmp_path: Path) -> None:
    with fill_backlog(tmp_path / "s") as sock:
        crowd = [
            asyncio.ensure_future(connect_and_ping(tmp_path / "s")) for _ in range(CLIENT_COUNT)
        ]
        for _ in range(5):  # each has knocked by then
            await asyncio.sleep(0)
        assert not any(one.done() for one in crowd)
        listener = Listener(ScriptedServer())
        listener.open(sock, ListenOptions("unix"))
        await asyncio.gather(*crowd)
        assert listener.statistics().requests == CLIENT_COUNT
        await listener.close()


@pytest.mark.req("bounds.crowd.client")
@pytest.mark.clock
async def test_whoever_finds_no_room_in_time_is_told_so(tmp_path: Path) -> None:
    begun = asyncio.get_running_loop().time()
    with (
        fill_backlog(tmp_path / "s"),
        pytest.raises(CannotConnectError, match=r"too many are connecting; try again"),
    ):
        async with connect(f"unix:{tmp_path / 's'}", connect_timeout=0.3):
            pass
    assert asyncio.get_running_loop().time() - begun < 5


async def test_whoever_is_cancelled_while_there_is_no_room_leaves_nothing_open(
    tmp_path: Path,
) -> None:
    with fill_backlog(tmp_path / "s"):
        coming = asyncio.ensure_future(connect_and_ping(tmp_path / "s"))
        for _ in range(5):
            await asyncio.sleep(0)
        coming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await coming
