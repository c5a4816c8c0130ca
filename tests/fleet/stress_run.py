"""A stress test of a fleet: clients talk to three daemon processes in the same conversations, while
daemons are killed or suspended and the database is restarted.

    report = await run_stress(tmp_path, server, rounds=12, seed="7")

Each conversation has one sender at each daemon, who sends message after message, each with its own
token. A round has at most one fault meanwhile. At its end the senders finish their messages, and
the record must have the end of every run.
"""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from crabtalk.client import CannotConnectError, Client, ConnectionClosedError, ServerError, connect
from crabtalk.protocol import wire
from tests.crash.launched_daemon import LaunchedDaemon
from tests.daemon.crabtalkd_program import CRABTALKD
from tests.fleet.fleet_daemons import STORAGE, put_agents
from tests.fleet.record_checks import begin_audit, check_conversation
from tests.forked_programs import PIPE, ForkedProcess, ForkedProgram
from tests.model_server import ModelServer, model_server
from tests.postgres import PostgresServer

DAEMONS = 3
CONVERSATIONS = 3
# Rounds until new conversations are used: long histories are covered by other tests.
EPOCH = 6
LEASE = 1.0
# Seconds a round may take on a slow machine.
PATIENCE = 60.0
# Maximum seconds until the fault of a round, and from then until the senders stop.
DELAY, LONGEST = 0.4, 0.6
FAULTS = ("kill", "stop", "fast", "immediate", "nothing")
SCRIPTS = (
    "!say WORD",
    "!say WORD\n!chunks 15 100",
    '!tool recall {"query": "crabs"}\n!then\n!say WORD',
    '!tool set_title {"title": "Crabs"}\n!tool recall {"query": "x"}\n!then\n!say WORD',
)
SETTINGS = "pool = 6\nstatement_timeout = 5.0\n"
PROGRAM = ForkedProgram(
    *(CRABTALKD, "crabtalk.daemon.cli:main"),
    *(
        "crabtalk.daemon.daemon",
        "crabtalk.daemon.process.main_loop",
        "crabtalk.daemon.handlers.daemon_server",
    ),
    *(
        "crabtalk.daemon.process.log_handler",
        "crabtalk.daemon.config.models_command",
        "crabtalk.daemon.fleet.coordinator",
    ),
    *("crabtalk.storage.postgres", "asyncpg", "crabtalk.model.openai", "aiohttp"),
    *("tantivy", "tomlkit", "uvloop"),
)


class FleetDaemonProcess(LaunchedDaemon):
    """`crabtalkd run`, forked from a process with preloaded modules."""

    def fork_process(self) -> ForkedProcess:
        return PROGRAM.start("run", "--home", self.home, "--tcp", "off", stderr=PIPE)


@dataclass
class FleetStressReport:
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    acknowledged: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # by error code or exception
    ends: Counter[str] = field(default_factory=Counter)  # of runs, by stop reason in the record
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds in {self.seconds:.1f} s ({format_counts(self.faults)}): "
            f"{self.sent} messages, {self.acknowledged} acknowledged; "
            f"otherwise {format_counts(self.refused)}; runs ended: {format_counts(self.ends)}"
        )


def format_counts(counter: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(counter.items())) or "none"


@dataclass
class FleetSender:
    """A sender in one conversation, at one daemon."""

    sender: str
    place: int
    count: int = 0
    acknowledged: list[str] = field(default_factory=list)  # tokens, in order
    sent: set[str] = field(default_factory=set)

    def next_token(self) -> str:
        self.count += 1
        token = f"#{self.sender}/{self.place}/{self.count}"
        self.sent.add(token)
        return token


async def run_stress(
    path: Path, server: PostgresServer, *, rounds: int, seed: str
) -> FleetStressReport:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(model_server())
        config = (
            f'[llm]\nbase_url = "{model.url}"\nmodel = "scripted"\nmax_retries = 0\n'
            + STORAGE.format(database=server.url, lease=LEASE)
            + SETTINGS
        )
        await put_agents(path, server.url, {"crab": 'prompt = "You are crab."\n'})
        homes = [path / f"daemon{number}" for number in range(DAEMONS)]
        for home in homes:
            home.mkdir(0o700)
            (home / "config.toml").write_text(config)
        return await FleetStressRun(homes, server, model, seed).run(rounds)


