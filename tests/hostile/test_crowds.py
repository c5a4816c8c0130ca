"""More connections than allowed: accepted ones get answers, the others a clear refusal."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import connect
from crabtalk.protocol import wire
from crabtalk.transport import RunFiles
from tests.daemon.crabtalkd_program import CRABTALKD
from tests.daemon.in_process_daemon import PATIENCE
from tests.forked_programs import PIPE
from tests.hostile.attacked_daemon import attack_target, prepare_home
from tests.model_server import ModelServer, model_server
from tests.scripted_server import RawPeer
from tests.transport.file_descriptors import raise_descriptor_limit

pytestmark = pytest.mark.one_loop

CROWD = 2500
# Open files of a daemon. 256 are for itself and for waiting connections; of the other 44, a
# connection takes one and a turn two.
MAX_FILES = 300
CONNECTION_ROOM = 14


@pytest.mark.req("bounds.crowd.backlog")
async def test_clients_that_connect_while_the_daemon_is_suspended_are_answered(
    tmp_path: Path,
) -> None:
    async def ping_once() -> None:
        async with connect(home=attacked.home, connect_timeout=PATIENCE) as client:
            await client.ping()

    with raise_descriptor_limit(CROWD + 500):
        async with attack_target(tmp_path) as attacked:
            attacked.send_signal(signal.SIGSTOP)
            await attacked.wait_until_stopped()
            crowd = [asyncio.ensure_future(ping_once()) for _ in range(CROWD)]
            for _ in range(5):  # all have begun to connect by then
                await asyncio.sleep(0)
            attacked.send_signal(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*crowd)


class LimitedDaemon:
    """crabtalkd with a low file limit, and a model that waits until `release`."""

    def __init__(self, home: Path, model: ModelServer) -> None:
        self.model = model
        self._socket = RunFiles.for_home(home).socket_path

    async def start_turn(self, sender: str, detach: bool = False) -> tuple[RawPeer, str]:
        """Start a turn. Returns the connection and the refusal, if any."""
        peer = await RawPeer.connect_unix(self._socket)
        request = wire.StreamMsg(agent="crab", content="!wait\n!say done", sender=sender)
        if detach:
            request.detach = True
        peer.send(wire.ClientMessage(stream=request))
        answer = await peer.expect()
        if answer.HasField("error"):
            assert answer.error.code == 503
            await peer.close()
        return peer, answer.error.message


@asynccontextmanager
async def run_limited_daemon(around: Path, files: int) -> AsyncIterator[LimitedDaemon]:
    async with model_server(is_recording=False) as model:
        prepare_home(around, model)
        home = around / "home"
        command = f"ulimit -n {files}; exec {CRABTALKD} run --home {home} --tcp off"
        process = await asyncio.create_subprocess_shell(command, stderr=PIPE)
        assert process.stderr is not None
        try:
            async with asyncio.timeout(PATIENCE):
                assert b"is ready" in await process.stderr.readline()
                assert (
                    f"room for {CONNECTION_ROOM} connections".encode()
                    in await process.stderr.readline()
                )
                yield LimitedDaemon(home, model)
        finally:
            process.terminate()
            _, stderr = await process.communicate()
        assert b"open files" not in stderr


async def read_until_end(peer: RawPeer) -> str:
    """The agent's text up to the end of the turn."""
    text = ""
    while not (event := (await peer.expect()).stream).HasField("end"):
        text += event.chunk.content
    assert event.end.error == ""
    await peer.close()
    return text


@pytest.mark.req("bounds.descriptors")
async def test_every_accepted_connection_is_answered_despite_a_low_file_limit(
    tmp_path: Path,
) -> None:
    async with run_limited_daemon(tmp_path, MAX_FILES) as daemon:
        connections = [await daemon.start_turn(f"s{n}") for n in range(150)]
        refused = {sentence for _, sentence in connections if sentence}
        assert refused == {
            f"all {CONNECTION_ROOM} connections are taken; close one or try again later"
        }
        accepted = [peer for peer, sentence in connections if not sentence]
        assert len(accepted) == CONNECTION_ROOM
        await daemon.model.until_waiting(CONNECTION_ROOM)
        daemon.model.release()
        assert [await read_until_end(peer) for peer in accepted] == ["done"] * CONNECTION_ROOM


@pytest.mark.req("bounds.descriptors")
async def test_detached_turns_stay_within_the_file_limit(tmp_path: Path) -> None:
    async with run_limited_daemon(tmp_path, MAX_FILES) as daemon:
        sentences = []
        for number in range(150):
            peer, sentence = await daemon.start_turn(f"s{number}", detach=True)
            sentences.append(sentence)
            await peer.close()
        assert sentences.count("") == CONNECTION_ROOM
        assert set(sentences[CONNECTION_ROOM:]) == {
            f"{CONNECTION_ROOM} turns are running or waiting; try again later"
        }
        await daemon.model.until_waiting(CONNECTION_ROOM)
        daemon.model.release()
        while True:
            peer, sentence = await daemon.start_turn("later")
            if not sentence:
                break
        await daemon.model.until_waiting(1)
        daemon.model.release()
        assert await read_until_end(peer) == "done"
