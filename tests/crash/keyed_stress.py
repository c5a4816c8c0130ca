"""Clients that repeat what they say, with its key, until they have an outcome, while the daemon is
killed again and again under them. What they were told is compared with the log and with what the
model was asked."""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crabtalk.client import CannotConnectError, Client, ConnectionClosedError, ServerError, connect
from crabtalk.protocol import wire
from tests.crash.launched_daemon import LaunchedDaemon, prepare_home
from tests.model_server import ModelServer, model_server
from tests.plain_requests import plain_send, plain_steer, plain_stream

SENDERS = ("a", "b", "c")
CLIENTS = 2  # in each conversation
# What a retry waits for a daemon that is being started.
PAUSE = 0.01
# Without an outcome for so long, something hangs.
OUTCOME_TIMEOUT = 120.0
INTERRUPTED = "the daemon ended"
CONNECTION_ERRORS = (ConnectionClosedError, CannotConnectError, ConnectionError)


@dataclass
class KeyedMessage:
    """A message with a key, and what its client knows of it."""

    key: str
    sender: str
    content: str
    guest: str = ""
    tries: int = 0
    is_acknowledged: bool = False
    outcome: str = ""  # completed, interrupted, cancelled
    text: str = ""  # all the agent said, of a stream that was completed
    answer: str | None = None  # what a `send` returned
    steers: list[tuple[str, str]] = field(default_factory=list)  # key and text, acknowledged


@dataclass
class KeyedReport:
    kills: int = 0
    messages: int = 0
    repetitions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    steers: int = 0
    attached: int = 0  # streams that were followed to their end, and agreed with the log
    compactions: int = 0
    asked: int = 0  # requests that began a run
    seconds: float = 0.0

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {what}" for what, count in sorted(self.outcomes.items()))
        return (
            f"{self.kills} kills in {self.seconds:.1f} s: {self.messages} messages with keys, "
            f"repeated {self.repetitions} times, {outcomes}, none lost, none doubled; "
            f"{self.asked} runs reached the model; {self.steers} steers acknowledged; "
            f"{self.attached} streams followed to their end; {self.compactions} compactions"
        )


async def run_keyed_stress(home: Path, seed: str, kills: int) -> KeyedReport:
    async with model_server(summary="They talked. A lot.") as model:
        prepare_home(home, model)
        return await KeyedStress(home, model, seed).run(kills)


