"""A siege: people talk while their gateway, a process, is killed again and again at any moment, and
while the network cuts what it sends.

    report = await siege(Town(...), rounds=10, seed=7)

Each chat says its next thing when the last one was answered, so that every word has its answer; one
chat says things in bursts, so that turns are steered.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch
from tests.warm import Started

PATIENCE = 120
# Seconds that a gateway lives, at most.
LIFE = 0.6
SCRIPTS = (
    "WORD",
    "!say WORD\n!tool dig {}\n!then\n!say Found.",
    "!say WORD\n!chunks 60 100",
)
STEERED = SCRIPTS[1]


@dataclass(frozen=True, slots=True)
class Town:
    """A gateway with a chat service in front and a daemon behind it, whose agents can `dig`."""

    journal: Path
    chats: tuple[str, ...]
    bursts: str
    running: Callable[[], AbstractAsyncContextManager[Started]]
    says: Callable[[str, str], object]  # text, chat
    texts: Callable[[str], list[str]]  # that a chat was sent
    heard: Callable[[str], Awaitable[list[str]]]  # of a chat, by the agent
    asked: Callable[[], int]  # how often the service was asked for updates
    is_read: Callable[[], bool]  # whether the service has nothing left to give
    cut: Callable[[random.Random], None] = lambda _: None  # the next message that is sent


@dataclass
class Report:
    said: int = 0
    kills: int = 0
    lost: list[str] = field(default_factory=list)  # words that no agent heard
    repeated: list[str] = field(default_factory=list)  # words that one heard twice
    unanswered: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # answered twice without a mark
    marked: int = 0  # messages that say they may be there twice

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.repeated or self.unanswered or self.doubled)


async def siege(town: Town, *, rounds: int, seed: int) -> Report:
    return await Siege(town, seed).run(rounds)


async def dig(call: ToolDispatch) -> str:
    """Takes long enough to be killed, or steered, meanwhile."""
    await asyncio.sleep(0.1)
    return "sand"


class Siege:
    def __init__(self, town: Town, seed: int) -> None:
        self._town = town
        self._random = random.Random(seed)
        self._words: dict[str, list[str]] = {chat: [] for chat in (*town.chats, town.bursts)}
        self._is_over = False

    async def run(self, rounds: int) -> Report:
        people = [asyncio.ensure_future(self._talk(chat)) for chat in self._town.chats]
        people.append(asyncio.ensure_future(self._talk_in_bursts()))
        report = Report()
        try:
            for _ in range(rounds):
                async with self._town.running() as process:
                    await self._is_up()
                    self._town.cut(self._random)
                    await asyncio.sleep(self._random.uniform(0, LIFE))
                    process.kill()
                    report.kills += 1
            async with self._town.running() as process:
                self._is_over = True
                async with asyncio.timeout(PATIENCE):
                    await asyncio.gather(*people)
                    await self._settled()
                process.terminate()
                assert await process.wait() == 0
        finally:
            for task in people:
                task.cancel()
            await asyncio.gather(*people, return_exceptions=True)
        await self._judge(report)
        return report

    async def _is_up(self) -> None:
        before = self._town.asked()
        await until(lambda: self._town.asked() > before)

    def _say(self, chat: str, script: str) -> str:
        word = f"w-{chat}-{len(self._words[chat]) + 1}-w"
        self._words[chat].append(word)
        self._town.says(script.replace("WORD", word), chat)
        return word

    async def _talk(self, chat: str) -> None:
        while not self._is_over:
            word = self._say(chat, self._random.choice(SCRIPTS))
            while word not in "".join(self._town.texts(chat)):
                await asyncio.sleep(0.05)

    async def _talk_in_bursts(self) -> None:
        while not self._is_over:
            for _ in range(self._random.randint(1, 4)):
                word = self._say(self._town.bursts, STEERED)
            while word not in "".join(await self._town.heard(self._town.bursts)):
                await asyncio.sleep(self._random.uniform(0.0, 0.1))

    async def _settled(self) -> None:
        """Until the gateway has nothing left to do: what it has not done is in its journal."""
        await until(self._town.is_read)
        while Journal.peek(self._town.journal).items:
            await asyncio.sleep(0.1)

    async def _judge(self, report: Report) -> None:
        for chat, words in self._words.items():
            heard = "".join(await self._town.heard(chat))
            report.said += len(words)
            report.lost += [word for word in words if word not in heard]
            report.repeated += [word for word in words if heard.count(word) > 1]
            texts = self._town.texts(chat)
            marked = [text for text in texts if SENT_AGAIN in text]
            report.marked += len(marked)
            found = Counter(
                word for text in texts if text not in marked for word in words if word in text
            )
            report.doubled += [word for word, count in found.items() if count > 1]
            if chat != self._town.bursts:  # where one answer may be to several words
                every = "".join(texts)
                report.unanswered += [word for word in words if word not in every]


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not claim():
            await asyncio.sleep(0.01)
