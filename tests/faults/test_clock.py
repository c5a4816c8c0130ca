"""Wall clocks that jump while a daemon runs, and between two runs of it.

`tests.faults.shifted_clock` shifts the wall clock of Python by an offset in a file; where
libfaketime is installed, all clock calls of the C library are shifted as well.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from crabtalk.client import Client, connect
from crabtalk.protocol import wire
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_program import CRABTALKD
from tests.daemon.in_process_daemon import collect_events, get_stream_end, wait_for_event
from tests.forked_programs import PIPE
from tests.model_server import PATIENCE, ROOT, ModelServer, model_server

pytestmark = pytest.mark.one_loop

YEAR = 365 * 86400
FUTURE, PAST = 30 * YEAR, -50 * YEAR
# The clock's offset when a daemon starts, and the offsets it jumps to while the daemon runs.
CLOCK_JUMPS = ((0, (0, FUTURE, PAST, 7200, 0)), (PAST, (FUTURE,)), (FUTURE, (PAST,)))
LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")


class DaemonClock:
    """Sets the clock of a daemon through a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.with_name("clock")
        self.set_offset(0)

    def set_offset(self, seconds: int) -> None:
        temporary = self._file.with_name("clock.new")
        temporary.write_text(self.render_offset(seconds))
        temporary.replace(self._file)

    def render_offset(self, seconds: int) -> str:
        return str(seconds)

    def daemon_command(self) -> tuple[str, ...]:
        return sys.executable, "-m", "tests.faults.shifted_clock", str(self._file)

    def daemon_environment(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}


class LibraryClock(DaemonClock):
    """Shifts the clock calls of the C library, with libfaketime."""

    def render_offset(self, seconds: int) -> str:
        return f"{seconds:+d}\n"

    def daemon_command(self) -> tuple[str, ...]:
        return str(CRABTALKD), "run"

    def daemon_environment(self) -> Mapping[str, str]:
        return {
            "LD_PRELOAD": find_faketime(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


def find_faketime() -> str:
    paths = [path for pattern in LIBRARIES for path in Path("/").glob(pattern[1:])]
    return str(paths[0]) if paths else ""


@asynccontextmanager
async def run_daemon(home: Path, clock: DaemonClock) -> AsyncIterator[Client]:
    words = (*clock.daemon_command(), "--home", str(home), "--tcp", "off")
    environment = {**os.environ, **clock.daemon_environment()}
    process = await asyncio.create_subprocess_exec(*words, stderr=PIPE, env=environment)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = (await process.stderr.readline()).decode()
        assert "is ready" in line, line + (await process.stderr.read()).decode()
        async with connect(home=home, reconnect_timeout=0) as client:
            yield client
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run_through_jumps(home: Path, clock: DaemonClock, model: ModelServer) -> None:
    prepare_home(home, model)
    replies = []
    for life, (start, jumps) in enumerate(CLOCK_JUMPS):
        clock.set_offset(start)
        async with run_daemon(home, clock) as client:
            for number, seconds in enumerate(jumps):
                word = f"w{life}{number}"
                stream = client.stream("crab", f"!say {word} \n!wait\n!say on")
                await wait_for_event(stream, wire.StreamChunk)
                await model.until_waiting()
                clock.set_offset(seconds)  # in mid-turn
                model.release()
                assert get_stream_end(await collect_events(stream)).error == ""
                replies += [f"{word} on"]
                note = f'{{"name": "n{life}{number}", "content": "the word is {word}"}}'
                turn = await client.send("crab", f"!tool remember {note}\n!then\n!say kept")
                assert turn.content == "kept"
                replies += ["kept"]
                await check_contents(client, replies)


async def check_contents(client: Client, replies: list[str]) -> None:
    """Messages, notes and search results are complete and in order, whatever the clock says."""
    page = await client.list_messages("crab", limit=1000)
    assert [message.id for message in page.messages] == list(range(len(page.messages)))
    contents = [m.content for m in page.messages if m.role == "assistant" and m.content]
    assert contents == replies
    (listed,) = (await client.list_conversations()).conversations
    assert listed.message_count == len(page.messages)
    stats = await client.get_stats()
    assert stats.uptime_secs < 60
    assert list(stats.problems) == []
    notes = await client.list_memory("crab")
    assert len(notes.entries) == len(replies) // 2
    word = replies[-2].split()[0]
    async with asyncio.timeout(PATIENCE):
        while not (await client.search_sessions(word)).hits:
            await asyncio.sleep(0.01)
    assert (await client.search_memory("crab", word)).hits


@pytest.mark.req("faults.clock")
async def test_a_clock_that_jumps_neither_loses_nor_reorders_nor_ends_anything(home: Path) -> None:
    async with model_server() as model:
        await run_through_jumps(home, DaemonClock(home), model)


@pytest.mark.req("faults.clock")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not find_faketime(), reason="libfaketime is not installed")
async def test_jumps_of_the_c_librarys_clock_do_no_harm_either(home: Path) -> None:
    async with model_server() as model:
        await run_through_jumps(home, LibraryClock(home), model)
