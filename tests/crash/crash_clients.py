"""Clients that use a daemon until it is killed, their records of it, and the trigger that kills it.

Each has its own random source: the seed decides what each client does, and only the timing differs
between runs.
"""

import asyncio
import json
import random
import signal
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from crabtalk.client import Client, ServerError
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from crabtalk.storage import Pair
from tests.crash.checks import ClientTurn
from tests.crash.launched_daemon import LaunchedDaemon, record_event

# For each kind of event: the most events before the kill, and the longest delay after the last of
# them, in microseconds.
KILL_POINTS = {
    "sent": (6, 3_000),  # a request of any kind
    "accepted": (8, 2_000),  # a turn or a steer was acknowledged
    "asked": (10, 2_000),  # the daemon sent a request to the model
    "event": (120, 300),  # the client got an event of a stream
    "tool": (4, 30_000),  # tool calls began
    "result": (5, 2_000),  # a tool finished
    "compacting": (2, 3_000),  # the model was asked for a summary
    "update": (3, 5_000),  # an agent or the configuration was changed
    "over": (5, 1_000),  # a turn ended
}


class KillTrigger:
    """Kills the daemon shortly after the n-th event of a kind; sometimes sends SIGTERM instead. A
    thread does so, because an event loop cannot wait for so short a time."""

    def __init__(self, process: LaunchedDaemon, choose: random.Random) -> None:
        self.kind = choose.choice(list(KILL_POINTS))
        most, delay = KILL_POINTS[self.kind]
        self.left = choose.randint(1, most)
        self.delay = choose.uniform(0, delay) / 1e6
        self.signal = signal.SIGTERM if choose.random() < 0.1 else signal.SIGKILL
        self.is_fired = False
        self._process = process
        self._thread = threading.Thread(target=self._send_signal)

    def __str__(self) -> str:
        return f"{self.signal.name} {self.delay * 1e6:.0f} µs after {self.kind}"

    def count_event(self, kind: str) -> None:
        if kind == self.kind and not self.is_fired:
            self.left -= 1
            if self.left == 0:
                self.fire()

    def fire(self) -> None:
        if not self.is_fired:
            self.is_fired = True
            self._thread.start()

    def _send_signal(self) -> None:
        time.sleep(self.delay)
        self._process.send_signal(self.signal)

    async def wait_until_fired(self) -> None:
        """Fires now if the event did not happen, and waits for the signal to be sent."""
        self.fire()
        await asyncio.to_thread(self._thread.join)


@dataclass
class ClientConversation:
    """A conversation, as its client knows it."""

    pair: Pair
    turns: list[ClientTurn] = field(default_factory=list)
    compacted: int = 0  # compactions that were acknowledged
    maybe_compacted: int = 0  # the same with those that may have happened
    log_data: bytes = b""  # the log when it was last read
    step: int = 0  # the current step
    closed: int = 0  # runs that were closed as interrupted

    def begin_turn(self, script: str, guest: str = "") -> ClientTurn:
        """Adds a turn with a new token; it is not sent yet."""
        content = f"#{self.pair.sender}/{len(self.turns) + 1}\n{script}"
        self.turns.append(ClientTurn(content, guest, self.step))
        return self.turns[-1]


@dataclass
class AcknowledgedSetting:
    """The possible values of a setting: the last acknowledged one, and those sent after it."""

    values: list[str] = field(default_factory=lambda: [""])  # empty: not set yet

    def check_value(self, value: str) -> None:
        assert value in self.values
        self.values[:] = [value]


