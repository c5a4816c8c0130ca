"""The cost of a message key, in the client and in the daemon.

    python -m bench client [--turns N]

Turns with and without a key alternate, in conversations of their own, so that other load on the
machine affects both alike. A fresh client asks once per connection whether the daemon knows keys;
the second row of each table shows that.
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

import uvloop

from crabtalk.client import Client, connect
from crabtalk.protocol import wire
from tests.model_server import model_process

from .accepted_turns import TurnTimes, elapsed_ms
from .load_generator import run_daemon
from .processes import compute_percentile, pin_to_core, read_rss
from .tables import BenchTable

SCRIPT = "!say good day to you"
BURST = "!chunks 5000 0"
SIDES = {"without a key": 0.0, "with a key": 30.0}  # reconnect timeout in seconds; 0 means no keys


async def time_turn(client: Client, sender: str, script: str, times: TurnTimes) -> float:
    """Run a turn and return its milliseconds."""
    start = time.perf_counter()
    has_spoken = False
    async with aclosing(client.stream("crab", script, sender=sender)) as events:
        async for event in events:
            match event:
                case wire.StreamStart():
                    times.starts.append(elapsed_ms(start))
                case wire.StreamChunk() if not has_spoken:
                    has_spoken = True
                    times.first_words.append(elapsed_ms(start))
                case wire.StreamEnd():
                    assert not event.error, event.error
    return elapsed_ms(start)


async def measure_turns(
    home: Path, turns: int
) -> dict[str, dict[str, tuple[TurnTimes, list[float]]]]:
    results: dict[str, dict[str, tuple[TurnTimes, list[float]]]] = {}
    clients = {name: connect(home=home, reconnect_timeout=SIDES[name]) for name in SIDES}
    for client in clients.values():
        await time_turn(client, "warm", SCRIPT, TurnTimes())
    for number in range(turns):
        for name in list(SIDES)[:: 1 if number % 2 else -1]:
            for what, script in (("a short answer", SCRIPT), ("5,000 chunks", BURST)):
                if what != "a short answer" and number % 10:
                    continue
                times, totals = results.setdefault(what, {}).setdefault(name, (TurnTimes(), []))
                totals.append(
                    await time_turn(clients[name], f"{name} {number % 20}", script, times)
                )
            fresh = connect(home=home, reconnect_timeout=SIDES[name])
            async with fresh:
                what = "a short answer, fresh client"
                times, totals = results.setdefault(what, {}).setdefault(name, (TurnTimes(), []))
                totals.append(await time_turn(fresh, f"{name} {number % 20}", SCRIPT, times))
    for client in clients.values():
        await client.__aexit__(None, None, None)
    await asyncio.sleep(0)
    return results


def run_benchmark(arguments: list[str]) -> list[BenchTable]:
    parser = argparse.ArgumentParser("python -m bench client")
    parser.add_argument("--turns", type=int, default=400)
    turns = parser.parse_args(arguments).turns
    with tempfile.TemporaryDirectory() as scratch:
        with pin_to_core(-1):
            model = model_process()
            url, _ = model.__enter__()
        with run_daemon("now", Path(scratch) / "home", url) as target, pin_to_core(-1):
            before = read_rss(target.pid)
            results = uvloop.run(measure_turns(target.home, turns))
            after = read_rss(target.pid)
        model.__exit__(None, None, None)
    table = BenchTable(
        f"What a key adds to a turn: {turns} of each, flushed",
        ["", "", "start p50 ms", "p99", "first word p50 ms", "p99", "turn p50 ms", "p99"],
        note=f"The daemon had {before:.1f} MB before, and {after:.1f} MB after all turns.",
    )
    for what, sides in results.items():
        for name in SIDES:
            times, totals = sides[name]
            cells = [
                f"{compute_percentile(values, share):.2f}"
                for values in (times.starts, times.first_words, totals)
                for share in (0.5, 0.99)
            ]
            table.add_row(what, name, *cells)
    return [table]
