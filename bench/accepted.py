"""Accepted: what it costs that a turn, or a steer, is kept before it is acknowledged.

    python -m bench accepted [--conversations N] [--rounds N] [--only WORK] [--against DIR]

A thousand conversations, some of them at a time. `--against` measures a second daemon from the
sources in DIR as well, turn and turn about with this one. Both flush what they keep.
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

from .crowd import Daemon, daemon
from .peers import on_core, percentile
from .report import Table

# Conversations that are busy at once, and turns that are asked for in each without waiting.
AT_ONCE = 64
IN_LINE = 4


@dataclass
class Times:
    """Milliseconds, from the request on."""

    starts: list[float] = field(default_factory=list)
    words: list[float] = field(default_factory=list)  # the first of each turn
    steers: list[float] = field(default_factory=list)  # to their pong
    turns: int = 0
    seconds: float = 0.0


def elapsed(begun: float) -> float:
    return (time.perf_counter() - begun) * 1000


async def one_turn(client: Client, sender: str, script: str, times: Times) -> None:
    begun = time.perf_counter()
    has_spoken = False
    async with aclosing(client.stream("crab", script, sender=sender)) as events:
        async for event in events:
            match event:
                case wire.StreamStart():
                    times.starts.append(elapsed(begun))
                case wire.StreamChunk() if not has_spoken:
                    has_spoken = True
                    times.words.append(elapsed(begun))
                case wire.StreamEnd():
                    assert not event.error, event.error
    times.turns += 1


async def alone(client: Client, sender: str, times: Times) -> None:
    await one_turn(client, sender, "!say good day to you", times)


async def in_line(client: Client, sender: str, times: Times) -> None:
    turns = [one_turn(client, sender, "!say me too", times) for _ in range(IN_LINE)]
    await asyncio.gather(*turns)


async def steered(client: Client, sender: str, times: Times) -> None:
    """Two steers, while the model speaks."""
    running = asyncio.ensure_future(one_turn(client, sender, "!chunks 20 200", times))
    await asyncio.sleep(0.05)
    for _ in range(2):
        begun = time.perf_counter()
        try:
            await client.steer_session("crab", "!say as you like", sender=sender)
        except ServerError:
            break  # it was over
        times.steers.append(elapsed(begun))
    await running


WORK = {"alone": alone, "in line": in_line, "steered": steered}


async def carry_out(target: Daemon, what: str, conversations: int, times: Times) -> None:
    waiting = iter(range(conversations))
    async with connect(home=target.home) as client:

        async def work() -> None:
            for number in waiting:
                await WORK[what](client, f"s{number}", times)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
        times.seconds += time.perf_counter() - begun


def daemons(stack: ExitStack, scratch: Path, against: Path | None) -> Iterator[Daemon]:
    with on_core(-1):
        url, _ = stack.enter_context(model_process())
    if against is not None:
        yield stack.enter_context(daemon("before", scratch / "before", url, against))
    yield stack.enter_context(daemon("now", scratch / "now", url))


def run(arguments: list[str]) -> list[Table]:
    parser = argparse.ArgumentParser("python -m bench accepted")
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", choices=list(WORK), action="append")
    options = parser.parse_args(arguments)
    times: dict[tuple[str, str], Times] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        targets = list(daemons(stack, scratch, options.against))
        with on_core(-1):
            for target in targets:  # what is loaded late, and the conversations themselves
                uvloop.run(carry_out(target, "alone", options.conversations, Times()))
            for number in range(options.rounds):
                for what in options.only or WORK:
                    # Who is first changes, so that neither always meets the other's leftovers.
                    for target in targets[:: 1 if number % 2 else -1]:
                        kept = times.setdefault((what, target.name), Times())
                        uvloop.run(carry_out(target, what, options.conversations, kept))
    return [table(times, options.conversations)]


def table(times: dict[tuple[str, str], Times], conversations: int) -> Table:
    found = Table(
        f"Accepted means kept: {conversations} conversations, {AT_ONCE} at a time, flushed",
        [
            *["", "daemon", "start p50 ms", "p99", "first word p50 ms", "p99"],
            *["steer p50 ms", "p99", "turns/s"],
        ],
        note=(
            f"In line: {IN_LINE} turns are asked for at once in each conversation. Steered: two "
            "messages are said into each turn while it runs."
        ),
    )
    for (what, name), each in times.items():
        cells = [
            f"{percentile(values, share):.1f}" if values else ""
            for values in (each.starts, each.words, each.steers)
            for share in (0.5, 0.99)
        ]
        found.row(what, name, *cells, f"{each.turns / each.seconds:.0f}")
    return found
