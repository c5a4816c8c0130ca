"""Gateways: the time to an answer, for one chat and for many, and the memory of many.

The gateway is the example of the manual, in a process of its own, on the library that the Telegram
and WeChat gateways use. The chat service is in this process, over real HTTP, and the model answers
at once. The time of an answer is from when the service has the message until it has the answer,
including flushes of the journal and requests to the service.
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

from crabtalk.gateway import write_settings
from tests.gateway.pigeon_page import read_source
from tests.gateway.pigeon_server import PigeonMessage, PigeonServer, run_pigeon_server
from tests.model_server import model_process

from .processes import compute_percentile, pin_to_core, read_clock, read_rss
from .tables import BenchTable
from .turns import run_daemon

CROWDS = (1, 50, 200)
ROUNDS = 10
SOAK = 40
PERIOD = 20.0  # seconds
# Timeout of an answer in seconds.
PATIENCE = 60


@contextmanager
def run_gateway(home: Path, url: str, people: list[str]) -> Iterator[int]:
    """Run the example program of the manual's page; yields its process id."""
    settings = {"token": "coo", "base_url": url, "allowed_users": people}
    write_settings(home / "config" / "pigeon.toml", settings)
    program = home / "pigeon.py"
    program.write_text(read_source())
    command = [sys.executable, str(program), "run", "--home", str(home)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


class ChatCrowd:
    def __init__(self, service: PigeonServer) -> None:
        self._service = service
        self._numbers = itertools.count()
        self._waiting: dict[str, tuple[str, asyncio.Future[None]]] = {}
        service.on_message = self._resolve_answer

    def _resolve_answer(self, message: PigeonMessage) -> None:
        text, future = self._waiting.get(message.chat, ("", None))
        if future is not None and text in message.text and not future.done():
            future.set_result(None)

    async def ask(self, person: str) -> float:
        """Send a message and return the milliseconds until the answer."""
        text = f"answer-{next(self._numbers)}."
        future = asyncio.get_running_loop().create_future()
        self._waiting[person] = (text, future)
        start = read_clock()
        self._service.add_message(f"!say {text}", person)
        async with asyncio.timeout(PATIENCE):
            await future
        return (read_clock() - start) * 1000

    async def ask_all(self, people: list[str], rounds: int) -> list[float]:
        times: list[float] = []
        for _ in range(rounds):
            times += await asyncio.gather(*map(self.ask, people))
            self._clear_service_logs()
        return times

    async def ask_in_turn(self, people: list[str], period: float) -> list[float]:
        """Have each person send one message per period, spread out, as people do."""

        async def ask_later(delay: float, person: str) -> float:
            await asyncio.sleep(delay)
            return await self.ask(person)

        gap = period / len(people)
        times = await asyncio.gather(*(ask_later(n * gap, name) for n, name in enumerate(people)))
        self._clear_service_logs()
        return times

    def _clear_service_logs(self) -> None:
        """Clear what the service records for tests."""
        service = self._service
        del service.messages[:-1000]
        for log in (service.times, service.calls, service.acknowledged, service.typing):
            log.clear()


async def measure_crowds(home: Path) -> BenchTable:
    people = [str(number) for number in range(1000, 1000 + max(CROWDS))]
    table = BenchTable(
        "Gateway, ms to the answer",
        ["chats", "in turn p50", "p99", "all at once p50", "p99", "CPU", "resident, MB"],
    )
    async with run_pigeon_server() as service:
        service.redeliver_after = PATIENCE
        with ExitStack() as stack:
            with pin_to_core(0):
                pid = stack.enter_context(run_gateway(home, service.url, people))
            stack.enter_context(pin_to_core(-1))
            crowd = ChatCrowd(service)
            await crowd.ask_all(people[:1], ROUNDS)
            for size in CROWDS:
                spent = read_cpu_seconds(pid)
                times = await crowd.ask_all(people[:size], ROUNDS)
                spent = read_cpu_seconds(pid) - spent
                spread_times = await crowd.ask_in_turn(people[:size] * max(1, 50 // size), PERIOD)
                table.add_row(
                    f"{size}",
                    f"{compute_percentile(spread_times, 0.5):.1f}",
                    f"{compute_percentile(spread_times, 0.99):.1f}",
                    f"{compute_percentile(times, 0.5):.1f}",
                    f"{compute_percentile(times, 0.99):.1f}",
                    f"{spent / len(times) * 1000:.1f}",
                    f"{read_rss(pid):.0f}",
                )
            before = read_rss(pid)
            await crowd.ask_all(people, SOAK)
            turns = SOAK * len(people)
            table.note = (
                f"In turn: spread over {PERIOD:.0f} seconds, as people speak. "
                f"CPU is the gateway's, a turn, when all speak at once. After {turns:,} more "
                f"turns: "
                f"{read_rss(pid) - before:+.1f} MB."
            )
    return table


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_benchmark() -> list[BenchTable]:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        home = Path(scratch) / "home"
        with pin_to_core(-1):
            url, _ = stack.enter_context(model_process("--no-record"))
        with pin_to_core(0):
            stack.enter_context(run_daemon(url, home))
        return [uvloop.run(measure_crowds(home))]
