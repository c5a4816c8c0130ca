"""Clients repeat each message, with its key, until they have an outcome, while the daemon is killed
again and again. Their outcomes are compared with the log and with the requests to the model."""

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
# Seconds between retries while the daemon starts.
PAUSE = 0.01
# A message without an outcome after so many seconds means that something hangs.
OUTCOME_TIMEOUT = 120.0
INTERRUPTED = "the daemon ended"
CONNECTION_ERRORS = (ConnectionClosedError, CannotConnectError, ConnectionError)


@dataclass
class KeyedMessage:
    """A message with a key, and what its client knows about it."""

    key: str
    sender: str
    content: str
    guest: str = ""
    tries: int = 0
    is_acknowledged: bool = False
    outcome: str = ""  # completed, interrupted, cancelled
    text: str = ""  # the agent's whole text, from a completed stream
    answer: str | None = None  # the reply to a `send`
    steers: list[tuple[str, str]] = field(default_factory=list)  # key and text, acknowledged


@dataclass
class KeyedReport:
    kills: int = 0
    messages: int = 0
    repetitions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    steers: int = 0
    attached: int = 0  # streams that were followed to their end, and match the log
    compactions: int = 0
    asked: int = 0  # requests to the model that began a run
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
        self._seen_events = 0
        self._report = KeyedReport()
        self._followed: list[tuple[KeyedMessage, str]] = []

    async def run(self, kills: int) -> KeyedReport:
        started = time.monotonic()
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
        self._report.seconds = time.monotonic() - started
        self._report.messages = len(self._messages)
        self._report.repetitions = sum(message.tries - 1 for message in self._messages)
        self._report.outcomes = Counter(message.outcome for message in self._messages)
        self._report.steers = sum(len(message.steers) for message in self._messages)
        return self._report

    async def _kill_often(self, kills: int) -> None:
        rng = random.Random(f"{self._seed} kills")
        for _ in range(kills):
            # Counted in events, so that a slow machine gets equally far between two kills.
            await self._wait_for_events(rng.choice([1, 30, 300]) * rng.random())
            await asyncio.sleep(rng.uniform(0, 0.005))
            await self._process.kill()
            self._report.kills += 1
            if rng.random() < 0.1:  # sometimes kill it during the start, too
                self._process.spawn()
                await asyncio.sleep(rng.uniform(0, 0.1))
                await self._process.kill()
                self._report.kills += 1
            await self._process.start()

    async def _wait_for_events(self, count: float) -> None:
        """Waits until clients have seen so many more events, or nothing happens for long."""
        wanted = self._seen_events + count
        for _ in range(4000):
            if self._seen_events >= wanted:
                return
            await asyncio.sleep(0.0005)

    # ── Clients ─────────────────────────────────────────────────────────────────────────────

    async def _run_client(self, client: Client, sender: str, number: int) -> None:
        rng = random.Random(f"{self._seed} {sender} {number}")
        count = 0
        while not self._is_over:
            count += 1
            if rng.random() < 0.05:
                await self._compact(client, sender, rng)
            message = self._make_message(f"{sender}{number}-{count}", sender, rng)
            self._messages.append(message)
            async with asyncio.timeout(OUTCOME_TIMEOUT):
                while not message.outcome:
                    message.tries += 1
                    await self._try_message(client, message, rng)

    def _make_message(self, key: str, sender: str, rng: random.Random) -> KeyedMessage:
        slow = f"!tool slow {json.dumps({'ms': rng.randint(0, 40), 'say': key})}"
        script = rng.choice(
            [
                f"!say well {key}",
                f"!chunks {rng.randint(1, 40)} {rng.choice([0, 400])}",
                f"!say one moment \n{slow}\n!then\n!say done {key}",
                f"{slow}\n{slow}\n!then\n{slow}\n!then\n!chunks 5 0",
                "!tool fly {}\n!then\n!say that failed",
            ]
        )
        guest = "owl" if rng.random() < 0.1 and "!tool" not in script else ""
        return KeyedMessage(key, sender, f"#{key}\n{script}", guest)

    async def _try_message(self, client: Client, message: KeyedMessage, rng: random.Random) -> None:
        """Sends the message once. Without an outcome, the caller repeats it with the same key."""
        try:
            if rng.random() < 0.3:
                await self._send(client, message)
            else:
                await self._stream(client, message, rng)
        except CONNECTION_ERRORS:
            await asyncio.sleep(PAUSE)
        except ServerError as error:
            if error.code == 503:
                await asyncio.sleep(PAUSE)
            elif error.code == 500 and INTERRUPTED in error.message:
                message.outcome = "interrupted"
            elif error.code == 500 and "killed" in error.message:
                message.outcome = "cancelled"
            else:
                raise

    async def _send(self, client: Client, message: KeyedMessage) -> None:
        reply = await plain_send(
            client,
            message.content,
            sender=message.sender,
            guest=message.guest or None,
            key=message.key,
        )
        self._seen_events += 10
        message.outcome = "completed"
        message.answer = reply.content

    async def _stream(self, client: Client, message: KeyedMessage, rng: random.Random) -> None:
        leaves = rng.randint(1, 10) if rng.random() < 0.2 else 0
        text = ""
        stream = plain_stream(
            client,
            message.content,
            sender=message.sender,
            guest=message.guest or None,
            key=message.key,
        )
        async with aclosing(stream) as events:
            async for event in events:
                self._seen_events += 1
                match event:
                    case wire.StreamStart():
                        message.is_acknowledged = True
                        text = ""
                    case wire.StreamChunk():
                        text += event.content
                    case wire.ToolStartEvent() if not event.early and rng.random() < 0.3:
                        await self._steer(client, message)
                    case wire.StreamEnd():
                        self._note_end(message, event, text)
                leaves -= 1
                if leaves == 0:
                    return  # leave, and come back with the same key

    def _note_end(self, message: KeyedMessage, end: wire.StreamEnd, text: str) -> None:
        if end.stop_reason == wire.STOP_REASON_COMPLETED:
            message.outcome, message.text = "completed", text
        elif end.stop_reason == wire.STOP_REASON_CANCELLED:
            message.outcome = "cancelled"
        else:
            assert INTERRUPTED in end.error, end
            message.outcome = "interrupted"

    async def _steer(self, client: Client, message: KeyedMessage) -> None:
        """Repeats a steer until it is acknowledged, or there is nothing to steer."""
        key = f"{message.key}+{len(message.steers)}"
        text = f"#{key}\n!say steered"
        while True:
            try:
                await plain_steer(client, text, sender=message.sender, key=key)
                message.steers.append((key, text))
                return
            except CONNECTION_ERRORS:
                await asyncio.sleep(PAUSE)
            except ServerError as error:
                if error.code == 404:
                    return
                if error.code != 503:
                    raise
                await asyncio.sleep(PAUSE)

    async def _compact(self, client: Client, sender: str, rng: random.Random) -> None:
        try:
            await client.compact("crab", sender=sender, fresh=rng.random() < 0.5)
        except CONNECTION_ERRORS:
            await asyncio.sleep(PAUSE)
        except ServerError as error:
            if error.code not in (400, 404, 503):
                raise

    async def _follow_along(self, client: Client, sender: str) -> None:
        """Follows random runs of a sender until the test is over."""
        rng = random.Random(f"{self._seed} {sender} follower")
        while not self._is_over:
            recent = [message for message in self._messages[-12:] if message.sender == sender]
            if not recent:
                await asyncio.sleep(PAUSE)
                continue
            message = rng.choice(recent)
            try:
                text = await self._follow(client, message)
            except CONNECTION_ERRORS:
                await asyncio.sleep(PAUSE)
                continue
            except ServerError as error:
                if error.code not in (404, 500, 503):
                    raise
                await asyncio.sleep(PAUSE)
                continue
            if text is not None:
                self._followed.append((message, text))

    async def _follow(self, client: Client, message: KeyedMessage) -> str | None:
        """The whole text of a run, read in parts; None unless the run was completed."""
        text, after = "", 0
        while True:
            left = 5  # events of one part
            stream = client.attach("crab", sender=message.sender, key=message.key, after=after)
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
        assert not [key for key, count in keys.items() if count > 1], "a key is there twice"
        ends = {r.run_end.run_id: r.run_end for r in whole.records if r.HasField("run_end")}
        assert {m.run_id for m in messages} == set(ends), "a run has no end"
        self._report.compactions += sum(r.HasField("compaction") for r in whole.records)
        by_key = {m.key: m for m in messages if m.key}
        for message in [message for message in self._messages if message.sender == sender]:
            self._check_message(message, by_key, messages, ends)
        followed = [(message, text) for message, text in self._followed if message.sender == sender]
        for message, text in followed:
            run = by_key[message.key].run_id
            assert text == join_agent_text(messages, run), (
                f"a follower of {message.key} saw something else"
            )
        self._report.attached += len(followed)

    def _check_message(
        self,
        message: KeyedMessage,
        by_key: dict[str, wire.ConversationMessage],
        messages: list[wire.ConversationMessage],
        ends: dict[str, wire.RunEndRecord],
    ) -> None:
        asked = self._count_model_requests(message)
        assert asked <= 1, f"{message.key} was run {asked} times"
        self._report.asked += asked
        if message.outcome == "cancelled" and message.key not in by_key:
            return  # it was withdrawn while it waited
        assert message.key in by_key, f"{message} is lost"
        stored = by_key[message.key]
        assert stored.content == message.content
        end = ends[stored.run_id]
        assert end.interrupted == (message.outcome == "interrupted"), (message, end)
        if message.outcome == "completed":
            assert asked == 1
            assert end.stop_reason == wire.STOP_REASON_COMPLETED
            text = join_agent_text(messages, stored.run_id)
            if message.answer is not None:
                assert text.endswith(message.answer)
            else:
                assert message.text == text
        calls = [m for m in messages if m.run_id == stored.run_id and m.role == "tool"]
        if message.outcome == "completed" or "!tool fly" in message.content:
            assert all(m.is_error == ("!tool fly" in message.content) for m in calls)
        for key, text in message.steers:
            assert by_key[key].content == text, f"the steer {key} is lost"

    def _count_model_requests(self, message: KeyedMessage) -> int:
        """How many runs of this message reached the model: only steers come after it then."""
        return sum(begins_with(request, message.content) for request in self._model.requests)


def begins_with(request: dict[str, Any], content: str) -> bool:
    """Whether the request is the first one of the run that answers this message."""
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