class FleetStressRun:
    def __init__(
        self, homes: list[Path], server: PostgresServer, model: ModelServer, seed: str
    ) -> None:
        self._daemons = [FleetDaemonProcess(home) for home in homes]
        self._server = server
        self._model = model
        self._random = random.Random(seed)
        self._senders: list[FleetSender] = []
        self._is_over = False
        self._ends: dict[str, Counter[str]] = {}  # by conversation
        self._report = FleetStressReport()

    async def run(self, rounds: int) -> FleetStressReport:
        started_at = time.monotonic()
        async with connect_database(self._server.url) as connection:
            await begin_audit(connection)
        try:
            await asyncio.gather(*(daemon.start() for daemon in self._daemons))
            for number in range(rounds):
                if number % EPOCH == 0:
                    self._begin_epoch(number // EPOCH)
                fault = self._random.choice(FAULTS) if number >= len(FAULTS) else FAULTS[number]
                try:
                    async with asyncio.timeout(PATIENCE):
                        await self._round(fault)
                except BaseException as error:
                    error.add_note(f"in round {number + 1}, {fault}: {self._report}")
                    raise
                self._report.rounds += 1
                self._report.faults[fault] += 1
            async with asyncio.timeout(PATIENCE):
                await self._check_afterwards()
        except BaseException as error:
            for daemon in self._daemons:
                error.add_note(f"{daemon.home.name} printed:\n{daemon.stderr_text[-4000:]}")
            raise
        finally:
            for daemon in self._daemons:
                await daemon.kill()
        self._report.ends = sum(self._ends.values(), Counter[str]())
        self._report.seconds = time.monotonic() - started_at
        return self._report

    def _begin_epoch(self, number: int) -> None:
        self._senders = [
            FleetSender(f"s{number}-{conversation}", place)
            for conversation in range(CONVERSATIONS)
            for place in range(DAEMONS)
        ]

    # ── A round ─────────────────────────────────────────────────────────────────────────────

    async def _round(self, fault: str) -> None:
        self._model.reset()
        self._is_over = False
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect(home=daemon.home))
                for daemon in self._daemons
            ]
            tasks = [
                asyncio.ensure_future(self._talk(clients[person.place], person))
                for person in self._senders
            ]
            try:
                await asyncio.sleep(self._random.uniform(0, DELAY))
                await getattr(self, f"_{fault}")()
                await asyncio.sleep(self._random.uniform(0, LONGEST))
                self._is_over = True
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        async with connect_database(self._server.url) as connection:
            await self._wait_until_quiet(connection)
            await self._check(connection)

    async def _nothing(self) -> None:
        pass

    async def _kill(self) -> None:
        daemon = self._random.choice(self._daemons)
        daemon.send_signal(signal.SIGKILL)
        await daemon.wait_for_exit()
        await daemon.start()

    async def _stop(self) -> None:
        daemon = self._random.choice(self._daemons)
        daemon.send_signal(signal.SIGSTOP)
        await daemon.wait_until_stopped()
        await asyncio.sleep(LEASE * self._random.uniform(1.05, 1.6))
        daemon.send_signal(signal.SIGCONT)

    async def _fast(self) -> None:
        await asyncio.to_thread(self._server.restart, "fast")

    async def _immediate(self) -> None:
        await asyncio.to_thread(self._server.restart, "immediate")

    async def _talk(self, client: Client, person: FleetSender) -> None:
        random_source = random.Random(f"{person.sender} {person.place} {person.count}")
        while not self._is_over:
            token = person.next_token()
            self._report.sent += 1
            script = random_source.choice(SCRIPTS).replace("WORD", f"re {token} .")
            try:
                await self._say(
                    client, person, f"{token} .\n{script}", random_source.random() < 0.5
                )
            except ServerError as error:
                self._count_refusal(error)
                await asyncio.sleep(0.05)
            except (ConnectionClosedError, CannotConnectError, ConnectionError) as error:
                self._report.refused[type(error).__name__] += 1
                await asyncio.sleep(0.05)
            else:
                person.acknowledged.append(token)
                self._report.acknowledged += 1

    def _count_refusal(self, error: ServerError) -> None:
        assert error.code in (500, 503), error
        assert error.message.strip(), "an error says why"
        self._report.refused[str(error.code)] += 1

    async def _say(
        self, client: Client, person: FleetSender, content: str, is_streamed: bool
    ) -> None:
        """Returns when the message and its answer are acknowledged as stored."""
        if not is_streamed:
            await client.send("crab", content, sender=person.sender)
            return
        async with aclosing(client.stream("crab", content, sender=person.sender)) as events:
            async for event in events:
                if isinstance(event, wire.StreamEnd):
                    if event.error:
                        raise ServerError(500, event.error)
                    if event.stop_reason != wire.STOP_REASON_COMPLETED:
                        raise ServerError(500, "it was cut off")

    # ── Checks ──────────────────────────────────────────────────────────────────────────────

    async def _wait_until_quiet(self, connection: Any) -> None:
        """Wait until no live daemon has a turn or waits for one."""
        while await connection.fetchval(
            "SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM tickets t "
            "JOIN daemons d ON d.id = t.daemon WHERE d.expires_at > clock_timestamp())"
        ):
            await asyncio.sleep(0.02)

    async def _check(self, connection: Any) -> None:
        for sender in sorted({person.sender for person in self._senders}):
            senders = [person for person in self._senders if person.sender == sender]
            acknowledged = [person.acknowledged for person in senders]
            sent = set[str]().union(*(person.sent for person in senders))
            segments = await check_conversation(connection, sender, acknowledged, sent)
            self._ends[sender] = Counter(segment.done[0] for segment in segments)

    async def _check_afterwards(self) -> None:
        """Check that all daemons serve, and that rows of dead daemons are deleted after a while."""
        for daemon in self._daemons:
            async with connect(home=daemon.home) as client:
                await client.send("crab", "!say still here", sender=f"last {daemon.home.name}")
        async with connect_database(self._server.url) as connection:
            await self._wait_until_quiet(connection)
            await connection.execute(
                "UPDATE daemons SET expires_at = expires_at - interval '1 day' "
                "WHERE expires_at < clock_timestamp()"
            )
            while await connection.fetchval(
                "SELECT (SELECT count(*) FROM daemons WHERE expires_at < clock_timestamp() "
                "- interval '1 hour') + (SELECT count(*) FROM tickets) "
                "+ (SELECT count(*) FROM mail m WHERE NOT EXISTS "
                "(SELECT FROM daemons d WHERE d.id = m.recipient))"
            ):
                await asyncio.sleep(0.05)
            alive = await connection.fetchval(
                "SELECT count(*) FROM daemons WHERE expires_at > clock_timestamp()"
            )
            assert alive == DAEMONS


@asynccontextmanager
async def connect_database(url: str) -> AsyncIterator[Any]:
    """A separate connection of the test."""
    connection = await asyncpg.connect(url, timeout=PATIENCE)
    try:
        yield connection
    finally:
        await connection.close()