class KeyedStress:
    def __init__(self, home: Path, model: ModelServer, seed: str) -> None:
        self._home = home
        self._model = model
        self._seed = seed
        self._process = LaunchedDaemon(home)
        self._messages: list[KeyedMessage] = []
        self._mirrors = {sender: LogMirror(sender) for sender in SENDERS}
        self._is_over = False
        self._seen_events = 0  # events
        self._report = KeyedReport()
        self._followed: list[tuple[KeyedMessage, str]] = []

    async def run(self, kills: int) -> KeyedReport:
        begun = time.monotonic()
        await self._process.start()
        try:
            async with (
                connect(home=self._home, reconnect_timeout=0) as client,
                asyncio.TaskGroup() as group,
            ):
                for sender in SENDERS:
                    for number in range(CLIENTS):
                        group.create_task(self._run_client(client, sender, number))
                    group.create_task(self._update_mirror(client, self._mirrors[sender]))
                    group.create_task(self._follow_along(client, sender))
                await self._kill_often(kills)
                self._is_over = True
            async with connect(home=self._home, reconnect_timeout=0) as client:
                for sender in SENDERS:
                    await self._check_sender(client, sender)
        except BaseException as error:
            error.add_note(self._process.stderr_text)
            raise
        finally:
            await self._process.kill()
        self._report.seconds = time.monotonic() - begun
        self._report.messages = len(self._messages)
        self._report.repetitions = sum(said.tries - 1 for said in self._messages)
        self._report.outcomes = Counter(said.outcome for said in self._messages)
        self._report.steers = sum(len(said.steers) for said in self._messages)
        return self._report

    async def _kill_often(self, kills: int) -> None:
        choose = random.Random(f"{self._seed} kills")
        for _ in range(kills):
            # Counted in what clients see, so that a slow machine gets as far between two kills.
            await self._wait_for_events(choose.choice([1, 30, 300]) * choose.random())
            await asyncio.sleep(choose.uniform(0, 0.005))
            await self._process.kill()
            self._report.kills += 1
            if choose.random() < 0.1:  # killed before it is up, too
                self._process.spawn()
                await asyncio.sleep(choose.uniform(0, 0.1))
                await self._process.kill()
                self._report.kills += 1
            await self._process.start()

    async def _wait_for_events(self, count: float) -> None:
        """Until clients have seen so many more events, or nothing happens for long."""
        wanted = self._seen_events + count
        for _ in range(4000):
            if self._seen_events >= wanted:
                return
            await asyncio.sleep(0.0005)

    # ── Clients ─────────────────────────────────────────────────────────────────────────────

    async def _run_client(self, client: Client, sender: str, number: int) -> None:
        choose = random.Random(f"{self._seed} {sender} {number}")
        count = 0
        while not self._is_over:
            count += 1
            if choose.random() < 0.05:
                await self._compact(client, sender, choose)
            said = self._make_message(f"{sender}{number}-{count}", sender, choose)
            self._messages.append(said)
            async with asyncio.timeout(OUTCOME_TIMEOUT):
                while not said.outcome:
                    said.tries += 1
                    await self._try_message(client, said, choose)

    def _make_message(self, key: str, sender: str, choose: random.Random) -> KeyedMessage:
        slow = f"!tool slow {json.dumps({'ms': choose.randint(0, 40), 'say': key})}"
        script = choose.choice(
            [
                f"!say well {key}",
                f"!chunks {choose.randint(1, 40)} {choose.choice([0, 400])}",
                f"!say one moment \n{slow}\n!then\n!say done {key}",
                f"{slow}\n{slow}\n!then\n{slow}\n!then\n!chunks 5 0",
                "!tool fly {}\n!then\n!say that failed",
            ]
        )
        guest = "owl" if choose.random() < 0.1 and "!tool" not in script else ""
        return KeyedMessage(key, sender, f"#{key}\n{script}", guest)

    async def _try_message(self, client: Client, said: KeyedMessage, choose: random.Random) -> None:
        """One try. Without an outcome it is repeated, with the same key."""
        try:
            if choose.random() < 0.3:
                await self._send(client, said)
            else:
                await self._stream(client, said, choose)
        except CONNECTION_ERRORS:
            await asyncio.sleep(PAUSE)
        except ServerError as error:
            if error.code == 503:
                await asyncio.sleep(PAUSE)
            elif error.code == 500 and INTERRUPTED in error.message:
                said.outcome = "interrupted"
            elif error.code == 500 and "killed" in error.message:
                said.outcome = "cancelled"
            else:
                raise

    async def _send(self, client: Client, said: KeyedMessage) -> None:
        reply = await plain_send(
            client, said.content, sender=said.sender, guest=said.guest or None, key=said.key
        )
        self._seen_events += 10
        said.outcome = "completed"
        said.answer = reply.content

    async def _stream(self, client: Client, said: KeyedMessage, choose: random.Random) -> None:
        leaves = choose.randint(1, 10) if choose.random() < 0.2 else 0
        text = ""
        stream = plain_stream(
            client, said.content, sender=said.sender, guest=said.guest or None, key=said.key
        )
        async with aclosing(stream) as events:
            async for event in events:
                self._seen_events += 1
                match event:
                    case wire.StreamStart():
                        said.is_acknowledged = True
                        text = ""
                    case wire.StreamChunk():
                        text += event.content
                    case wire.ToolStartEvent() if not event.early and choose.random() < 0.3:
                        await self._steer(client, said)
                    case wire.StreamEnd():
                        self._note_end(said, event, text)
                leaves -= 1
                if leaves == 0:
                    return  # away, and back with the same key

    def _note_end(self, said: KeyedMessage, end: wire.StreamEnd, text: str) -> None:
        if end.stop_reason == wire.STOP_REASON_COMPLETED:
            said.outcome, said.text = "completed", text
        elif end.stop_reason == wire.STOP_REASON_CANCELLED:
            said.outcome = "cancelled"
        else:
            assert INTERRUPTED in end.error, end
            said.outcome = "interrupted"

    async def _steer(self, client: Client, said: KeyedMessage) -> None:
        """Until it is acknowledged, or there is nothing to steer."""
        key = f"{said.key}+{len(said.steers)}"
        text = f"#{key}\n!say steered"
        while True:
            try:
                await plain_steer(client, text, sender=said.sender, key=key)
                said.steers.append((key, text))
                return
            except CONNECTION_ERRORS:
                await asyncio.sleep(PAUSE)
            except ServerError as error:
                if error.code == 404:
                    return
                if error.code != 503:
                    raise
                await asyncio.sleep(PAUSE)

    async def _compact(self, client: Client, sender: str, choose: random.Random) -> None:
        try:
            await client.compact("crab", sender=sender, fresh=choose.random() < 0.5)
        except CONNECTION_ERRORS:
            await asyncio.sleep(PAUSE)
        except ServerError as error:
            if error.code not in (400, 404, 503):
                raise

    async def _follow_along(self, client: Client, sender: str) -> None:
        """Attaches to what is being said, from where it was when the connection was lost."""
        choose = random.Random(f"{self._seed} {sender} follower")
        while not self._is_over:
            mine = [said for said in self._messages[-12:] if said.sender == sender]
            if not mine:
                await asyncio.sleep(PAUSE)
                continue
            said = choose.choice(mine)
            try:
                text = await self._follow(client, said)
            except CONNECTION_ERRORS:
                await asyncio.sleep(PAUSE)
                continue
            except ServerError as error:
                if error.code not in (404, 500, 503):
                    raise
                await asyncio.sleep(PAUSE)
                continue
            if text is not None:
                self._followed.append((said, text))

    async def _follow(self, client: Client, said: KeyedMessage) -> str | None:
        """All of a run's words, read in parts; None unless it was completed."""
        text, after = "", 0
        while True:
            left = 5  # events of one part
            stream = client.attach("crab", sender=said.sender, key=said.key, after=after)
            async with aclosing(stream) as events:
                async for number, event in events:
                    if isinstance(event, wire.StreamStart):
                        text, after = "", 0
                    if isinstance(event, wire.StreamChunk):
                        text += event.content
                    if isinstance(event, wire.StreamEnd):
                        is_whole = event.stop_reason == wire.STOP_REASON_COMPLETED
                        return text if is_whole else None
                    after = max(after, number)
                    left -= 1
                    if left <= 0 and number:
                        break

    async def _update_mirror(self, client: Client, mirror: "LogMirror") -> None:
        while not self._is_over:
            try:
                await mirror.read_page(client)
            except CONNECTION_ERRORS:
                await asyncio.sleep(PAUSE)
            except ServerError as error:
                if error.code not in (404, 503):
                    raise
            await asyncio.sleep(PAUSE)

    # ── What must hold ──────────────────────────────────────────────────────────────────────

    async def _check_sender(self, client: Client, sender: str) -> None:
        mirror = self._mirrors[sender]
        while await mirror.read_page(client):
            pass
        whole = LogMirror(sender)
        while await whole.read_page(client):
            pass
        assert mirror.records == whole.records, "a mirror that followed saw something else"
        assert not mirror.restarts
        messages = [r.message for r in whole.records if r.HasField("message")]
        keys = Counter(m.key for m in messages if m.key)
        assert not [key for key, count in keys.items() if count > 1], "said twice"
        ends = {r.run_end.run_id: r.run_end for r in whole.records if r.HasField("run_end")}
        assert {m.run_id for m in messages} == set(ends), "a run has no end"
        self._report.compactions += sum(r.HasField("compaction") for r in whole.records)
        by_key = {m.key: m for m in messages if m.key}
        for said in [said for said in self._messages if said.sender == sender]:
            self._check_message(said, by_key, messages, ends)
        followed = [(said, text) for said, text in self._followed if said.sender == sender]
        for said, text in followed:
            run = by_key[said.key].run_id
            assert text == join_agent_text(messages, run), (
                f"a follower of {said.key} saw something else"
            )
        self._report.attached += len(followed)

    def _check_message(
        self,
        said: KeyedMessage,
        by_key: dict[str, wire.ConversationMessage],
        messages: list[wire.ConversationMessage],
        ends: dict[str, wire.RunEndRecord],
    ) -> None:
        asked = self._count_model_requests(said)
        assert asked <= 1, f"{said.key} was run {asked} times"
        self._report.asked += asked
        if said.outcome == "cancelled" and said.key not in by_key:
            return  # it was taken back while it waited
        assert said.key in by_key, f"{said} is lost"
        message = by_key[said.key]
        assert message.content == said.content
        end = ends[message.run_id]
        assert end.interrupted == (said.outcome == "interrupted"), (said, end)
        if said.outcome == "completed":
            assert asked == 1
            assert end.stop_reason == wire.STOP_REASON_COMPLETED
            words = join_agent_text(messages, message.run_id)
            if said.answer is not None:
                assert words.endswith(said.answer)
            else:
                assert said.text == words
        calls = [m for m in messages if m.run_id == message.run_id and m.role == "tool"]
        if said.outcome == "completed" or "!tool fly" in said.content:
            assert all(m.is_error == ("!tool fly" in said.content) for m in calls)
        for key, text in said.steers:
            assert by_key[key].content == text, f"the steer {key} is lost"

    def _count_model_requests(self, said: KeyedMessage) -> int:
        """How many runs of it the model was asked for: nothing but steers came after it then."""
        return sum(begins_with(request, said.content) for request in self._model.requests)


def begins_with(request: dict[str, Any], content: str) -> bool:
    """Whether it is the first request of the run that answers this message."""
    for message in reversed(request["messages"]):
        text = message.get("content")
        if message["role"] != "user" or not isinstance(text, str):
            return False
        if text == content:
            return True
        if "+" not in text.partition("\n")[0]:
            return False
    return False


class LogMirror:
    """Follows the log of a conversation by positions."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._position: int | None = None
        self._log_id: str | None = None
        self.records: list[wire.ConversationRecord] = []
        self.restarts = 0

    async def read_page(self, client: Client) -> bool:
        page = await client.list_records(
            "crab", sender=self._sender, position=self._position, log_id=self._log_id, limit=50
        )
        self.restarts += page.restarted
        self.records += page.records
        self._position, self._log_id = page.next_position, page.log_id
        return page.has_more


def join_agent_text(messages: list[wire.ConversationMessage], run: str) -> str:
    return "".join(m.content for m in messages if m.run_id == run and m.role == "assistant")
