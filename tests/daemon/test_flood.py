"""A thousand subscriptions, and more events than can be run: other clients get answers, and no
event goes missing. `python -m bench events` measures the same for longer."""

import asyncio
from pathlib import Path

import pytest

from crabtalk.client import connect
from tests.crash.launched_daemon import prepare_home
from tests.daemon.crabtalkd_process import CrabtalkdProcess
from tests.daemon.event_publishers import publish_events
from tests.daemon.in_process_daemon import PATIENCE, wait_with_timeout
from tests.hostile.attacked_daemon import PingMonitor
from tests.model_server import ModelServer, model_server

pytestmark = pytest.mark.one_loop

SUBSCRIPTIONS = 1000
# Runs that may wait. Few, so that all of them can be run in the end.
WAITING = 300
EVENTS = 15_000
RATE = 10_000
# Maximum CPU time of the daemon between a ping and its answer. The wall time depends on what else
# runs beside the tests; the benchmark measures it.
BLOCKED = 0.1
RSS_MB = 120


def write_subscriptions(home: Path) -> None:
    """Write a thousand subscriptions, each to a source of its own, into the file."""
    tables = (
        f'[[subscription]]\nid = {n}\nsource = "x{n}"\ntarget_agent = "{("crab", "owl")[n % 2]}"\n'
        for n in range(SUBSCRIPTIONS)
    )
    (home / "events").mkdir()
    (home / "events" / "subscriptions.toml").write_text("\n".join(tables))


def write_limit(home: Path) -> None:
    path = home / "config.toml"
    path.write_text(f"{path.read_text()}[limits]\nevents_waiting = {WAITING}\n")


def get_peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


async def publish_flood(
    home: Path, child: CrabtalkdProcess, sources: list[str]
) -> tuple[dict[str, int], set[str]]:
    """Publish events. Returns answers and errors; checks that pings are answered quickly."""
    monitor = PingMonitor(child.pid)
    async with connect(home=home) as client:
        pinging = asyncio.ensure_future(monitor.ping(client))
        try:
            answers, reasons, _ = await publish_events(home, sources, rate=RATE, count=EVENTS)
        finally:
            monitor.is_over.set()
            await wait_with_timeout(pinging)
    monitor.check(BLOCKED)
    assert get_peak_mb(child.pid) < RSS_MB
    assert sum(answers.values()) == EVENTS
    return dict(answers), reasons


@pytest.mark.req("events.flood")
@pytest.mark.req("events.counted")
@pytest.mark.clock
async def test_every_event_of_a_flood_is_run_or_refused_and_counted_and_no_ping_is_lost(
    home: Path,
) -> None:
    async with model_server(is_recording=False) as model:
        prepare_home(home, model)
        write_subscriptions(home)
        write_limit(home)
        child = CrabtalkdProcess(home)
        try:
            await child.start()
            sources = [f"x{n}" for n in range(SUBSCRIPTIONS)]
            answers, reasons = await publish_flood(home, child, sources)
            assert set(answers) == {"accepted", "503"}
            assert answers["accepted"] > WAITING
            assert all("waiting already; publish it later" in reason for reason in reasons)
            await run_to_the_end(home, model, answers["accepted"])
            async with connect(home=home) as client:
                assert len((await client.list_subscriptions()).subscriptions) == SUBSCRIPTIONS
                (problem,) = (await client.get_stats()).problems
            assert problem.startswith(f"of the events, {answers['503']} were refused, because")
        finally:
            await child.kill()


async def run_to_the_end(home: Path, model: ModelServer, accepted: int) -> None:
    """Wait until exactly the accepted events are run and stored, each with its answer."""

    async def count_messages() -> int:
        rows = (await client.list_conversations()).conversations
        return sum(row.message_count for row in rows if row.sender.startswith("event:x"))

    await model.until_asked(accepted)
    async with asyncio.timeout(PATIENCE), connect(home=home) as client:
        while await count_messages() < 2 * accepted:
            await asyncio.sleep(0.01)
        assert await count_messages() == 2 * accepted
    assert model.request_count == accepted


@pytest.mark.req("events.flood")
@pytest.mark.clock
async def test_events_without_subscribers_cost_nothing(home: Path) -> None:
    async with model_server(is_recording=False) as model:
        prepare_home(home, model)
        write_subscriptions(home)
        child = CrabtalkdProcess(home)
        try:
            await child.start()
            answers, _ = await publish_flood(home, child, [f"y{n}" for n in range(1000)])
            assert answers == {"accepted": EVENTS}
            assert model.request_count == 0
            async with connect(home=home) as client:
                assert list((await client.get_stats()).problems) == []
        finally:
            await child.kill()
