"""Clients that stop, die or read slowly, as processes beside a daemon that is one."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from crabtalk.protocol import wire
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.daemon.in_process_daemon import read_conversation
from tests.faults.memory_usage import read_peak_mb
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.model_server import PATIENCE, ROOT, ModelServer, model_server

pytestmark = pytest.mark.one_loop

LISTENER = ForkedProgram(
    ROOT / "tests" / "faults" / "client_process.py", "tests.faults.client_process:main"
)
# A turn that nobody could take in at once, and none that ends by itself.
ENDLESS = "!chunks 1000000 0"
PEAK_MB = 100


@dataclass
class ClientFaultHarness:
    home: Path
    model: ModelServer
    child: CrabtalkdProcess
    client: Client

    def start_listener(self, sender: str, said: str, *detach: str) -> ForkedProcess:
        environment = {"PYTHONPATH": str(ROOT)}
        return LISTENER.start(self.home, sender, said, *detach, stdout=PIPE, env=environment)

    async def check_others_answered(self) -> None:
        assert (await self.client.send("crab", "hello", sender="bo")).content == "heard: hello"

    async def wait_until_idle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await self.client.get_stats()).runs:
                await self.check_others_answered()


@pytest.fixture
async def place(home: Path) -> AsyncIterator[ClientFaultHarness]:
    async with model_server(is_recording=False) as model:
        prepare_home(home, model)
        with (home / "config.toml").open("a") as config:
            config.write("[limits]\nstall_timeout = 1\n")
        child = CrabtalkdProcess(home)
        try:
            await child.start()
            async with connect(home=home, reconnect_timeout=0) as client:
                yield ClientFaultHarness(home, model, child, client)
        finally:
            await child.kill()


async def read_line(process: ForkedProcess) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return (await process.stdout.readline()).decode().strip()


@pytest.mark.req("bounds.stalled_reader")
async def test_a_client_that_is_stopped_delays_nobody_and_is_told_when_it_goes_on(
    place: ClientFaultHarness,
) -> None:
    stopped = place.start_listener("deaf", ENDLESS)
    try:
        assert await read_line(stopped) == "reading"
        stopped.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE):
            while not place.model.hangups:
                await place.check_others_answered()
        await place.wait_until_idle()
        assert read_peak_mb(place.child.pid) < PEAK_MB
        assert await read_conversation(place.client, "crab", "deaf") == [("user", ENDLESS)]
        stopped.send_signal(signal.SIGCONT)
        assert await read_line(stopped) == "lost its connection"
    finally:
        with suppress(ProcessLookupError):
            stopped.kill()
        await stopped.communicate()


@pytest.mark.req("bounds.stalled_reader")
async def test_a_client_that_is_stopped_for_a_moment_misses_nothing(
    place: ClientFaultHarness,
) -> None:
    stopped = place.start_listener("slow", "!chunks 20000 0")
    assert await read_line(stopped) == "reading"
    stopped.send_signal(signal.SIGSTOP)
    for _ in range(5):
        await place.check_others_answered()
    stopped.send_signal(signal.SIGCONT)
    assert await read_line(stopped) == "ended"
    await stopped.communicate()
    _, (_, text) = await read_conversation(place.client, "crab", "slow")
    assert len(text.split()) == 20000


@pytest.mark.req("leave.cancels")
@pytest.mark.req("leave.detached")
async def test_a_client_that_is_killed_takes_its_turn_along_unless_it_was_to_outlive_it(
    place: ClientFaultHarness,
) -> None:
    clients = {
        "cut": place.start_listener("cut", "!say one \n!wait\n!say two"),
        "kept": place.start_listener("kept", "!say one \n!wait\n!say two", "detach"),
    }
    for process in clients.values():
        assert await read_line(process) == "reading"
    await place.model.until_waiting(2)
    for process in clients.values():
        process.kill()
        await process.communicate()
    await place.model.until_hung_up()
    place.model.release()
    await place.wait_until_idle()
    assert [role for role, _ in await read_conversation(place.client, "crab", "cut")] == ["user"]
    assert (await read_conversation(place.client, "crab", "kept"))[1:] == [("assistant", "one two")]


@pytest.mark.req("feed.never_slows")
async def test_a_feed_that_nobody_reads_slows_no_turn_and_holds_a_bounded_part(
    place: ClientFaultHarness,
) -> None:
    async with (
        connect(home=place.home, reconnect_timeout=0) as deaf,
        aclosing(deaf.subscribe_events()) as feed,
    ):
        await place.check_others_answered()
        first = asyncio.ensure_future(anext(feed))
        async with asyncio.timeout(PATIENCE):
            while not first.done():
                await place.check_others_answered()
        for _ in range(3):
            text = (await place.client.send("crab", "!chunks 10000 0", sender="bo")).content
            assert len(text.split()) == 10000
        assert read_peak_mb(place.child.pid) < PEAK_MB
        assert isinstance(await first, wire.AgentEventMsg)
