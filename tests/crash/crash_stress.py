"""A daemon that is killed again and again while clients keep it busy.

A round is several conversations at once, a `kill -9` at a moment the seed chooses, a new start, a
look at all that was promised, and one more turn in each conversation. Rounds share a home.
"""

import asyncio
import json
import random
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crabtalk.client import Client, ConnectionClosedError, ServerError, connect
from crabtalk.storage import Pair
from tests.crash.checks import (
    ParsedLog,
    check_request,
    check_turn,
    check_wire,
    is_summary,
    log_path,
    read_log,
)
from tests.crash.crash_clients import (
    AcknowledgedSetting,
    ClientConversation,
    CrashClient,
    KillTrigger,
    SettingsClient,
)
from tests.crash.launched_daemon import LaunchedDaemon, prepare_home, run_turn, wait_until_recovered
from tests.model_server import ModelServer, model_server

# What a round may take on the slowest of machines.
ROUND_TIMEOUT = 60.0


@dataclass
class CrashReport:
    """What a siege came to."""

    rounds: int = 0
    turns: int = 0
    cut_turns: int = 0  # that were under way
    open_calls: int = 0  # of these, with calls that had no result
    compactions: int = 0  # compactions
    torn_logs: int = 0  # logs that the kill left with half a line
    halved_lines: int = 0  # and those that got one from us
    accepted: int = 0  # turns that were acknowledged
    steered: int = 0  # steers that were acknowledged
    closed: int = 0  # runs that a start closed as interrupted
    kills: Counter[str] = field(default_factory=Counter)
    starts: list[float] = field(default_factory=list)  # seconds to a pong
    seconds: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{kind} {count}" for kind, count in sorted(self.kills.items()))
        middle = sorted(self.starts)[len(self.starts) // 2]
        return (
            f"{self.rounds} rounds in {self.seconds:.1f} s: {self.turns} turns, "
            f"{self.cut_turns} cut off, {self.open_calls} with calls left open, "
            f"{self.compactions} compactions, "
            f"{self.torn_logs} + {self.halved_lines} torn lines; {self.accepted} turns and "
            f"{self.steered} steers acknowledged, none lost or doubled, "
            f"{self.closed} runs closed as interrupted; "
            f"killed {kills}; "
            f"pong after {middle * 1000:.0f} ms, at most {max(self.starts) * 1000:.0f} ms"
        )


async def run_crash_stress(
    home: Path, seed: str, rounds: int, *, durability: str = "fsync", crowded: bool = False
) -> CrashReport:
    """`crowded`: clients do nothing but wait in line and steer, and every end is a kill."""
    async with model_server() as model:
        prepare_home(home, model, durability=durability)
        return await CrashStress(home, model, seed, crowded=crowded).run(rounds)


class CrashStress:
    def __init__(self, home: Path, model: ModelServer, seed: str, *, crowded: bool = False) -> None:
        self._crowded = crowded
        self._home = home
        self._model = model
        self._seed = seed
        self._random = random.Random(seed)
        self._process = LaunchedDaemon(home)
        self._trigger = KillTrigger(self._process, self._random)
        self._conversations: list[ClientConversation] = []
        self._prompts = {"mole": AcknowledgedSetting()}  # by agent
        self._active = AcknowledgedSetting()  # the model
        self._report = CrashReport()

    async def run(self, rounds: int) -> CrashReport:
        begun = time.monotonic()
        try:
            await self._restart()
            for number in range(1, rounds + 1):
                async with asyncio.timeout(ROUND_TIMEOUT):
                    await self._run_round(number)
            async with connect(home=self._home, reconnect_timeout=0) as client:
                for book in self._conversations:
                    await self._check_conversation(client, book)
        except BaseException as error:
            error.add_note(f"after {self._report.rounds} rounds, and {self._trigger}")
            error.add_note(self._process.stderr_text)
            raise
        finally:
            await self._trigger.wait_until_fired()
            await self._process.kill()
        self._report.seconds = time.monotonic() - begun
        self._report.turns = sum(len(book.turns) for book in self._conversations)
        self._report.compactions = sum(book.compacted for book in self._conversations)
        turns = [turn for book in self._conversations for turn in book.turns]
        self._report.accepted = sum(bool(turn.events) for turn in turns)
        self._report.steered = sum(len(turn.steers) for turn in turns)
        return self._report

    async def _run_round(self, number: int) -> None:
        self._model.reset()
        self._model.summary = f"Summary {number}. Süße Grüße."
        self._random.seed(f"{self._seed} {number}")
        books = self._choose_conversations()
        await self._run_clients(books)
        self._note_kill(books)
        self._tear_logs(books)
        await self._restart()
        async with connect(home=self._home, reconnect_timeout=0) as client:
            await wait_until_recovered(client)
            await self._check_files(client)
            for book in books:
                log = await self._check_conversation(client, book)
                self._report.open_calls += log.ends_in_calls
                self._report.closed += len(log.interrupted) - book.closed
                book.closed = len(log.interrupted)
            await asyncio.gather(*(self._run_next_turn(client, book) for book in books))
            for book in books:
                await self._check_conversation(client, book, is_open=True)

    def _choose_conversations(self) -> list[ClientConversation]:
        """Three to five conversations, some of them new."""
        chosen: list[ClientConversation] = []
        for _ in range(self._random.randint(3, 5)):
            recent = [book for book in self._conversations[-8:] if book not in chosen]
            if recent and self._random.random() < 0.6:
                chosen.append(self._random.choice(recent))
                continue
            agent = self._random.choice(["crab", "crab", "mole"])
            if self._prompts["mole"].values == [""]:
                agent = "crab"
            chosen.append(ClientConversation(Pair(agent, f"s{len(self._conversations)}")))
            self._conversations.append(chosen[-1])
        return chosen

    async def _restart(self) -> None:
        if self._random.random() < 0.1 + 0.2 * self._crowded:  # killed before it was up, or then
            self._process.spawn()
            await asyncio.sleep(self._random.uniform(0, 0.3))
            await self._process.kill()
        self._report.starts.append(await self._process.start())

    # ── Until it is killed ──────────────────────────────────────────────────────────────────

    async def _run_clients(self, books: list[ClientConversation]) -> None:
        """Everybody at once, until the daemon is gone."""
        trigger = self._trigger = KillTrigger(self._process, self._random)
        if self._crowded:
            trigger.signal = signal.SIGKILL
        watching = asyncio.ensure_future(self._watch_model())
        try:
            async with (
                connect(home=self._home, reconnect_timeout=0) as client,
                asyncio.TaskGroup() as group,
            ):
                for book in books:
                    talker = CrashClient(client, book, trigger, self._make_random(book.pair.sender))
                    work = talker.run_crowded() if self._crowded else talker.run_mixed()
                    group.create_task(self._run_until_cut(work))
                owner = SettingsClient(
                    client, self._prompts, self._active, trigger, self._make_random("owner")
                )
                group.create_task(self._run_until_cut(owner.change_settings()))
        finally:
            watching.cancel()
            await asyncio.wait([watching])
        await trigger.wait_until_fired()
        if trigger.signal is signal.SIGTERM:
            for turn in [turn for book in books for turn in book.turns if not turn.is_over]:
                turn.is_taken_back = True  # those that wait are told so, and are not kept
        code = await self._process.wait_for_exit()
        assert code == (0 if trigger.signal is signal.SIGTERM else -signal.SIGKILL)

    def _make_random(self, name: str) -> random.Random:
        return random.Random(f"{self._seed} {self._report.rounds} {name}")

    async def _run_until_cut(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            try:
                await work
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from None
        except (ConnectionClosedError, ConnectionError):
            if not self._trigger.is_fired:
                raise
        except ServerError as error:
            if error.code != 503 or self._trigger.signal is not signal.SIGTERM:
                raise

    async def _watch_model(self) -> None:
        """Notices when the model is asked."""
        for count in range(1, sys.maxsize):
            request = await self._model.until_asked(count)
            self._trigger.count_event("compacting" if is_summary(request) else "asked")

    def _note_kill(self, books: list[ClientConversation]) -> None:
        self._report.rounds += 1
        self._report.kills[self._trigger.kind if self._trigger.left == 0 else "at rest"] += 1
        self._report.cut_turns += sum(
            not turn.is_over for book in books for turn in book.turns[-1:]
        )

    def _tear_logs(self, books: list[ClientConversation]) -> None:
        """Sometimes what a power cut leaves: half a line that was being written."""
        for book in books:
            path = log_path(self._home, book.pair)
            log = read_log(path, book.pair)
            self._report.torn_logs += bool(log.torn)
            if log.data and not log.torn and self._random.random() < 0.2:
                message = {"role": "user", "text": "#torn/1\nthe rest is missing, größtenteils"}
                record = {"kind": "message", "id": len(log.messages), "at": "", "message": message}
                line = json.dumps(record, ensure_ascii=False).encode()
                with path.open("ab") as file:
                    file.write(line[: self._random.randint(1, len(line) - 1)])
                self._report.halved_lines += 1
        journal = self._home / "sessions" / "accepted.journal"
        if journal.exists() and self._random.random() < 0.2:
            with journal.open("ab") as file:
                file.write(b'0123abcd {"accepted":{"agent":"crab","sen')

    # ── After the restart ───────────────────────────────────────────────────────────────────

    async def _run_next_turn(self, client: Client, book: ClientConversation) -> None:
        """The next turn, which meets whatever the crash left."""
        book.step += 1
        turn = await run_turn(client, book.pair, book.begin_turn("!say and so it goes on"))
        assert not turn.error

    async def _check_conversation(
        self, client: Client, book: ClientConversation, *, is_open: bool = False
    ) -> ParsedLog:
        """`is_open`: a turn has been here since the restart."""
        log = read_log(log_path(self._home, book.pair), book.pair)
        assert not (is_open and log.torn)
        assert log.data.startswith(book.log_data)  # what is written stays as it is
        book.log_data = log.data
        await check_wire(client, book.pair, log)
        kept = {messages[0].token: messages for messages in log.split_turns()}
        assert len(kept) == len(log.split_turns())  # nothing twice
        steers = [m.token for m in log.messages if "+" in m.token]
        assert len(set(steers)) == len(steers)
        # In whatever turn ran by then: the one it was meant for may have been over.
        acknowledged = {steer for turn in book.turns for steer in turn.steers}
        assert acknowledged <= {m.text for m in log.messages}, "an acknowledged steer is lost"
        known = {turn.token: turn for turn in book.turns}
        places = [known[token].step for token in kept]
        assert places == sorted(places)
        for turn in book.turns:
            check_turn(turn, kept.get(turn.token, ()))
        assert book.compacted <= len(log.markers) <= book.maybe_compacted
        book.compacted = book.maybe_compacted = len(log.markers)
        for request in self._requests(book):
            check_request(request, log)
        return log

    def _requests(self, book: ClientConversation) -> list[dict[str, Any]]:
        """What the model was asked in this conversation."""
        token = f"#{book.pair.sender}/"
        return [
            request
            for request in self._model.requests
            if any(token in str(m["content"]) for m in request["messages"] if m["role"] == "user")
        ]

    async def _check_files(self, client: Client) -> None:
        """Each is whole, and says what was acknowledged or what was under way."""
        listed = {agent.name: agent.description for agent in (await client.list_agents()).agents}
        for name, setting in self._prompts.items():
            path = self._home / "agents" / f"{name}.toml"
            found = tomllib.loads(path.read_text()) if path.exists() else {"prompt": ""}
            setting.check_value(found["prompt"])
            assert listed.get(name, "") == found["prompt"][:20]
        there = {name for name, setting in self._prompts.items() if setting.values != [""]}
        assert {path.stem for path in (self._home / "agents").glob("*.toml")} == listed.keys()
        assert listed.keys() == {"crab", "owl"} | there
        config = tomllib.loads((self._home / "config.toml").read_text())
        assert config["providers"][0]["base_url"] == self._model.url
        self._active.check_value(config.get("daemon", {}).get("model", ""))
        problems = (await client.get_stats()).problems
        assert not problems, problems
