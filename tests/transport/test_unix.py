"""Unix sockets: modes, stale files, deep homes, and the caller's identity."""

import multiprocessing
import os
import socket
import stat
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from crabtalk.protocol import wire
from crabtalk.transport import Endpoint, FramedConnection, ListenOptions, listen_unix, read_peer_uid
from crabtalk.transport.unix import MAX_SOCKET_PATH, connect_unix
from tests.scripted_server import RawPeer, ScriptedServer, make_ping, open_listener
from tests.transport.file_descriptors import raise_descriptor_limit


@pytest.mark.req("trust.uds.mode")
def test_the_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    with listen_unix(tmp_path / "s"):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


@pytest.mark.req("transport.stale")
def test_a_socket_without_a_process_is_replaced(tmp_path: Path) -> None:
    listen_unix(tmp_path / "s").close()
    assert (tmp_path / "s").is_socket()
    with listen_unix(tmp_path / "s") as sock, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(tmp_path / "s"))
        sock.accept()[0].close()


@pytest.mark.req("transport.stale")
def test_a_socket_with_a_live_process_is_left_alone(tmp_path: Path) -> None:
    with listen_unix(tmp_path / "s") as first:
        with pytest.raises(FileExistsError, match="another program answers"):
            listen_unix(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "s"))
            first.accept()[0].close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("precious")
    with pytest.raises(FileExistsError, match="not a socket"):
        listen_unix(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "precious"


def test_a_dangling_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="not a socket"):
        listen_unix(tmp_path / "s")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.req("bounds.crowd.backlog")
@pytest.mark.skipif(sys.platform != "linux", reason="other systems report the backlog differently")
def test_the_backlog_is_as_large_as_the_system_allows(tmp_path: Path) -> None:
    allowed = int(Path("/proc/sys/net/core/somaxconn").read_text())
    crowd = min(allowed, 2500)
    with ExitStack() as stack:
        stack.enter_context(raise_descriptor_limit(crowd + 100))
        stack.enter_context(listen_unix(tmp_path / "s"))
        for _ in range(crowd):
            stack.enter_context(connect_unix(tmp_path / "s"))


@pytest.mark.req("bounds.crowd.client")
async def test_a_full_backlog_is_not_taken_for_a_connection(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock, ExitStack() as stack:
        sock.bind(str(tmp_path / "s"))
        sock.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                stack.enter_context(connect_unix(tmp_path / "s"))
        with pytest.raises(BlockingIOError):
            await Endpoint(path=tmp_path / "s").connect(CollectingConnection())


@pytest.mark.req("transport.uds.path")
async def test_a_home_deeper_than_a_socket_address_can_be_works(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 6)
    deep.mkdir(parents=True)
    path = deep / "crabtalk.sock"
    assert len(os.fsencode(path)) > MAX_SOCKET_PATH
    async with open_listener(ScriptedServer(), path):
        connection = await Endpoint(path=path).connect(CollectingConnection())
        connection.write_now(bytes.fromhex("00000003f20100"))
        await connection.arrived.wait()
        assert wire.ServerMessage.FromString(connection.data[4:]).HasField("pong")
        connection.transport.close()
    assert stat.S_ISSOCK(path.stat().st_mode)


class CollectingConnection(FramedConnection):
    """Collects the data it receives."""

    def __init__(self) -> None:
        import asyncio

        from crabtalk.protocol import FrameDecoder

        super().__init__(FrameDecoder())
        self.data = b""
        self.arrived = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.set()


def test_the_kernel_knows_the_callers_user() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert read_peer_uid(ours) == os.geteuid()


def call_as_other_user(path: str, answer: "multiprocessing.connection.Connection") -> None:
    os.setuid(65534)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(bytes.fromhex("00000003f20100"))
        answer.send(sock.recv(65536))


@pytest.mark.req("trust.uds.same_user")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_a_real_other_user_is_refused_even_if_file_modes_allow_it() -> None:
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory() as open_directory:
        path = Path(open_directory) / "s"
        Path(open_directory).chmod(0o755)
        async with open_listener(
            ScriptedServer(), path, options=ListenOptions("unix", uid=os.geteuid())
        ):
            path.chmod(0o666)
            answer, child_end = multiprocessing.Pipe()
            child = multiprocessing.get_context("spawn").Process(
                target=call_as_other_user, args=(str(path), child_end)
            )
            await asyncio.to_thread(child.start)
            data = await asyncio.to_thread(answer.recv)
            await asyncio.to_thread(child.join)
            message = wire.ServerMessage.FromString(data[4:])
            assert message.error.code == 401
            assert "you are user 65534" in message.error.message
            peer = await RawPeer.connect_unix(path)
            peer.send(make_ping())
            assert (await peer.expect()).HasField("pong")
            await peer.close()
