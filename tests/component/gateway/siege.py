"""A siege: people talk while their gateway, a process, is killed again and again at any moment, the
daemon behind it as well, and while the network cuts what the gateway sends.

    report = await siege(Town(...), rounds=10, seed=7)

Each chat says its next thing when the last one was answered, so that every word has its answer; one
chat says things in bursts, so that turns are steered. An answer is the agent's, or that the daemon
ended while it worked on it.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from crabtalk.component.gateway.journal import Journal
from crabtalk.component.gateway.reply import SENT_AGAIN
from crabtalk.component.gateway.turn import INTERRUPTED
from crabtalk.component.gateway.writing import DONE, FAILED
from crabtalk.protocol import wire
from tests.component.gateway.besieged_daemon import BesiegedDaemon
from tests.warm import Started

PATIENCE = 60
# Seconds that a gateway lives, at most, and that a daemon lives.
LIFE = 0.6
DAEMON_LIFE = (0.3, 1.2)
FILES = '!tool send_file {"path": "good-NAME.txt"}\n!tool send_file {"path": "bad-NAME.txt"}'
SCRIPTS = (
    "WORD",
    "!say WORD\n!tool dig {}\n!then\n!say Found.",
    "!say WORD\n!chunks 60 100",
    f"!say WORD\n{FILES}\n!then\n!say Sent.",
)
STEERED = SCRIPTS[1]
# In what a chat is told of a turn that the daemon's end cut off.
CUT_OFF = ("the daemon ended", INTERRUPTED)


@dataclass(frozen=True, slots=True)
class Town:
    """A gateway with a chat service in front and a daemon behind it."""

    daemon: BesiegedDaemon
    journal: Path
    chats: tuple[str, ...]
    bursts: str
    running: Callable[[], AbstractAsyncContextManager[Started]]
    says: Callable[[str, str], object]  # text, chat
    texts: Callable[[str], list[str]]  # that a chat was sent
    files: Callable[[str], list[tuple[str, bool]]]  # name, and whether it says it may be a double
    sender: Callable[[str], str]  # of a chat, at the daemon
    asked: Callable[[], int]  # how often the service was asked for updates
    is_read: Callable[[], bool]  # whether the service has nothing left to give
    cut: Callable[[random.Random], None] = lambda _: None  # the next message that is sent


@dataclass
class Report:
    said: int = 0
    kills: int = 0
    daemon_kills: int = 0
    cut_off: int = 0  # turns of which people were told so
    failed_calls: int = 0
    files: int = 0
    lost: list[str] = field(default_factory=list)  # words that no agent heard
    repeated: list[str] = field(default_factory=list)  # words that one heard twice
    unanswered: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  # answered twice without a mark
    lost_files: list[str] = field(default_factory=list)
    doubled_files: list[str] = field(default_factory=list)  # without a mark
    wrong_files: list[str] = field(default_factory=list)  # of calls that failed
    wrong_signs: list[str] = field(default_factory=list)  # failed calls shown as done
    marked: int = 0  # messages that say they may be there twice

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost
            or self.repeated
            or self.unanswered
            or self.doubled
            or self.lost_files
            or self.doubled_files
            or self.wrong_files
            or self.wrong_signs
        )


async def siege(town: Town, *, rounds: int, seed: int) -> Report:
    return await Siege(town, seed).run(rounds)


class Siege:
    def __init__(self, town: Town, seed: int) -> None:
        self._town = town
        self._random = random.Random(seed)
        self._words: dict[str, list[str]] = {chat: [] for chat in (*town.chats, town.bursts)}
        self._is_over = False
        self._report = Report()

    async def run(self, rounds: int) -> Report:
        people = [asyncio.ensure_future(self._talk(chat)) for chat in self._town.chats]
        people.append(asyncio.ensure_future(self._talk_in_bursts()))
        killing = asyncio.ensure_future(self._kill_daemons(rounds))
        try:
            for _ in range(rounds):
                async with self._town.running() as process:
                    await self._is_up()
                    self._town.cut(self._random)
                    await asyncio.sleep(self._random.uniform(0, LIFE))
                    process.kill()
                    self._report.kills += 1
            async with self._town.running() as process:
                await killing
                self._is_over = True
                try:
                    async with asyncio.timeout(PATIENCE):
                        await asyncio.gather(*people)
                        await self._settled()
                except TimeoutError:
                    raise AssertionError(self._describe()) from None
                process.terminate()
                assert await process.wait() == 0
        finally:
            for task in (*people, killing):
                task.cancel()
            await asyncio.gather(*people, killing, return_exceptions=True)
        await self._judge()
        return self._report

    async def _kill_daemons(self, rounds: int) -> None:
        while self._report.daemon_kills < rounds:
            await asyncio.sleep(self._random.uniform(*DAEMON_LIFE))
            await self._town.daemon.kill()
            self._report.daemon_kills += 1
            await self._town.daemon.start()

    async def _is_up(self) -> None:
        before = self._town.asked()
        await until(lambda: self._town.asked() > before)

    def _say(self, chat: str, script: str) -> str:
        word = f"w-{chat}-{len(self._words[chat]) + 1}-w"
        self._words[chat].append(word)
        name = word.strip("w-")  # which is not found where words are looked for
        self._town.says(script.replace("WORD", word).replace("NAME", name), chat)
        return word

    async def _talk(self, chat: str) -> None:
        while not self._is_over:
            notes = self._count_notes(chat)
            word = self._say(chat, self._random.choice(SCRIPTS))
            while word not in self._all(chat) and self._count_notes(chat) == notes:
                await asyncio.sleep(0.05)

    async def _talk_in_bursts(self) -> None:
        chat = self._town.bursts
        while not self._is_over:
            for _ in range(self._random.randint(1, 4)):
                word = self._say(chat, STEERED)
            while word not in "".join(await self._town.daemon.heard(self._town.sender(chat))):
                await asyncio.sleep(self._random.uniform(0.0, 0.1))

    def _describe(self) -> str:
        """The end of each chat, where something did not come to its end."""
        return "\n".join(
            f"{chat}: said {words[-2:]}, was told {self._town.texts(chat)[-4:]}"
            for chat, words in self._words.items()
        )

    def _all(self, chat: str) -> str:
        return "".join(self._town.texts(chat))

    def _count_notes(self, chat: str) -> int:
        """How often the chat was told that a turn was cut off."""
        return sum(self._all(chat).count(note) for note in CUT_OFF)

    async def _settled(self) -> None:
        """Until the gateway has nothing left to do: what it has not done is in its journal."""
        await until(self._town.is_read)
        while Journal.peek(self._town.journal).items:
            await asyncio.sleep(0.1)

    # ── What came of it ─────────────────────────────────────────────────────────────────────

    async def _judge(self) -> None:
        for chat, words in self._words.items():
            records = await self._town.daemon.records(self._town.sender(chat))
            messages = [one.message for one in records if one.HasField("message")]
            self._judge_answers(chat, words, messages, runs_over(records))
            self._judge_files(chat, messages)
            self._report.cut_off += self._count_notes(chat)

    def _judge_answers(
        self,
        chat: str,
        words: list[str],
        messages: list[wire.ConversationMessage],
        over: set[str],
    ) -> None:
        report, texts = self._report, self._town.texts(chat)
        marked = [text for text in texts if SENT_AGAIN in text]
        report.marked += len(marked)
        report.said += len(words)
        said = [m for m in messages if m.role == "user"]
        for word in words:
            found = [m for m in said if word in m.content]
            if not found:
                report.lost.append(word)
            if len(found) > 1:
                report.repeated.append(word)
            if sum(word in text for text in texts if text not in marked) > 1:
                report.doubled.append(word)
            # Words of one run may have one answer: a burst, or what was said when the note of the
            # turn before it came late and looked like the end of this one.
            runs = {m.run_id for m in found}
            together = {one for m in said if m.run_id in runs for one in words if one in m.content}
            is_due = chat != self._town.bursts and runs <= over
            if is_due and not any(one in self._all(chat) for one in together | {word}):
                report.unanswered.append(word)

    def _judge_files(self, chat: str, messages: list[wire.ConversationMessage]) -> None:
        report, sent = self._report, self._town.files(chat)
        names = {
            (m.run_id, call.id): name_in(call.arguments)
            for m in messages
            for call in m.tool_calls
            if call.name == "send_file"
        }
        results = [(names.get((m.run_id, m.call_id), ""), m) for m in messages if m.role == "tool"]
        good = {name for name, m in results if name and not m.is_error}
        report.failed_calls += sum(bool(name) and m.is_error for name, m in results)
        report.files += len(sent)
        unmarked = Counter(name for name, is_marked in sent if not is_marked)
        report.lost_files += sorted(good - {name for name, _ in sent})
        report.wrong_files += sorted({name for name, _ in sent} - good)
        report.doubled_files += [name for name, count in unmarked.items() if count > 1]
        report.wrong_signs += [
            text for text in self._town.texts(chat) if DONE in text and "bad-" in done_in(text)
        ]


def runs_over(records: list[wire.ConversationRecord]) -> set[str]:
    """Runs that the daemon saw to their end: one that was steered may go on after an end."""
    over: set[str] = set()
    for record in records:
        if record.HasField("message"):
            over.discard(record.message.run_id)
        elif record.HasField("run_end") and not record.run_end.interrupted:
            over.add(record.run_end.run_id)
    return over


def name_in(arguments: str) -> str:
    return arguments.partition('"path": "')[2].rpartition('"')[0]


def done_in(text: str) -> str:
    """The calls that a text says were carried out."""
    return text.partition(DONE)[2].partition(FAILED)[0]


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not claim():
            await asyncio.sleep(0.01)
