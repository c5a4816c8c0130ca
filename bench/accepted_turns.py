"""The cost of storing a turn, or a steer, before it is acknowledged.

    python -m bench accepted [--conversations N] [--rounds N] [--only WORK] [--against DIR]

A thousand conversations, some of them at a time. `--against` also measures a daemon from the
sources in DIR, alternating with this one. Both flush to disk.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from crabtalk.client import Client, ServerError, connect
from crabtalk.protocol import wire
from tests.model_server import model_process

from .load_generator import BenchDaemon, run_daemon
from .processes import compute_percentile, pin_to_core
from .tables import BenchTable

# Conversations that are busy at once, and turns requested in each without waiting.
CONCURRENCY = 64
TURNS_IN_LINE = 4


@dataclass
class TurnTimes:
    """Milliseconds since the request."""

    starts: list[float] = field(default_factory=list)
    first_words: list[float] = field(default_factory=list)  # the first of each turn
    steers: list[float] = field(default_factory=list)  # to their pong
    turns: int = 0
    seconds: float = 0.0


def elapsed_ms(start: float) -> float:
    return (time.perf_counter() - start) * 1000


async def run_turn(client: Client, sender: str, script: str, times: TurnTimes) -> None:
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
    times.turns += 1


async def run_alone(client: Client, sender: str, times: TurnTimes) -> None:
    await run_turn(client, sender, "!say good day to you", times)


async def run_in_line(client: Client, sender: str, times: TurnTimes) -> None:
    turns = [run_turn(client, sender, "!say me too", times) for _ in range(TURNS_IN_LINE)]
    await asyncio.gather(*turns)


async def run_steered(client: Client, sender: str, times: TurnTimes) -> None:
    """Send two steers while the model answers."""
    running = asyncio.ensure_future(run_turn(client, sender, "!chunks 20 200", times))
    await asyncio.sleep(0.05)
    for _ in range(2):
        start = time.perf_counter()
        try:
            await client.steer_session("crab", "!say as you like", sender=sender)
        except ServerError:
            break  # the turn has ended
        times.steers.append(elapsed_ms(start))
    await running


WORK = {"alone": run_alone, "in line": run_in_line, "steered": run_steered}


async def run_work(target: BenchDaemon, what: str, conversations: int, times: TurnTimes) -> None:
    waiting = iter(range(conversations))
    async with connect(home=target.home) as client:

        async def work() -> None:
            for number in waiting:
                await WORK[what](client, f"s{number}", times)

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        times.seconds += time.perf_counter() - start


def start_daemons(stack: ExitStack, scratch: Path, against: Path | None) -> Iterator[BenchDaemon]:
    with pin_to_core(-1):
        url, _ = stack.enter_context(model_process())
    if against is not None:
        yield stack.enter_context(run_daemon("before", scratch / "before", url, against))
    yield stack.enter_context(run_daemon("now", scratch / "now", url))


def run_benchmark(arguments: list[str]) -> list[BenchTable]:
    parser = argparse.ArgumentParser("python -m bench accepted")
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", choices=list(WORK), action="append")
    options = parser.parse_args(arguments)
    times: dict[tuple[str, str], TurnTimes] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = list(start_daemons(stack, scratch, options.against))
        with pin_to_core(-1):
            for target in targets:  # warm up: late imports, and creating the conversations
                uvloop.run(run_work(target, "alone", options.conversations, TurnTimes()))
            for number in range(options.rounds):
                for what in options.only or WORK:
                    # The order alternates, so that no daemon always runs after the other.
                    for target in targets[:: 1 if number % 2 else -1]:
                        target_times = times.setdefault((what, target.name), TurnTimes())
                        uvloop.run(run_work(target, what, options.conversations, target_times))
    return [build_table(times, options.conversations)]


def build_table(times: dict[tuple[str, str], TurnTimes], conversations: int) -> BenchTable:
    table = BenchTable(
        f"Accepted means kept: {conversations} conversations, {CONCURRENCY} at a time, flushed",
        [
            *["", "daemon", "start p50 ms", "p99", "first word p50 ms", "p99"],
            *["steer p50 ms", "p99", "turns/s"],
        ],
        note=(
            f"In line: {TURNS_IN_LINE} turns are asked for at once in each conversation. Steered: "
            "two messages are said into each turn while it runs."
        ),
    )
    for (what, name), turn_times in times.items():
        cells = [
            f"{compute_percentile(values, share):.1f}" if values else ""
            for values in (turn_times.starts, turn_times.first_words, turn_times.steers)
            for share in (0.5, 0.99)
        ]
        table.add_row(what, name, *cells, f"{turn_times.turns / turn_times.seconds:.0f}")
    return table
