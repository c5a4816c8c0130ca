"""More at once than there is room for: those let in are answered, the others told."""

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
# Open files of a daemon, of which all but 44 are for itself and for callers at its doors: a caller
# takes one, and a turn two.
MAX_FILES = 300
CONNECTION_ROOM = 14


@pytest.mark.req("bounds.crowd.backlog")
async def test_a_crowd_that_comes_while_nobody_is_let_in_is_answered(tmp_path: Path) -> None:
    async def come() -> None:
        async with connect(home=fired_at.home, connect_timeout=PATIENCE) as client:
            await client.ping()

    with raise_descriptor_limit(CROWD + 500):
        async with attack_target(tmp_path) as fired_at:
            fired_at.send_signal(signal.SIGSTOP)
            await fired_at.wait_until_stopped()
            crowd = [asyncio.ensure_future(come()) for _ in range(CROWD)]
            for _ in range(5):  # each has knocked by then
                await asyncio.sleep(0)
            fired_at.send_signal(signal.SIGCONT)
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*crowd)


class LimitedDaemon:
    """crabtalkd with few files, and a model that waits until it is told to go on."""

    def __init__(self, home: Path, model: ModelServer) -> None:
        self.model = model
        self._socket = RunFiles.for_home(home).socket_path

    async def start_turn(self, sender: str, detach: bool = False) -> tuple[RawPeer, str]:
        """Somebody who begins a turn; and what was said against it."""
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
            _, said = await process.communicate()
        assert b"open files" not in said


async def read_until_end(peer: RawPeer) -> str:
    """What the agent said until the turn was over."""
    said = ""
    while not (event := (await peer.expect()).stream).HasField("end"):
        said += event.chunk.content
    assert event.end.error == ""
    await peer.close()
    return said


@pytest.mark.req("bounds.descriptors")
async def test_everybody_who_is_let_in_is_answered_however_few_files_may_be_open(
    tmp_path: Path,
) -> None:
    async with run_limited_daemon(tmp_path, MAX_FILES) as daemon:
        came = [await daemon.start_turn(f"s{n}") for n in range(150)]
        refused = {sentence for _, sentence in came if sentence}
        assert refused == {
            f"all {CONNECTION_ROOM} connections are taken; close one or try again later"
        }
        inside = [peer for peer, sentence in came if not sentence]
        assert len(inside) == CONNECTION_ROOM
        await daemon.model.until_waiting(CONNECTION_ROOM)
        daemon.model.release()
        assert [await read_until_end(peer) for peer in inside] == ["done"] * CONNECTION_ROOM


@pytest.mark.req("bounds.descriptors")
async def test_turns_without_a_caller_take_no_more_files_than_there_are(tmp_path: Path) -> None:
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
