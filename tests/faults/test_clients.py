"""Clients that stop, die or read slowly, as processes beside the daemon's process."""

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
# A turn that is too large for any buffer and does not end by itself.
ENDLESS = "!chunks 1000000 0"
PEAK_MB = 100


@dataclass
class ClientFaultHarness:
    home: Path
    model: ModelServer
    child: CrabtalkdProcess
    client: Client

    def start_listener(self, sender: str, content: str, *detach: str) -> ForkedProcess:
        environment = {"PYTHONPATH": str(ROOT)}
        return LISTENER.start(self.home, sender, content, *detach, stdout=PIPE, env=environment)

    async def check_others_answered(self) -> None:
        assert (await self.client.send("crab", "hello", sender="bo")).content == "heard: hello"

    async def wait_until_idle(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while (await self.client.get_stats()).runs:
                await self.check_others_answered()


@pytest.fixture
async def harness(home: Path) -> AsyncIterator[ClientFaultHarness]:
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
async def test_a_stopped_client_delays_no_other_and_learns_of_it_when_it_goes_on(
    harness: ClientFaultHarness,
) -> None:
    stopped = harness.start_listener("deaf", ENDLESS)
    try:
        assert await read_line(stopped) == "reading"
        stopped.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(PATIENCE):
            while not harness.model.hangups:
                await harness.check_others_answered()
        await harness.wait_until_idle()
        assert read_peak_mb(harness.child.pid) < PEAK_MB
        assert await read_conversation(harness.client, "crab", "deaf") == [("user", ENDLESS)]
        stopped.send_signal(signal.SIGCONT)
        assert await read_line(stopped) == "lost its connection"
    finally:
        with suppress(ProcessLookupError):
            stopped.kill()
        await stopped.communicate()


@pytest.mark.req("bounds.stalled_reader")
async def test_a_client_that_is_stopped_for_a_moment_misses_nothing(
    harness: ClientFaultHarness,
) -> None:
    stopped = harness.start_listener("slow", "!chunks 20000 0")
    assert await read_line(stopped) == "reading"
    stopped.send_signal(signal.SIGSTOP)
    for _ in range(5):
        await harness.check_others_answered()
    stopped.send_signal(signal.SIGCONT)
    assert await read_line(stopped) == "ended"
    await stopped.communicate()
    _, (_, text) = await read_conversation(harness.client, "crab", "slow")
    assert len(text.split()) == 20000


@pytest.mark.req("leave.cancels")
@pytest.mark.req("leave.detached")
async def test_a_killed_client_ends_its_turn_unless_the_turn_is_detached(
    harness: ClientFaultHarness,
) -> None:
    clients = {
        "cut": harness.start_listener("cut", "!say one \n!wait\n!say two"),
        "kept": harness.start_listener("kept", "!say one \n!wait\n!say two", "detach"),
    }
    for process in clients.values():
        assert await read_line(process) == "reading"
    await harness.model.until_waiting(2)
    for process in clients.values():
        process.kill()
        await process.communicate()
    await harness.model.until_hung_up()
    harness.model.release()
    await harness.wait_until_idle()
    assert [role for role, _ in await read_conversation(harness.client, "crab", "cut")] == ["user"]
    assert (await read_conversation(harness.client, "crab", "kept"))[1:] == [
        ("assistant", "one two")
    ]


@pytest.mark.req("feed.never_slows")
async def test_an_unread_feed_slows_no_turn_and_takes_bounded_memory(
    harness: ClientFaultHarness,
) -> None:
    async with (
        connect(home=harness.home, reconnect_timeout=0) as deaf,
        aclosing(deaf.subscribe_events()) as feed,
    ):
        await harness.check_others_answered()
        first = asyncio.ensure_future(anext(feed))
        async with asyncio.timeout(PATIENCE):
            while not first.done():
                await harness.check_others_answered()
        for _ in range(3):
            text = (await harness.client.send("crab", "!chunks 10000 0", sender="bo")).content
            assert len(text.split()) == 10000
        assert read_peak_mb(harness.child.pid) < PEAK_MB
        assert isinstance(await first, wire.AgentEventMsg)
