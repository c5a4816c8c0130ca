"""A siege: people talk while their gateway, a process, is killed again and again at any moment.

    report = await siege(path, rounds=10, seed=7)

Each chat says its next thing when the last one was answered, so that every word has its answer; one
chat says things in bursts, so that turns are steered.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crabtalk.client import ServerError
from crabtalk.component.gateway import write_settings
from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.runtime import ToolDispatch
from tests.component.gateway.pigeon import source
from tests.component.gateway.world import World, world

CHATS = ("101", "102", "103", "104")
BURSTS = "200"
PATIENCE = 60


@dataclass
class Report:
    said: int = 0
    kills: int = 0
    lost: list[str] = field(default_factory=list)  # words that no agent heard
    repeated: list[str] = field(default_factory=list)  # words that one heard twice
    unanswered: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # answered twice without a mark
    marked: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.lost or self.repeated or self.unanswered or self.doubled)


class Siege:
    def __init__(self, w: World, seed: int) -> None:
        self._w = w
        self._random = random.Random(seed)
        self._program = w.path / "pigeon.py"
        self._program.write_text(source())
        self._words: dict[str, list[str]] = {chat: [] for chat in (*CHATS, BURSTS)}
        self._is_over = False
        self._stopping = asyncio.Event()

    @asynccontextmanager
    async def _gateway(self) -> AsyncIterator[asyncio.subprocess.Process]:
        with (self._w.path / "output.log").open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(self._program),
                "run",
                "--home",
                str(self._w.home),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def run(self, rounds: int) -> Report:
        people = [asyncio.ensure_future(self._talk(chat)) for chat in CHATS]
        people.append(asyncio.ensure_future(self._talk_in_bursts()))
        report = Report()
        try:
            for _ in range(rounds):
                async with self._gateway() as process:
                    await self._is_up()
                    await asyncio.sleep(self._random.uniform(0, 0.6))
                    process.send_signal(signal.SIGKILL)
                    report.kills += 1
            async with self._gateway() as process:
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
        before = self._w.loft.calls.count("updates")
        await self._w.until(lambda: self._w.loft.calls.count("updates") > before)

    async def _talk(self, chat: str) -> None:
        number = 0
        while not self._is_over:
            number += 1
            word = f"w{chat}x{number}w"
            self._words[chat].append(word)
            self._w.loft.says(self._script(word), chat)
            while word not in "".join(self._w.loft.texts(chat)):
                await asyncio.sleep(0.02)

    def _script(self, word: str) -> str:
        return self._random.choice(
            (
                word,
                f"!say {word}\n!tool dig {{}}\n!then\n!say Found.",
                f"!say {word}\n!chunks 60 100",
            )
        )

    async def _talk_in_bursts(self) -> None:
        number = 0
        while not self._is_over:
            for _ in range(self._random.randint(1, 4)):
                number += 1
                word = f"w{BURSTS}x{number}w"
                self._words[BURSTS].append(word)
                self._w.loft.says(f"!say {word}\n!tool dig {{}}\n!then\n!say Found.", BURSTS)
            while word not in "".join(await self._heard(BURSTS)):
                await asyncio.sleep(self._random.uniform(0.0, 0.1))

    async def _settled(self) -> None:
        """Until the gateway has nothing left to do: what it has not done is in its journal."""
        await self._w.until(lambda: not self._w.loft.waiting)
        while Journal.peek(self._w.home / "pigeon" / "journal").items:
            await asyncio.sleep(0.1)

    async def _heard(self, chat: str) -> list[str]:
        try:
            return await self._w.heard(f"pg:{chat}")
        except ServerError:  # it has not begun
            return []

    async def _judge(self, report: Report) -> None:
        for chat, words in self._words.items():
            heard = "".join(await self._heard(chat))
            report.said += len(words)
            report.lost += [word for word in words if word not in heard]
            report.repeated += [word for word in words if heard.count(word) > 1]
            if chat == BURSTS:
                continue
            texts = self._w.loft.texts(chat)
            marked = [text for text in texts if SENT_AGAIN in text]
            report.marked += len(marked)
            found = Counter(
                word for text in texts if text not in marked for word in words if word in text
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
            w.home / "config" / "pigeon.toml",
            {"token": w.loft.token, "base_url": w.loft.url, "allowed_users": [*CHATS, BURSTS]},
        )
        return await Siege(w, seed).run(rounds)
