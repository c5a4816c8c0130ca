"""A state machine that sends, repeats, steers, follows, compacts, reloads, deletes and kills a real
daemon in any order, and compares it with a model of all keys and their outcomes."""

import asyncio
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from crabtalk.client import Client, ConnectionClosedError, ServerError, connect
from crabtalk.client.events import Event
from crabtalk.protocol import wire
from tests.crash.launched_daemon import LaunchedDaemon, prepare_home
from tests.model_server import ModelServer, model_server
from tests.plain_requests import plain_send, plain_steer, plain_stream

T = TypeVar("T")
STEP_TIMEOUT = 30.0
senders = st.sampled_from(["a", "b"])
keys = st.sampled_from(["k1", "k2", "k3"])


@dataclass
class KeyOutcome:
    """What the model knows about a key."""

    content: str
    text: str = ""  # the agent's whole text
    answer: str = ""  # its last message
    is_interrupted: bool = False


@dataclass
class RunningTurn:
    """A run that waits for `ModelServer.release`, and its followers."""

    key: str
    followers: list["asyncio.Task[list[Event]]"] = field(default_factory=list)
    steers: dict[str, str] = field(default_factory=dict)


@dataclass
class ModelConversation:
    """The model's state of a conversation."""

    sender: str
    number: int = 0  # how often it was deleted
    exists: bool = False
    fresh: int = 0  # messages since the last compaction
    outcomes: dict[str, KeyOutcome] = field(default_factory=dict)
    steers: dict[str, str] = field(default_factory=dict)  # acknowledged ones, by key
    running: RunningTurn | None = None

    def content(self, key: str, script: str) -> str:
        return f"#{self.sender}{self.number}/{key}\n{script}"


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._scratch = tempfile.TemporaryDirectory()
        self._home = Path(self._scratch.name) / "home"
        self._model_context = model_server(summary="They talked. A lot.")
        self._model: ModelServer = self._run(self._model_context.__aenter__())
        prepare_home(self._home, self._model, durability="os")
        self._process = LaunchedDaemon(self._home)
        self._client: Client = connect(home=self._home, reconnect_timeout=0)
        self._conversations = {sender: ModelConversation(sender) for sender in ("a", "b")}

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(STEP_TIMEOUT):
                return await work

        return self._loop.run_until_complete(bounded())

    @initialize()
    def begin(self) -> None:
        self._run(self._process.start())
        self._run(self._client.__aenter__())

    def teardown(self) -> None:
        followers = [
            task for t in self._conversations.values() if t.running for task in t.running.followers
        ]
        for task in followers:
            task.cancel()
        self._run(self._close(followers))
        self._loop.close()
        self._scratch.cleanup()

    async def _close(self, followers: list["asyncio.Task[list[Event]]"]) -> None:
        if followers:
            await asyncio.wait(followers)
        await self._client.__aexit__(None, None, None)
        await self._process.kill()
        await self._model_context.__aexit__(None, None, None)

    # ── What clients do ─────────────────────────────────────────────────────────────────────

    @rule(sender=senders, key=keys, streams=st.booleans())
    def send_message(self, sender: str, key: str, streams: bool) -> None:
        """Sends a new message or repeats one: the model knows which it is."""
        conversation = self._conversations[sender]
        if conversation.running is not None and key not in conversation.outcomes:
            return  # it would wait until `release`
        if conversation.running is not None and conversation.running.key == key:
            return
        if key in conversation.steers:
            return
        expected = conversation.outcomes.get(key)
        content = expected.content if expected else conversation.content(key, f"!say well {key}")
        request_count = self._count_requests(content)
        text, is_interrupted = self._run(self._send_and_read(conversation, content, key, streams))
        if expected is None:
            assert (text, is_interrupted) == (f"well {key}", False)
            conversation.outcomes[key] = KeyOutcome(content, text, text)
            conversation.exists = True
            conversation.fresh += 1
            assert self._count_requests(content) == 1
        else:
            assert is_interrupted == expected.is_interrupted
            assert is_interrupted or text == (expected.text if streams else expected.answer)
            assert self._count_requests(content) == request_count

    async def _send_and_read(
        self, conversation: ModelConversation, content: str, key: str, streams: bool
    ) -> tuple[str, bool]:
        if not streams:
            try:
                reply = await plain_send(self._client, content, sender=conversation.sender, key=key)
            except ServerError as error:
                if error.code != 500 or "the daemon ended" not in error.message:
                    raise
                return "", True
            return reply.content, False
        stream = plain_stream(self._client, content, sender=conversation.sender, key=key)
        return read_outcome([event async for event in stream])

    @rule(sender=senders, key=keys)
    def send_other_content_with_a_used_key(self, sender: str, key: str) -> None:
        conversation = self._conversations[sender]
        if key in conversation.outcomes or key in conversation.steers:
            assert self._run(self._send_conflict(conversation, key)) == 409

    async def _send_conflict(self, conversation: ModelConversation, key: str) -> int:
        try:
            await plain_send(
                self._client, "!say something else", sender=conversation.sender, key=key
            )
        except ServerError as error:
            return error.code
        return 0

    @rule(sender=senders, key=keys)
    def begin_a_run(self, sender: str, key: str) -> None:
        conversation = self._conversations[sender]
        if (
            conversation.running is not None
            or key in conversation.outcomes
            or key in conversation.steers
        ):
            return
        content = conversation.content(key, f"!say one {key} \n!wait\n!say two")
        conversation.outcomes[key] = KeyOutcome(content, f"one {key} two", f"one {key} two")
        conversation.running = RunningTurn(key)
        conversation.exists = True
        conversation.fresh += 1
        self._run(self._begin(conversation, content))

    async def _begin(self, conversation: ModelConversation, content: str) -> None:
        assert conversation.running is not None
        conversation.running.followers.append(
            self._loop.create_task(self._repeat(conversation, content))
        )
        waiting = sum(
            conversation.running is not None for conversation in self._conversations.values()
        )
        while self._model.statistics()["waiting"] < waiting:
            await asyncio.sleep(0.001)

    async def _repeat(self, conversation: ModelConversation, content: str) -> list[Event]:
        assert conversation.running is not None
        stream = plain_stream(
            self._client, content, sender=conversation.sender, key=conversation.running.key
        )
        return [event async for event in stream]

    @precondition(lambda self: any(t.running for t in self._conversations.values()))
    @rule(sender=senders, how=st.sampled_from(["key", "pair", "again", "part"]))
    def follow_the_run(self, sender: str, how: str) -> None:
        conversation = self._conversations[sender]
        if conversation.running is not None:
            outcome = conversation.outcomes[conversation.running.key]
            work = (
                self._repeat(conversation, outcome.content)
                if how == "again"
                else self._attach(conversation, how)
            )
            conversation.running.followers.append(self._loop.create_task(work))

    async def _attach(self, conversation: ModelConversation, how: str) -> list[Event]:
        assert conversation.running is not None
        key = None if how == "pair" else conversation.running.key
        events: list[Event] = []
        after = 0
        while True:
            stream = self._client.attach("crab", sender=conversation.sender, key=key, after=after)
            async for number, event in stream:
                if isinstance(event, wire.StreamStart):
                    events.clear()
                events.append(event)
                after = max(after, number)
                if isinstance(event, wire.StreamEnd):
                    return events
                if how == "part" and number == 2:
                    await stream.aclose()
                    break

    @precondition(lambda self: any(t.running for t in self._conversations.values()))
    @rule(sender=senders, key=keys)
    def steer_the_run(self, sender: str, key: str) -> None:
        """Sends a steering message twice with the same key: it must arrive only once."""
        conversation = self._conversations[sender]
        text = conversation.content(key, "!say steered")
        if conversation.running is None or key in conversation.outcomes:
            return
        for _ in range(2):
            self._run(plain_steer(self._client, text, sender=sender, key=key))
        if key not in conversation.steers:
            conversation.steers[key] = text
            conversation.running.steers[key] = text

    @rule(sender=senders, key=keys)
    def steer_again(self, sender: str, key: str) -> None:
        conversation = self._conversations[sender]
        if key in conversation.steers:
            self._run(plain_steer(self._client, conversation.steers[key], sender=sender, key=key))

    # ── What happens ────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: any(t.running for t in self._conversations.values()))
    @rule()
    def let_runs_end(self) -> None:
        self._run(self._let_runs_end())

    async def _let_runs_end(self) -> None:
        await asyncio.sleep(0.02)  # give followers time to attach
        self._model.release()
        for conversation in self._conversations.values():
            if conversation.running is None:
                continue
            outcome = conversation.outcomes[conversation.running.key]
            if conversation.running.steers:
                outcome.text += "steered"
                outcome.answer = "steered"
            for follower in conversation.running.followers:
                text, is_interrupted = read_outcome(await follower)
                assert not is_interrupted
                assert text == outcome.text
            conversation.running = None

    @rule()
    def kill(self) -> None:
        """Kills the daemon and starts it again."""
        self._run(self._kill())

    async def _kill(self) -> None:
        await self._process.kill()
        for conversation in self._conversations.values():
            if conversation.running is None:
                continue
            for follower in conversation.running.followers:
                with suppress(ConnectionClosedError, ConnectionError):
                    await follower
            conversation.outcomes[conversation.running.key].is_interrupted = True
            conversation.running = None
        await self._process.start()

    @rule(sender=senders, fresh=st.booleans())
    def compact(self, sender: str, fresh: bool) -> None:
        conversation = self._conversations[sender]
        if conversation.exists and conversation.fresh and conversation.running is None:
            self._run(self._client.compact("crab", sender=sender, fresh=fresh))
            conversation.fresh = 0

    @rule()
    def reload(self) -> None:
        self._run(self._client.reload())

    @rule(sender=senders)
    def delete(self, sender: str) -> None:
        conversation = self._conversations[sender]
        if conversation.exists and conversation.running is None:
            self._run(self._delete(conversation))
            self._conversations[sender] = ModelConversation(sender, conversation.number + 1)

    async def _delete(self, conversation: ModelConversation) -> None:
        (row,) = (await self._client.list_conversations("crab", conversation.sender)).conversations
        await self._client.delete_conversation(row.file_path)

    # ── What must hold ──────────────────────────────────────────────────────────────────────

    def _count_requests(self, content: str) -> int:
        return sum(r["messages"][-1].get("content") == content for r in self._model.requests)

    @invariant()
    def every_key_is_in_the_log_once_and_ran_once(self) -> None:
        for conversation in self._conversations.values():
            if conversation.exists:
                self._run(self._check(conversation))

    async def _check(self, conversation: ModelConversation) -> None:
        page = await self._client.list_records("crab", sender=conversation.sender, limit=500)
        assert not page.has_more
        messages = [r.message for r in page.records if r.HasField("message")]
        ends = {r.run_end.run_id: r.run_end for r in page.records if r.HasField("run_end")}
        keyed = [(m.key, m.content) for m in messages if m.key]
        pending = conversation.running.steers if conversation.running is not None else {}
        expected = [(key, outcome.content) for key, outcome in conversation.outcomes.items()]
        expected += [(key, text) for key, text in conversation.steers.items() if key not in pending]
        logged = [entry for entry in keyed if entry[0] not in pending]
        assert sorted(logged) == sorted(expected)
        for key, outcome in conversation.outcomes.items():
            assert self._count_requests(outcome.content) == 1
            run = next(m.run_id for m in messages if m.key == key)
            if conversation.running is not None and conversation.running.key == key:
                assert run not in ends
                continue
            assert ends[run].interrupted == outcome.is_interrupted
            texts = [m.content for m in messages if m.run_id == run and m.role == "assistant"]
            assert outcome.is_interrupted or "".join(texts) == outcome.text


def read_outcome(events: list[Event]) -> tuple[str, bool]:
    """The text of a stream, and whether its end says that the run was interrupted."""
    assert isinstance(events[0], wire.StreamStart)
    end = events[-1]
    assert isinstance(end, wire.StreamEnd), end
    text = "".join(event.content for event in events if isinstance(event, wire.StreamChunk))
    if end.error:
        assert "the daemon ended" in end.error, end.error
    return text, bool(end.error)


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        DeliveryMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(180)
@pytest.mark.req("delivery.any_order")
def test_whatever_clients_do_and_whenever_the_daemon_is_killed_each_key_runs_once() -> None:
    run_machine(examples=8, steps=15)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.req("delivery.any_order")
def test_the_same_with_many_examples() -> None:
    run_machine(examples=200, steps=40)
