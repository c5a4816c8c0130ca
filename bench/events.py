"""Events: a thousand subscriptions, ten thousand events a second, and a client that pings.

The daemon has a core to itself; the publishers, the pings and the model share the other. An event
without a subscription costs a request; one with a subscription costs a turn. Far fewer turns run in
a second: the other events wait, and when too many wait, events are refused.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from tests.daemon.event_publishers import measure_pings, publish_events
from tests.model_server import model_process

from .processes import compute_percentile, pin_to_core, read_rss
from .tables import BenchTable

SUBSCRIPTIONS = 1000
RATE = 10_000
SECONDS = 5
# As fast as possible: publishers wait for answers only when they are far ahead.
UNBOUNDED = 10_000_000


@contextmanager
def run_daemon(model_url: str) -> Iterator[tuple[Path, int]]:
    """Run a real daemon with a thousand subscriptions; yields its home and process id."""
    tables = (
        f'[[subscription]]\nid = {n}\nsource = "x{n}"\ntarget_agent = "crab"\n'
        for n in range(SUBSCRIPTIONS)
    )
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "home"
        (home / "events").mkdir(parents=True)
        (home / "events" / "subscriptions.toml").write_text("\n".join(tables))
        (home / "config.toml").write_text(f'[llm]\nbase_url = "{model_url}"\nmodel = "scripted"\n')
        crabtalkd = str(Path(sys.executable).with_name("crabtalkd"))
        command = [crabtalkd, "run", "--home", str(home), "--tcp", "off"]
        log = Path(scratch) / "log"
        with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
            try:
                while "ready" not in log.read_text():
                    assert process.poll() is None, log.read_text()
                yield home, process.pid
            finally:
                process.terminate()


async def measure_events(home: Path, pid: int, sources: list[str], rate: int) -> list[str]:
    is_over = asyncio.Event()
    pinging = asyncio.ensure_future(measure_pings(home, is_over))
    count = RATE * SECONDS
    answers, _, seconds = await publish_events(home, sources, rate=rate, count=count)
    is_over.set()
    pings = await pinging
    return [
        f"{count / seconds:,.0f}",
        f"{answers['accepted']:,}",
        f"{answers['503']:,}",
        f"{len(pings):,}",
        *(f"{compute_percentile(pings, share):.1f}" for share in (0.5, 0.99)),
        f"{max(pings):.1f}",
        f"{read_rss(pid):.0f}",
    ]


def run_benchmark() -> list[BenchTable]:
    table = BenchTable(
        f"{RATE * SECONDS:,} events, with {SUBSCRIPTIONS:,} subscriptions",
        [
            *("offered /s", "subscribed to", "answered /s", "accepted", "refused", "pings"),
            *("ping p50 ms", "p99 ms", "max ms", "RSS MB"),
        ],
        note="No ping went unanswered. Accepted events that are subscribed to run later.",
    )
    shares = {"none": 0, "1 in 10": 1, "all": 10}
    for rate in (RATE, UNBOUNDED):
        for name, share in shares.items():
            sources = [f"{'x' if n % 10 < share else 'y'}{n}" for n in range(SUBSCRIPTIONS)]
            with ExitStack() as stack:
                with pin_to_core(-1):
                    url, _ = stack.enter_context(model_process("--no-record"))
                with pin_to_core(0):
                    home, pid = stack.enter_context(run_daemon(url))
                stack.enter_context(pin_to_core(-1))
                cells = uvloop.run(measure_events(home, pid, sources, rate))
            table.add_row(f"{rate:,}" if rate == RATE else "any", name, *cells)
    return [table]