class CrashClient:
    """A client in one conversation, for a round."""

    def __init__(
        self,
        client: Client,
        conversation: ClientConversation,
        trigger: KillTrigger,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._conversation = conversation
        self._trigger = trigger
        self._random = rng

    async def run_crowded(self) -> None:
        """Sends only turns that wait in the queue, and steers."""
        for _ in range(self._random.randint(1, 4)):
            self._conversation.step += 1
            await self._random.choice([self._queue_turns, self._queue_turns, self._steer_turn])()

    async def run_mixed(self) -> None:
        # These might affect concurrent turns, so each runs alone.
        alone = [self._steer_turn, self._kill_turn, self._queue_turns]
        actions = [
            self._stream_turn,
            self._stream_turn,
            self._send_turn,
            self._leave_turn,
            self._compact_conversation,
        ]
        for _ in range(self._random.randint(2, 5)):
            self._conversation.step += 1
            chosen = self._random.choices(actions, k=self._random.choice([1, 1, 2]))
            if self._random.random() < 0.3:
                chosen = [self._random.choice(alone)]
            work = [action() for action in chosen]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _stream_turn(self) -> None:
        turn = self._begin_turn()
        async for _ in self._read_events(turn):
            pass
        assert bool(turn.error) == ("!status" in turn.content), turn.error

    async def _leave_turn(self) -> None:
        """Leaves in the middle of a turn, which ends the run."""
        left = self._random.randint(1, 12)
        turn = self._begin_turn()
        async with aclosing(self._read_events(turn)) as events:
            async for _ in events:
                left -= 1
                if left == 0:
                    turn.is_withdrawn = True
                    break

    async def _kill_turn(self) -> None:
        """Kills the run in the middle of a turn."""
        left = self._random.randint(1, 12)
        async for _ in self._read_events(self._begin_turn()):
            left -= 1
            if left == 0:
                await self._client.kill(
                    self._conversation.pair.agent, sender=self._conversation.pair.sender
                )

    async def _steer_turn(self) -> None:
        """Sends a steering message while the turn's tools run."""
        turn = self._conversation.begin_turn(f"{self._make_calls()}\n!then\n!say not said any more")
        async for event in self._read_events(turn):
            if isinstance(event, wire.ToolResultEvent) and not turn.steers:
                await self._send_steer(turn)

    async def _send_steer(self, turn: ClientTurn) -> None:
        """Sends a steering message, and records it once it is acknowledged."""
        agent, sender = self._conversation.pair
        turn.steer_attempts += 1
        text = f"#{turn.token}+{turn.steer_attempts}\n!say steered, schön"
        with suppress(ServerError):  # the run was over already
            await self._client.steer_session(agent, text, sender=sender)
            turn.steers.append(text)
            self._trigger.count_event("accepted")

    async def _queue_turns(self) -> None:
        """Queues turns behind a slow one, each sent when the one before it was accepted, and
        steers the running one."""
        last = self._conversation.begin_turn(f"{self._make_calls(80)}\n!then\n!say that was slow")
        work = [asyncio.ensure_future(self._steer_often(last))]
        try:
            for _ in range(self._random.randint(2, 5)):
                await self._wait_until_accepted(last, work[-1])
                self._conversation.step += 1
                last = self._conversation.begin_turn(
                    f"!say me too\n{make_padding(self._random, 20_000)}"
                )
                work.append(asyncio.ensure_future(self._read_all(last)))
        finally:
            outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _steer_often(self, turn: ClientTurn) -> None:
        async with asyncio.TaskGroup() as group:
            async for event in self._read_events(turn):
                if isinstance(event, wire.ToolStartEvent) and not event.early:
                    for _ in range(self._random.randint(1, 3)):
                        group.create_task(self._send_steer(turn))

    async def _read_all(self, turn: ClientTurn) -> None:
        async for _ in self._read_events(turn):
            pass

    async def _wait_until_accepted(self, turn: ClientTurn, work: "asyncio.Task[None]") -> None:
        while not turn.events and not work.done():
            await asyncio.sleep(0)

    async def _send_turn(self) -> None:
        turn = self._begin_turn(fails=False)
        self._trigger.count_event("sent")
        agent, sender = self._conversation.pair
        reply = await self._client.send(
            agent, turn.content, sender=sender, guest=turn.guest or None
        )
        turn.answer = reply.content
        turn.is_over = True
        self._trigger.count_event("over")

    async def _compact_conversation(self) -> None:
        if not self._conversation.turns:
            return
        self._conversation.maybe_compacted += 1
        self._trigger.count_event("sent")
        try:
            await self._client.compact(
                self._conversation.pair.agent, sender=self._conversation.pair.sender
            )
            self._conversation.compacted += 1
        except ServerError as error:
            if error.code not in (400, 404):  # there is nothing to compact
                raise
            self._conversation.maybe_compacted -= 1

    async def _read_events(self, turn: ClientTurn) -> AsyncGenerator[Event, None]:
        """Sends a turn and records each of its events."""
        self._trigger.count_event("sent")
        agent, sender = self._conversation.pair
        stream = self._client.stream(agent, turn.content, sender=sender, guest=turn.guest or None)
        async with aclosing(stream) as events:
            async for event in events:
                record_event(turn, event)
                self._count_events(event)
                yield event

    def _count_events(self, event: Event) -> None:
        self._trigger.count_event("event")
        match event:
            case wire.StreamStart():
                self._trigger.count_event("accepted")
            case wire.ToolStartEvent() if not event.early:
                self._trigger.count_event("tool")
            case wire.ToolResultEvent():
                self._trigger.count_event("result")
            case wire.StreamEnd():
                self._trigger.count_event("over")

    def _begin_turn(self, *, fails: bool = True) -> ClientTurn:
        kinds = ["say", "chunks", "think", "tools", "tools", "twice", "large", "guest"]
        kind = self._random.choice(kinds + ["status"] * fails)
        match kind:
            case "chunks":
                count, rate = self._random.randint(1, 60), self._random.choice([0, 500, 2000])
                script = f"!chunks {count} {rate}"
            case "think":
                script = "!think now let me see\n!say I see, größtenteils"
            case "tools":
                script = f"!say one moment\n{self._make_calls()}\n!then\n!say that was slow"
            case "twice":
                script = f"{self._make_calls()}\n!then\n{self._make_calls()}\n!then\n!chunks 5 0"
            case "large":
                script = f"!say a lot\n{make_padding(self._random, 400_000)}"
            case "status":
                script = "!say well,\n!status 400 no"
            case _:
                script = "!say good day to you"
        return self._conversation.begin_turn(script, "owl" if kind == "guest" else "")

    def _make_calls(self, longest: int = 25) -> str:
        arguments = [{"ms": self._random.randint(0, longest), "say": word} for word in "ab"]
        return "\n".join(f"!tool slow {json.dumps(entry)}" for entry in arguments)


class SettingsClient:
    """A client that changes agents and the configuration, whose files the daemon replaces."""

    def __init__(
        self,
        client: Client,
        prompts: dict[str, AcknowledgedSetting],
        active: AcknowledgedSetting,
        trigger: KillTrigger,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._active = active
        self._trigger = trigger
        self._random = rng

    async def change_settings(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._trigger.count_event("update")
            if self._random.random() < 0.3:
                await self._choose_model()
            else:
                await self._change_agent()

    async def _choose_model(self) -> None:
        model = self._random.choice(["scripted", "spare"])
        self._active.values.append(model)
        await self._client.set_active_model(model)
        self._active.check_value(model)

    async def _change_agent(self) -> None:
        name = self._random.choice(["mole", f"new-{len(self._prompts)}"])
        setting = self._prompts.setdefault(name, AcknowledgedSetting())
        prompt = f"Mind {self._random.random()}. {make_padding(self._random, 40_000)}"
        setting.values.append(prompt)
        settings = {"description": prompt[:20], "thinking": self._random.random() < 0.5}
        await self._client.update_agent(name, settings, prompt=prompt)
        setting.check_value(prompt)


def make_padding(rng: random.Random, most: int) -> str:
    return "ö word " * (rng.randint(0, most) // 8)
