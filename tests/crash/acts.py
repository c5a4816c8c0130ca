"""What clients do to a daemon until it is killed, what they remember of it, and what kills it.

Each has a random source of its own: a seed decides what everybody does, and only how it falls in
time is new.
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
from tests.crash.checks import Turn
from tests.crash.process import Process, note

# For each kind of moment, how many of them may pass before, and how long after, in microseconds.
MOMENTS = {
    "sent": (6, 3_000),  # a request of any kind
    "accepted": (8, 2_000),  # a turn or a steer was acknowledged
    "asked": (10, 2_000),  # the model, by the daemon
    "event": (120, 300),  # of a stream, as the client sees it
    "tool": (4, 30_000),  # calls, while tools run
    "result": (5, 2_000),  # of a tool
    "compacting": (2, 3_000),  # the model was asked for a summary
    "update": (3, 5_000),  # of an agent, or of the configuration
    "over": (5, 1_000),  # a turn
}


class Trigger:
    """Kills the daemon a little after the n-th moment of a kind, or now and then asks it to stop.
    A thread does, because an event loop cannot wait for so short a time."""

    def __init__(self, process: Process, choose: random.Random) -> None:
        self.kind = choose.choice(list(MOMENTS))
        most, delay = MOMENTS[self.kind]
        self.left = choose.randint(1, most)
        self.delay = choose.uniform(0, delay) / 1e6
        self.signal = signal.SIGTERM if choose.random() < 0.1 else signal.SIGKILL
        self.is_pulled = False
        self._process = process
        self._thread = threading.Thread(target=self._strike)

    def __str__(self) -> str:
        return f"{self.signal.name} {self.delay * 1e6:.0f} µs after {self.kind}"

    def happened(self, kind: str) -> None:
        if kind == self.kind and not self.is_pulled:
            self.left -= 1
            if self.left == 0:
                self.pull()

    def pull(self) -> None:
        if not self.is_pulled:
            self.is_pulled = True
            self._thread.start()

    def _strike(self) -> None:
        time.sleep(self.delay)
        self._process.signal(self.signal)

    async def done(self) -> None:
        """At the latest now, though nothing happens any more."""
        self.pull()
        await asyncio.to_thread(self._thread.join)


@dataclass
class Book:
    """A conversation, as its client remembers it."""

    pair: Pair
    turns: list[Turn] = field(default_factory=list)
    folded: int = 0  # compactions that were acknowledged
    folding: int = 0  # and those that may have happened
    data: bytes = b""  # of the log, when it was last looked at
    place: int = 0  # of turns asked for now
    closed: int = 0  # runs that starts have closed as interrupted

    def begin(self, script: str, guest: str = "") -> Turn:
        """A turn of its own name, not asked for yet."""
        said = f"#{self.pair.sender}/{len(self.turns) + 1}\n{script}"
        self.turns.append(Turn(said, guest, self.place))
        return self.turns[-1]


@dataclass
class Setting:
    """What a file may say: the last that was acknowledged, and what was sent after it."""

    values: list[str] = field(default_factory=lambda: [""])  # empty: nothing yet

    def found(self, value: str) -> None:
        assert value in self.values
        self.values[:] = [value]


class Talker:
    """A client in one conversation, for a round."""

    def __init__(self, client: Client, book: Book, trigger: Trigger, choose: random.Random) -> None:
        self._client = client
        self._book = book
        self._trigger = trigger
        self._random = choose

    async def crowd(self) -> None:
        """Nothing but turns that wait in line, and steers."""
        for _ in range(self._random.randint(1, 4)):
            self._book.place += 1
            await self._random.choice([self._queue, self._queue, self._steer])()

    async def talk(self) -> None:
        alone = [self._steer, self._interrupt, self._queue]  # they might hit others
        acts = [self._speak, self._speak, self._send, self._leave, self._compact]
        for _ in range(self._random.randint(2, 5)):
            self._book.place += 1
            chosen = self._random.choices(acts, k=self._random.choice([1, 1, 2]))
            if self._random.random() < 0.3:
                chosen = [self._random.choice(alone)]
            work = [act() for act in chosen]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _speak(self) -> None:
        turn = self._begin()
        async for _ in self._events(turn):
            pass
        assert bool(turn.error) == ("!status" in turn.said), turn.error

    async def _leave(self) -> None:
        """Goes away in the middle, and takes the run along."""
        left = self._random.randint(1, 12)
        turn = self._begin()
        async with aclosing(self._events(turn)) as events:
            async for _ in events:
                left -= 1
                if left == 0:
                    turn.is_taken_back = True
                    break

    async def _interrupt(self) -> None:
        """Has the run killed."""
        left = self._random.randint(1, 12)
        async for _ in self._events(self._begin()):
            left -= 1
            if left == 0:
                await self._client.kill(self._book.pair.agent, sender=self._book.pair.sender)

    async def _steer(self) -> None:
        """Says something into a turn while its tools run."""
        turn = self._book.begin(f"{self._calls()}\n!then\n!say not said any more")
        async for event in self._events(turn):
            if isinstance(event, wire.ToolResultEvent) and not turn.steers:
                await self._say_into(turn)

    async def _say_into(self, turn: Turn) -> None:
        """Steers it, and remembers that it was acknowledged."""
        agent, sender = self._book.pair
        turn.steered += 1
        said = f"#{turn.token}+{turn.steered}\n!say steered, schön"
        with suppress(ServerError):  # too late to be heard
            await self._client.steer_session(agent, said, sender=sender)
            turn.steers.append(said)
            self._trigger.happened("accepted")

    async def _queue(self) -> None:
        """Has turns wait behind one that takes its time, each asked for when the one before it was
        accepted, and steers the one that runs."""
        last = self._book.begin(f"{self._calls(80)}\n!then\n!say that was slow")
        work = [asyncio.ensure_future(self._steer_often(last))]
        try:
            for _ in range(self._random.randint(2, 5)):
                await self._until_accepted(last, work[-1])
                self._book.place += 1
                last = self._book.begin(f"!say me too\n{padding(self._random, 20_000)}")
                work.append(asyncio.ensure_future(self._exhaust(last)))
        finally:
            outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _steer_often(self, turn: Turn) -> None:
        async with asyncio.TaskGroup() as group:
            async for event in self._events(turn):
                if isinstance(event, wire.ToolStartEvent) and not event.early:
                    for _ in range(self._random.randint(1, 3)):
                        group.create_task(self._say_into(turn))

    async def _exhaust(self, turn: Turn) -> None:
        async for _ in self._events(turn):
            pass

    async def _until_accepted(self, turn: Turn, work: "asyncio.Task[None]") -> None:
        while not turn.events and not work.done():
            await asyncio.sleep(0)

    async def _send(self) -> None:
        turn = self._begin(fails=False)
        self._trigger.happened("sent")
        agent, sender = self._book.pair
        reply = await self._client.send(agent, turn.said, sender=sender, guest=turn.guest or None)
        turn.answer = reply.content
        turn.is_over = True
        self._trigger.happened("over")

    async def _compact(self) -> None:
        if not self._book.turns:
            return
        self._book.folding += 1
        self._trigger.happened("sent")
        try:
            await self._client.compact(self._book.pair.agent, sender=self._book.pair.sender)
            self._book.folded += 1
        except ServerError as error:
            if error.code not in (400, 404):  # there is nothing to compact
                raise
            self._book.folding -= 1

    async def _events(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """A turn's events, each of them noted."""
        self._trigger.happened("sent")
        agent, sender = self._book.pair
        stream = self._client.stream(agent, turn.said, sender=sender, guest=turn.guest or None)
        async with aclosing(stream) as events:
            async for event in events:
                note(turn, event)
                self._notice(event)
                yield event

    def _notice(self, event: Event) -> None:
        self._trigger.happened("event")
        match event:
            case wire.StreamStart():
                self._trigger.happened("accepted")
            case wire.ToolStartEvent() if not event.early:
                self._trigger.happened("tool")
            case wire.ToolResultEvent():
                self._trigger.happened("result")
            case wire.StreamEnd():
                self._trigger.happened("over")

    def _begin(self, *, fails: bool = True) -> Turn:
        kinds = ["say", "chunks", "think", "tools", "tools", "twice", "large", "guest"]
        kind = self._random.choice(kinds + ["status"] * fails)
        match kind:
            case "chunks":
                count, rate = self._random.randint(1, 60), self._random.choice([0, 500, 2000])
                script = f"!chunks {count} {rate}"
            case "think":
                script = "!think now let me see\n!say I see, größtenteils"
            case "tools":
                script = f"!say one moment\n{self._calls()}\n!then\n!say that was slow"
            case "twice":
                script = f"{self._calls()}\n!then\n{self._calls()}\n!then\n!chunks 5 0"
            case "large":
                script = f"!say a lot\n{padding(self._random, 400_000)}"
            case "status":
                script = "!say well,\n!status 400 no"
            case _:
                script = "!say good day to you"
        return self._book.begin(script, "owl" if kind == "guest" else "")

    def _calls(self, longest: int = 25) -> str:
        arguments = [{"ms": self._random.randint(0, longest), "say": word} for word in "ab"]
        return "\n".join(f"!tool slow {json.dumps(entry)}" for entry in arguments)


class Owner:
    """A client who has files replaced: those of agents, and the configuration."""

    def __init__(
        self,
        client: Client,
        prompts: dict[str, Setting],
        active: Setting,
        trigger: Trigger,
        choose: random.Random,
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._active = active
        self._trigger = trigger
        self._random = choose

    async def change(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            self._trigger.happened("update")
            if self._random.random() < 0.3:
                await self._choose_model()
            else:
                await self._change_agent()

    async def _choose_model(self) -> None:
        model = self._random.choice(["scripted", "spare"])
        self._active.values.append(model)
        await self._client.set_active_model(model)
        self._active.found(model)

    async def _change_agent(self) -> None:
        name = self._random.choice(["mole", f"new-{len(self._prompts)}"])
        setting = self._prompts.setdefault(name, Setting())
        prompt = f"Mind {self._random.random()}. {padding(self._random, 40_000)}"
        setting.values.append(prompt)
        settings = {"description": prompt[:20], "thinking": self._random.random() < 0.5}
        await self._client.update_agent(name, settings, prompt=prompt)
        setting.found(prompt)


def padding(choose: random.Random, most: int) -> str:
    return "ö word " * (choose.randint(0, most) // 8)
