"""A test scenario: people talk while their gateway process is killed again and again at random
moments, the daemon too, and while the network cuts what the gateway sends.

    report = await run_kill_scenario(KillScenarioSetup(...), rounds=10, seed=7)

Each chat sends its next message when the last one was answered, so that every word has its answer;
one chat sends bursts, so that turns are steered. An answer is the agent's, or a note that the
daemon ended while it worked.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from crabtalk.client import ServerError
from crabtalk.gateway.errors import DAEMON_UNAVAILABLE_ERRORS
from crabtalk.gateway.gateway_turn import INTERRUPTED_NOTE
from crabtalk.gateway.journal import GatewayJournal
from crabtalk.gateway.streamed_reply import SENT_AGAIN_MARK
from crabtalk.gateway.turn_view import DONE_SIGN, FAILED_SIGN
from crabtalk.protocol import wire
from tests.forked_programs import ForkedProcess
from tests.gateway.restartable_daemon import RestartableDaemon

PATIENCE = 60
# Seconds that a gateway lives at most, and that a daemon lives.
MAX_GATEWAY_LIFE = 0.6
DAEMON_LIFE = (0.3, 1.2)
FILES = '!tool send_file {"path": "good-NAME.txt"}\n!tool send_file {"path": "bad-NAME.txt"}'
SCRIPTS = (
    "WORD",
    "!say WORD\n!tool dig {}\n!then\n!say Found.",
    "!say WORD\n!chunks 60 100",
    f"!say WORD\n{FILES}\n!then\n!say Sent.",
)
STEERED = SCRIPTS[1]
# The notes that a chat gets for a turn that the daemon's end cut off.
CUT_OFF_NOTES = ("the daemon ended", INTERRUPTED_NOTE)


@dataclass(frozen=True, slots=True)
class KillScenarioSetup:
    """A gateway with a chat service and a daemon."""

    daemon: RestartableDaemon
    journal: Path
    chats: tuple[str, ...]
    bursts: str
    running: Callable[[], AbstractAsyncContextManager[ForkedProcess]]
    says: Callable[[str, str], object]  # sends a text in a chat
    texts: Callable[[str], list[str]]  # the texts that a chat was sent
    files: Callable[[str], list[tuple[str, bool]]]  # name, and whether it is marked as a repeat
    sender: Callable[[str], str]  # the daemon's sender for a chat
    asked: Callable[[], int]  # how often the service was asked for updates
    is_read: Callable[[], bool]  # whether the gateway has fetched all updates
    cut: Callable[[random.Random], None] = lambda _: None  # breaks the next message that is sent


@dataclass
class GatewayKillReport:
    words_sent: int = 0
    kills: int = 0
    daemon_kills: int = 0
    cut_off: int = 0  # turns with a cut-off note
    failed_calls: int = 0
    files: int = 0
    lost_words: list[str] = field(default_factory=list)  # words that no agent received
    repeated_words: list[str] = field(default_factory=list)  # words that an agent received twice
    unanswered_words: list[str] = field(default_factory=list)
    repeated_answers: list[str] = field(default_factory=list)  # answered twice without a mark
    lost_files: list[str] = field(default_factory=list)
    repeated_files: list[str] = field(default_factory=list)  # sent twice without a mark
    wrong_files: list[str] = field(default_factory=list)  # files of failed calls
    wrong_signs: list[str] = field(default_factory=list)  # failed calls shown as done
    marked_messages: int = 0  # messages with a mark that they may be repeats

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost_words
            or self.repeated_words
            or self.unanswered_words
            or self.repeated_answers
            or self.lost_files
            or self.repeated_files
            or self.wrong_files
            or self.wrong_signs
        )


async def run_kill_scenario(
    setup: KillScenarioSetup, *, rounds: int, seed: int
) -> GatewayKillReport:
    return await GatewayKillScenario(setup, seed).run(rounds)


class GatewayKillScenario:
    def __init__(self, setup: KillScenarioSetup, seed: int) -> None:
        self._setup = setup
        self._random = random.Random(seed)
        self._words: dict[str, list[str]] = {chat: [] for chat in (*setup.chats, setup.bursts)}
        self._is_over = False
        self._report = GatewayKillReport()

    async def run(self, rounds: int) -> GatewayKillReport:
        people = [asyncio.ensure_future(self._talk_in_chat(chat)) for chat in self._setup.chats]
        people.append(asyncio.ensure_future(self._talk_in_bursts()))
        kill_task = asyncio.ensure_future(self._kill_daemons(rounds))
        try:
            for _ in range(rounds):
                async with self._setup.running() as process:
                    await self._wait_until_up()
                    self._setup.cut(self._random)
                    await asyncio.sleep(self._random.uniform(0, MAX_GATEWAY_LIFE))
                    process.kill()
                    self._report.kills += 1
            async with self._setup.running() as process:
                await kill_task
                self._is_over = True
                try:
                    async with asyncio.timeout(PATIENCE):
                        await asyncio.gather(*people)
                        await self._wait_until_done()
                except TimeoutError:
                    raise AssertionError(self._describe_chats()) from None
                process.terminate()
                assert await process.wait() == 0
        finally:
            for task in (*people, kill_task):
                task.cancel()
            await asyncio.gather(*people, kill_task, return_exceptions=True)
        await self._check_results()
        return self._report

    async def _kill_daemons(self, rounds: int) -> None:
        while self._report.daemon_kills < rounds:
            await asyncio.sleep(self._random.uniform(*DAEMON_LIFE))
            await self._setup.daemon.kill()
            self._report.daemon_kills += 1
            await self._setup.daemon.start()

    async def _wait_until_up(self) -> None:
        before = self._setup.asked()
        await wait_until(lambda: self._setup.asked() > before)

    def _send_script(self, chat: str, script: str) -> str:
        word = f"w-{chat}-{len(self._words[chat]) + 1}-w"
        self._words[chat].append(word)
        name = word.strip("w-")  # without the dashes, so that it does not count as the word
        self._setup.says(script.replace("WORD", word).replace("NAME", name), chat)
        return word

    async def _talk_in_chat(self, chat: str) -> None:
        while not self._is_over:
            notes = self._count_cut_offs(chat)
            word = self._send_script(chat, self._random.choice(SCRIPTS))
            polls = 0
            while word not in self._join_texts(chat) and self._count_cut_offs(chat) == notes:
                await asyncio.sleep(0.05)
                polls += 1
                if not polls % 20 and await self._is_run_over(chat, word):
                    break

    async def _is_run_over(self, chat: str, word: str) -> bool:
        """Whether the daemon ended the run of a word. An earlier word that the service delivered
        late may have been steered into it, and the answer may be to that one."""
        try:
            records = await self._setup.daemon.list_records(self._setup.sender(chat))
        except (ServerError, *DAEMON_UNAVAILABLE_ERRORS):
            return False
        runs = {r.message.run_id for r in records if word in r.message.content}
        return bool(runs) and runs <= find_finished_runs(records)

    async def _talk_in_bursts(self) -> None:
        chat = self._setup.bursts
        while not self._is_over:
            for _ in range(self._random.randint(1, 4)):
                word = self._send_script(chat, STEERED)
            while word not in "".join(
                await self._setup.daemon.list_user_messages(self._setup.sender(chat))
            ):
                await asyncio.sleep(self._random.uniform(0.0, 0.1))

    def _describe_chats(self) -> str:
        """The last messages of each chat, for a scenario that did not end."""
        return "\n".join(
            f"{chat}: said {words[-2:]}, was told {self._setup.texts(chat)[-4:]}"
            for chat, words in self._words.items()
        )

    def _join_texts(self, chat: str) -> str:
        return "".join(self._setup.texts(chat))

    def _count_cut_offs(self, chat: str) -> int:
        """How often the chat was told that a turn was cut off."""
        return sum(self._join_texts(chat).count(note) for note in CUT_OFF_NOTES)

    async def _wait_until_done(self) -> None:
        """Wait until the gateway's journal has no pending updates."""
        await wait_until(self._setup.is_read)
        while GatewayJournal.read_state(self._setup.journal).pending:
            await asyncio.sleep(0.1)

    # ── Results ─────────────────────────────────────────────────────────────────────────────

    async def _check_results(self) -> None:
        for chat, words in self._words.items():
            records = await self._setup.daemon.list_records(self._setup.sender(chat))
            messages = [record.message for record in records if record.HasField("message")]
            self._check_answers(chat, words, messages, find_finished_runs(records))
            self._check_files(chat, messages)
            self._report.cut_off += self._count_cut_offs(chat)

    def _check_answers(
        self,
        chat: str,
        words: list[str],
        messages: list[wire.ConversationMessage],
        finished_runs: set[str],
    ) -> None:
        report, texts = self._report, self._setup.texts(chat)
        marked = [text for text in texts if SENT_AGAIN_MARK in text]
        report.marked_messages += len(marked)
        report.words_sent += len(words)
        user_messages = [m for m in messages if m.role == "user"]
        for word in words:
            matches = [m for m in user_messages if word in m.content]
            if not matches:
                report.lost_words.append(word)
            if len(matches) > 1:
                report.repeated_words.append(word)
            if sum(word in text for text in texts if text not in marked) > 1:
                report.repeated_answers.append(word)
            # Words of one run may have one answer: a burst, or a word that was sent when the note
            # of the turn before it came late and looked like the answer.
            runs = {m.run_id for m in matches}
            together = {
                other_word
                for m in user_messages
                if m.run_id in runs
                for other_word in words
                if other_word in m.content
            }
            is_due = chat != self._setup.bursts and runs <= finished_runs
            if is_due and not any(
                answered in self._join_texts(chat) for answered in together | {word}
            ):
                report.unanswered_words.append(word)

    def _check_files(self, chat: str, messages: list[wire.ConversationMessage]) -> None:
        report, sent = self._report, self._setup.files(chat)
        names = {
            (m.run_id, call.id): parse_file_name(call.arguments)
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
        report.repeated_files += [name for name, count in unmarked.items() if count > 1]
        report.wrong_signs += [
            text
            for text in self._setup.texts(chat)
            if DONE_SIGN in text and "bad-" in parse_done_calls(text)
        ]


def find_finished_runs(records: list[wire.ConversationRecord]) -> set[str]:
    """Runs that ended at the daemon. A steered run may go on after an end."""
    finished: set[str] = set()
    for record in records:
        if record.HasField("message"):
            finished.discard(record.message.run_id)
        elif record.HasField("run_end") and not record.run_end.interrupted:
            finished.add(record.run_end.run_id)
    return finished


def parse_file_name(arguments: str) -> str:
    return arguments.partition('"path": "')[2].rpartition('"')[0]


def parse_done_calls(text: str) -> str:
    """The calls that a text shows as done."""
    return text.partition(DONE_SIGN)[2].partition(FAILED_SIGN)[0]


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
