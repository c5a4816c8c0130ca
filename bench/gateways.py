"""Gateways: how soon a chat has its answer, alone and in a crowd, and what the crowd weighs.

The gateway is the one of the manual's page, a process of its own, on the library that Telegram's
and WeChat's are on; the chat service is in this process, over real HTTP, and the model answers at
once. The time of an answer is that from when the service has the message until it has the answer;
flushes of the journal and requests to the service are part of it.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import uvloop

from crabtalk.component.gateway import write_settings
from tests.component.gateway.loft import Loft, Message, loft
from tests.component.gateway.pigeon import source
from tests.model_server import model_process

from .peers import now, on_core, percentile, rss
from .report import Table
from .turns import daemon

CROWDS = (1, 50, 200)
ROUNDS = 10
SOAK = 40
PERIOD = 20.0  # seconds
# Seconds that no answer may take.
PATIENCE = 60


@contextmanager
def gateway(home: Path, url: str, people: list[str]) -> Iterator[int]:
    """The page's program; its process id."""
    settings = {"token": "coo", "base_url": url, "allowed_users": people}
    write_settings(home / "config" / "pigeon.toml", settings)
    program = home / "pigeon.py"
    program.write_text(source())
    command = [sys.executable, str(program), "run", "--home", str(home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


class Crowd:
    def __init__(self, service: Loft) -> None:
        self._service = service
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[str, asyncio.Future[None]]] = {}
        service.seen = self._see

    def _see(self, message: Message) -> None:
        text, future = self._waiting.get(message.chat, ("", None))
        if future is not None and text in message.text and not future.done():
            future.set_result(None)

    async def ask(self, person: str) -> float:
        """Milliseconds until the answer is there."""
        text = f"answer-{next(self._numbers)}."
        future = asyncio.get_running_loop().create_future()
        self._waiting[person] = (text, future)
        start = now()
        self._service.says(f"!say {text}", person)
        async with asyncio.timeout(PATIENCE):
            await future
        return (now() - start) * 1000

    async def ask_all(self, people: list[str], rounds: int) -> list[float]:
        took: list[float] = []
        for _ in range(rounds):
            took += await asyncio.gather(*map(self.ask, people))
            self._forget()
        return took

    async def ask_in_turn(self, people: list[str], period: float) -> list[float]:
        """Each says something once in so many seconds, as people do, not all at once."""

        async def after(delay: float, person: str) -> float:
            await asyncio.sleep(delay)
            return await self.ask(person)

        gap = period / len(people)
        took = await asyncio.gather(*(after(n * gap, one) for n, one in enumerate(people)))
        self._forget()
        return took

    def _forget(self) -> None:
        """What the service remembers for tests."""
        service = self._service
        del service.messages[:-1000]
        for log in (service.times, service.calls, service.taken, service.typing):
            log.clear()


async def measure(home: Path) -> Table:
    people = [str(number) for number in range(1000, 1000 + max(CROWDS))]
    table = Table(
        "Gateway, ms to the answer",
        ["chats", "in turn p50", "p99", "all at once p50", "p99", "CPU", "resident, MB"],
    )
    async with loft() as service:
        service.redeliver = PATIENCE
        with ExitStack() as stack:
            with on_core(0):
                pid = stack.enter_context(gateway(home, service.url, people))
            stack.enter_context(on_core(-1))
            crowd = Crowd(service)
            await crowd.ask_all(people[:1], ROUNDS)
            for size in CROWDS:
                spent = cpu_seconds(pid)
                took = await crowd.ask_all(people[:size], ROUNDS)
                spent = cpu_seconds(pid) - spent
                calm = await crowd.ask_in_turn(people[:size] * max(1, 50 // size), PERIOD)
                table.row(
                    f"{size}",
                    f"{percentile(calm, 0.5):.1f}",
                    f"{percentile(calm, 0.99):.1f}",
                    f"{percentile(took, 0.5):.1f}",
                    f"{percentile(took, 0.99):.1f}",
                    f"{spent / len(took) * 1000:.1f}",
                    f"{rss(pid):.0f}",
                )
            before = rss(pid)
            await crowd.ask_all(people, SOAK)
            turns = SOAK * len(people)
            table.note = (
                f"In turn: spread over {PERIOD:.0f} seconds, as people speak. "
                f"CPU is the gateway's, a turn, when all speak at once. After {turns:,} more "
                f"turns: "
                f"{rss(pid) - before:+.1f} MB."
            )
    return table


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run() -> list[Table]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch) / "home"
        with on_core(-1):
            url, _ = stack.enter_context(model_process("--no-record"))
        with on_core(0):
            stack.enter_context(daemon(url, home))
        return [uvloop.run(measure(home))]
