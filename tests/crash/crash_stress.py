"""Kills a daemon again and again while clients keep it busy.

A round is: several conversations at once, a `kill -9` at a moment that the seed chooses, a restart,
a check of everything that was acknowledged, and one more turn in each conversation. Rounds share a
home.
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

# Seconds for a round on the slowest machines.
ROUND_TIMEOUT = 60.0


@dataclass
class CrashReport:
    """The totals of a stress run."""

    rounds: int = 0
    turns: int = 0
    cut_turns: int = 0  # turns in progress at a kill
    open_calls: int = 0  # logs that a kill left with calls without results
    compactions: int = 0
    torn_logs: int = 0  # logs that a kill left with an incomplete line
    halved_lines: int = 0  # incomplete lines that the test added
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
    """With `crowded`, clients only queue turns and steer, and every stop is a SIGKILL."""
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
        started = time.monotonic()
        try:
            await self._restart()
            for number in range(1, rounds + 1):
                async with asyncio.timeout(ROUND_TIMEOUT):
                    await self._run_round(number)
            async with connect(home=self._home, reconnect_timeout=0) as client:
                for conversation in self._conversations:
                    await self._check_conversation(client, conversation)
        except BaseException as error:
            error.add_note(f"after {self._report.rounds} rounds, and {self._trigger}")
            error.add_note(self._process.stderr_text)
            raise
        finally:
            await self._trigger.wait_until_fired()
            await self._process.kill()
        self._report.seconds = time.monotonic() - started
        self._report.turns = sum(len(conversation.turns) for conversation in self._conversations)
        self._report.compactions = sum(
            conversation.compacted for conversation in self._conversations
        )
        turns = [turn for conversation in self._conversations for turn in conversation.turns]
        self._report.accepted = sum(bool(turn.events) for turn in turns)
        self._report.steered = sum(len(turn.steers) for turn in turns)
        return self._report

    async def _run_round(self, number: int) -> None:
        self._model.reset()
        self._model.summary = f"Summary {number}. Süße Grüße."
        self._random.seed(f"{self._seed} {number}")
        conversations = self._choose_conversations()
        await self._run_clients(conversations)
        self._note_kill(conversations)
        self._tear_logs(conversations)
        await self._restart()
        async with connect(home=self._home, reconnect_timeout=0) as client:
            await wait_until_recovered(client)
            await self._check_files(client)
            for conversation in conversations:
                log = await self._check_conversation(client, conversation)
                self._report.open_calls += log.ends_in_calls
                self._report.closed += len(log.interrupted) - conversation.closed
                conversation.closed = len(log.interrupted)
            await asyncio.gather(
                *(self._run_next_turn(client, conversation) for conversation in conversations)
            )
            for conversation in conversations:
                await self._check_conversation(client, conversation, is_open=True)

    def _choose_conversations(self) -> list[ClientConversation]:
        """Three to five conversations, some of them new."""
        chosen: list[ClientConversation] = []
        for _ in range(self._random.randint(3, 5)):
            recent = [
                conversation
                for conversation in self._conversations[-8:]
                if conversation not in chosen
            ]
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
        if self._random.random() < 0.1 + 0.2 * self._crowded:  # sometimes kill it during the start
            self._process.spawn()
            await asyncio.sleep(self._random.uniform(0, 0.3))
            await self._process.kill()
        self._report.starts.append(await self._process.start())

    # ── Until it is killed ──────────────────────────────────────────────────────────────────

    async def _run_clients(self, conversations: list[ClientConversation]) -> None:
        """Runs all clients at once until the daemon is gone."""
        trigger = self._trigger = KillTrigger(self._process, self._random)
        if self._crowded:
            trigger.signal = signal.SIGKILL
        watcher = asyncio.ensure_future(self._watch_model())
        try:
            async with (
                connect(home=self._home, reconnect_timeout=0) as client,
                asyncio.TaskGroup() as group,
            ):
                for conversation in conversations:
                    rng = self._make_random(conversation.pair.sender)
                    crash_client = CrashClient(client, conversation, trigger, rng)
                    work = crash_client.run_crowded() if self._crowded else crash_client.run_mixed()
                    group.create_task(self._run_until_cut(work))
                owner = SettingsClient(
                    client, self._prompts, self._active, trigger, self._make_random("owner")
                )
                group.create_task(self._run_until_cut(owner.change_settings()))
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
        await trigger.wait_until_fired()
        if trigger.signal is signal.SIGTERM:
            for turn in [
                turn
                for conversation in conversations
                for turn in conversation.turns
                if not turn.is_over
            ]:
                turn.is_withdrawn = True  # waiting turns are refused and not stored
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
        """Counts the requests to the model."""
        for count in range(1, sys.maxsize):
            request = await self._model.until_asked(count)
            self._trigger.count_event("compacting" if is_summary(request) else "asked")

    def _note_kill(self, conversations: list[ClientConversation]) -> None:
        self._report.rounds += 1
        self._report.kills[self._trigger.kind if self._trigger.left == 0 else "at rest"] += 1
        self._report.cut_turns += sum(
            not turn.is_over for conversation in conversations for turn in conversation.turns[-1:]
        )

    def _tear_logs(self, conversations: list[ClientConversation]) -> None:
        """Sometimes appends an incomplete line, as a power cut leaves one."""
        for conversation in conversations:
            path = log_path(self._home, conversation.pair)
            log = read_log(path, conversation.pair)
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

    async def _run_next_turn(self, client: Client, conversation: ClientConversation) -> None:
        """Runs one more turn on the state that the crash left."""
        conversation.step += 1
        turn = await run_turn(
            client, conversation.pair, conversation.begin_turn("!say and so it goes on")
        )
        assert not turn.error

    async def _check_conversation(
        self, client: Client, conversation: ClientConversation, *, is_open: bool = False
    ) -> ParsedLog:
        """With `is_open`, the conversation has had a turn since the restart."""
        log = read_log(log_path(self._home, conversation.pair), conversation.pair)
        assert not (is_open and log.torn)
        assert log.data.startswith(conversation.log_data)  # written lines never change
        conversation.log_data = log.data
        await check_wire(client, conversation.pair, log)
        stored = {messages[0].token: messages for messages in log.split_turns()}
        assert len(stored) == len(log.split_turns())  # nothing twice
        steers = [m.token for m in log.messages if "+" in m.token]
        assert len(set(steers)) == len(steers)
        # A steer may be in a later turn than it was meant for, if that was over already.
        acknowledged = {steer for turn in conversation.turns for steer in turn.steers}
        assert acknowledged <= {m.text for m in log.messages}, "an acknowledged steer is lost"
        known = {turn.token: turn for turn in conversation.turns}
        steps = [known[token].step for token in stored]
        assert steps == sorted(steps)
        for turn in conversation.turns:
            check_turn(turn, stored.get(turn.token, ()))
        assert conversation.compacted <= len(log.markers) <= conversation.maybe_compacted
        conversation.compacted = conversation.maybe_compacted = len(log.markers)
        for request in self._requests(conversation):
            check_request(request, log)
        return log

    def _requests(self, conversation: ClientConversation) -> list[dict[str, Any]]:
        """The model requests of this conversation."""
        token = f"#{conversation.pair.sender}/"
        return [
            request
            for request in self._model.requests
            if any(token in str(m["content"]) for m in request["messages"] if m["role"] == "user")
        ]

    async def _check_files(self, client: Client) -> None:
        """Each file is complete, and has an acknowledged value or one that was being written."""
        listed = {agent.name: agent.description for agent in (await client.list_agents()).agents}
        for name, setting in self._prompts.items():
            path = self._home / "agents" / f"{name}.toml"
            document = tomllib.loads(path.read_text()) if path.exists() else {"prompt": ""}
            setting.check_value(document["prompt"])
            assert listed.get(name, "") == document["prompt"][:20]
        existing = {name for name, setting in self._prompts.items() if setting.values != [""]}
        assert {path.stem for path in (self._home / "agents").glob("*.toml")} == listed.keys()
        assert listed.keys() == {"crab", "owl"} | existing
        config = tomllib.loads((self._home / "config.toml").read_text())
        assert config["providers"][0]["base_url"] == self._model.url
        self._active.check_value(config.get("daemon", {}).get("model", ""))
        problems = (await client.get_stats()).problems
        assert not problems, problems
