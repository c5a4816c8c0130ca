"""A siege: people talk while their gateway, a process, is killed again and again at any moment, and
while the network cuts what it sends.

    report = await siege(path, rounds=5, seed=7)

Each chat says its next thing when the last one was answered; one says things in bursts, so that
turns are steered.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from apps.wechat.tests.command import running
from apps.wechat.tests.ilink_api import TOKEN, Fault
from apps.wechat.tests.world import World, world
from crabtalk.component.gateway import write_settings
from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch

CHATS = ("x101", "x102", "x103")
BURSTS = "x200"
PATIENCE = 120
CUTS = (Fault(0), Fault(0, is_done=True), Fault(502), Fault(429, retry_after="1"))


@dataclass
class Report:
    said: int = 0
    kills: int = 0
    lost: list[str] = field(default_factory=list)  # words that no agent heard
    repeated: list[str] = field(default_factory=list)  # words that one heard twice
    unanswered: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # answered twice without a mark

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.repeated or self.unanswered or self.doubled)


class Siege:
    def __init__(self, w: World, seed: int) -> None:
        self._w = w
        self._random = random.Random(seed)
        self._words: dict[str, list[str]] = {chat: [] for chat in (*CHATS, BURSTS)}
        self._is_over = False

    async def run(self, rounds: int) -> Report:
        people = [asyncio.ensure_future(self._talk(chat)) for chat in CHATS]
        people.append(asyncio.ensure_future(self._talk_in_bursts()))
        report = Report()
        try:
            for _ in range(rounds):
                async with running(self._w.home) as process:
                    await self._is_up()
                    self._w.api.fail("sendmessage", self._random.choice(CUTS))
                    await asyncio.sleep(self._random.uniform(0, 0.6))
                    process.kill()
                    report.kills += 1
            async with running(self._w.home) as process:
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
        before = self._w.api.calls["getupdates"]
        await self._w.until(lambda: self._w.api.calls["getupdates"] > before)

    def _say(self, chat: str, script: str) -> str:
        word = f"w{chat}y{len(self._words[chat]) + 1}w"
        self._words[chat].append(word)
        self._w.api.says(script.replace("WORD", word), chat)
        return word

    async def _talk(self, chat: str) -> None:
        scripts = (
            "WORD",
            "!say WORD\n!tool dig {}\n!then\n!say Found.",
            "!say WORD\n!chunks 60 100",
        )
        while not self._is_over:
            word = self._say(chat, self._random.choice(scripts))
            while word not in "".join(self._w.api.texts(chat)):
                await asyncio.sleep(0.05)

    async def _talk_in_bursts(self) -> None:
        while not self._is_over:
            for _ in range(self._random.randint(1, 4)):
                word = self._say(BURSTS, "!say WORD\n!tool dig {}\n!then\n!say Found.")
            while word not in "".join(await self._w.heard(BURSTS)):
                await asyncio.sleep(0.1)

    async def _settled(self) -> None:
        """Until the gateway has nothing left to do: what it has not done is in its journal."""
        await self._w.until(lambda: self._w.api.is_read)
        while Journal.peek(self._w.home / "wechat" / "journal").items:
            await asyncio.sleep(0.1)

    async def _judge(self, report: Report) -> None:
        for chat, words in self._words.items():
            heard = "".join(await self._w.heard(chat))
            report.said += len(words)
            report.lost += [word for word in words if word not in heard]
            report.repeated += [word for word in words if heard.count(word) > 1]
            if chat == BURSTS:
                continue
            texts = self._w.api.texts(chat)
            found = Counter(
                word for text in texts if SENT_AGAIN not in text for word in words if word in text
            )
            every = "".join(texts)
            report.unanswered += [word for word in words if word not in every]
            report.doubled += [word for word, count in found.items() if count > 1]


async def siege(path: Path, *, rounds: int, seed: int) -> Report:
    async def dig(call: ToolDispatch) -> str:
        await asyncio.sleep(0.1)
        return "sand"

    async with world(path, tools={"dig": dig}) as w:
        write_settings(
            w.home / "config" / "wechat.toml",
            {"token": TOKEN, "base_url": w.api.url, "allowed_users": [*CHATS, BURSTS]},
        )
        return await Siege(w, seed).run(rounds)
