"""Idempotency keys: a message with a key runs once in its conversation, however often it comes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from crabtalk.model import Message, ToolCall
from crabtalk.runtime import (
    Done,
    Event,
    KeyConflictError,
    NothingInFlightError,
    Run,
    Runtime,
    RuntimeLimits,
    Started,
    StopReason,
    TextDelta,
    ToolDispatch,
    ToolResult,
    UserSteered,
)
from crabtalk.storage import (
    Agent,
    ConversationMeta,
    FileStorage,
    MessageRecord,
    Pair,
    Record,
    Storage,
    StoredConversation,
    hash_content,
)
from crabtalk.storage.message_keys import FINGERPRINT_BYTES, MAX_FINGERPRINTS
from tests.runtime.runtime_world import (
    CRAB,
    NOW,
    PAIR,
    RuntimeWorld,
    ScriptedTools,
    WatchedStorage,
    YieldingStorage,
    read_history,
    run_ready_tasks,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    TEST_TIMEOUT,
    AnswerStep,
    Gate,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
)

LOOK = ToolCall("c1", "look", "{}")


async def follow_run(runtime: Runtime, run: Run, after: int = 0) -> list[Event]:
    async with asyncio.timeout(TEST_TIMEOUT):
        return [event async for _, event in runtime.follow(run, after)]


def join_text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def is_stored(events: list[Event]) -> bool:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Done)
    return events[0].is_stored


# ── Repeated turns ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.key.running")
async def test_a_key_repeated_while_it_runs_is_the_same_run_from_its_beginning(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([*answer_with_text("One "), gate, *answer_with_text("two.")])
    runtime = world.make_runtime(model, storage)
    first = runtime.start("crab", "Hi", key="k")
    await gate.wait_until_reached()
    second = runtime.start("crab", "Hi", key="k")
    assert second is first
    reading = [asyncio.ensure_future(follow_run(runtime, run)) for run in (first, second)]
    await run_ready_tasks(3)
    gate.open()
    streams = await asyncio.gather(*reading)
    assert [join_text(events) for events in streams] == ["One two."] * 2
    assert not any(map(is_stored, streams))
    assert len(model.requests) == 1


@pytest.mark.req("delivery.key.running")
async def test_a_key_repeated_while_it_waits_in_line_is_the_same_run(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")], "Two.")
    runtime = world.make_runtime(model, storage)
    before = runtime.start("crab", "First")
    await gate.wait_until_reached()
    waiting = runtime.start("crab", "Second", key="k")
    await run_ready_tasks(3)
    assert runtime.start("crab", "Second", key="k") is waiting
    gate.open()
    assert join_text(await follow_run(runtime, waiting)) == "Two."
    await wait_for_done(before)
    assert [m.text for m in await read_history(storage)] == ["First", "One.", "Second", "Two."]


@pytest.mark.req("delivery.attach.after")
@pytest.mark.parametrize("after", [1, 4, 50])
async def test_a_follower_with_a_position_gets_all_of_a_run_that_is_read_from_the_log(
    storage: Storage, world: RuntimeWorld, after: int
) -> None:
    """The position is one in the original run. The key was sent again meanwhile, and stored events
    have their own numbers."""
    runtime = world.make_runtime(ScriptedProvider("Waves."), storage)
    await follow_run(runtime, runtime.start("crab", "Look!", key="k"))
    await run_ready_tasks(2)  # until the run has left memory
    again = runtime.start("crab", "Look!", key="k")
    async with asyncio.timeout(TEST_TIMEOUT):
        followed = [each.event async for each in runtime.follow(again, after)]
    assert isinstance(followed[0], Started)
    assert join_text(followed) == "Waves."
    assert isinstance(followed[-1], Done)


@pytest.mark.req("delivery.key.stored")
@pytest.mark.parametrize("since", ["nothing", "turns", "compaction", "fresh", "restart"])
async def test_a_key_repeated_after_its_run_gives_the_stored_outcome_whatever_came_since(
    storage: Storage, world: RuntimeWorld, since: str
) -> None:
    model = ScriptedProvider(
        answer_with_calls(LOOK, text="Let me see."), "Waves.", respond=lambda _: "More."
    )

    async def look(call: ToolDispatch) -> str:
        return "blue"

    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look))
    run = runtime.start("crab", "Look!", key="k")
    live = await follow_run(runtime, run)
    await run_ready_tasks(2)  # until the run has left memory
    match since:
        case "turns":
            for number in range(5):
                await runtime.send("crab", f"and {number}", key=f"k{number}")
        case "compaction":
            await runtime.compact("crab")
        case "fresh":
            for number in range(3):
                await runtime.send("crab", f"and {number}", key=f"k{number}")
                await runtime.compact("crab", fresh=True)
        case "restart":
            await runtime.close()
            runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look))
    request_count = len(model.requests)
    again = runtime.start("crab", "Look!", key="k")
    stored = await follow_run(runtime, again)
    assert is_stored(stored)
    assert isinstance(stored[0], Started)
    assert stored[0].run_id == run.id
    assert join_text(stored) == join_text(live) == "Let me see.Waves."
    assert [e.output for e in stored if isinstance(e, ToolResult)] == ["blue"]
    assert isinstance(stored[-1], Done)
    assert stored[-1].reason is StopReason.COMPLETED
    assert (await runtime.send("crab", "Look!", key="k")).text == "Waves."
    assert len(model.requests) == request_count
    assert stored == await runtime.read_stored_events("crab", key="k")
    assert stored == await runtime.read_stored_events("crab", run_id=run.id)


@pytest.mark.req("delivery.key.unique")
async def test_the_same_key_in_another_conversation_is_another_key(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.make_runtime(model, storage)
    for agent, sender in [("crab", "a"), ("crab", "b"), ("owl", "a")]:
        done = await runtime.send(agent, "Hi", sender=sender, key="k")
        assert done.text == "Hello."
    assert len(model.requests) == 3


@pytest.mark.req("delivery.key.conflict")
async def test_a_key_with_other_content_or_another_guest_is_refused_live_and_stored(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")])
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi", key="k")
    await gate.wait_until_reached()
    with pytest.raises(KeyConflictError, match="give each message a key of its own"):
        runtime.start("crab", "Hello", key="k")
    with pytest.raises(KeyConflictError):
        runtime.start("crab", "Hi", guest="owl", key="k")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Hi", key="k")
    gate.open()
    await wait_for_done(run)
    for options in ({"content": "Hello"}, {"content": "Hi", "guest": "owl"}):
        done = await runtime.send("crab", key="k", **options)  # type: ignore[arg-type]
        assert done.is_conflict
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Hi", key="k")
    await runtime.compact("crab", fresh=True)
    assert (await runtime.send("crab", "Hello", key="k")).is_conflict
    assert len(model.requests) == 1
    assert await read_history(storage) == []


@pytest.mark.req("delivery.key.conflict")
async def test_a_conflicting_message_does_not_block_the_one_that_repeats_the_key(
    world: RuntimeWorld,
) -> None:
    """The conflicting one comes first, and the log is not searched yet when the other comes."""
    storage = YieldingStorage()
    model = ScriptedProvider("One.")
    first = world.make_runtime(model, storage)
    await first.send("crab", "Right", key="k")
    runtime = world.make_runtime(model, storage)
    wrong = runtime.start("crab", "Wrong", key="k")
    right = runtime.start("crab", "Right", key="k")
    assert (await wait_for_done(wrong)).is_conflict
    assert join_text(await follow_run(runtime, right)) == "One."
    assert len(model.requests) == 1


@pytest.mark.req("delivery.key.conflict")
async def test_of_two_new_messages_with_one_key_the_first_runs_and_the_other_is_refused(
    world: RuntimeWorld,
) -> None:
    storage = YieldingStorage()
    model = ScriptedProvider("One.")
    runtime = world.make_runtime(model, storage)
    runs = [runtime.start("crab", text, key="k") for text in ("a", "b", "a")]
    done = [await wait_for_done(run) for run in runs]
    assert [end.is_conflict for end in done] == [False, True, False]
    assert [done[0].text, done[2].text] == ["One.", "One."]
    assert [m.text for m in await read_history(storage)] == ["a", "One."]


@pytest.mark.req("delivery.key.forgotten_never")
async def test_a_key_is_known_though_ten_thousand_came_after_it(
    world: RuntimeWorld, home: Path
) -> None:
    home.mkdir()
    storage = FileStorage(home, flush=False)
    count = MAX_FINGERPRINTS + 500
    records: list[Record] = [ConversationMeta(*PAIR, created_at=NOW).make_snapshot()]
    records += [
        MessageRecord(
            number,
            NOW,
            Message("user", f"say {number}"),
            run=f"r{number}",
            key=f"k{number}",
            content_hash=hash_content(f"say {number}"),
            is_keyed=True,
        )
        for number in range(count)
    ]
    records.append(
        ConversationMeta(*PAIR, created_at=NOW, updated_at=NOW, message_count=count).make_snapshot()
    )
    await storage.append(PAIR, records, create=True)
    model = ScriptedProvider(respond=lambda _: "New.")
    runtime = world.make_runtime(model, storage)
    await runtime.compact("crab", fresh=True)
    stored = await storage.load_and_repair(PAIR)
    assert isinstance(stored, StoredConversation)
    assert stored.marker is not None
    assert stored.marker.dropped_keys == 500
    assert len(stored.marker.keys) == (MAX_FINGERPRINTS * FINGERPRINT_BYTES + 2) // 3 * 4
    for number in (0, 499, 500, count - 1):  # dropped, and not
        done = await runtime.send("crab", f"say {number}", key=f"k{number}")
        assert done.reason is StopReason.ERROR
        assert "the daemon ended while" in done.error
        assert (await runtime.send("crab", "other", key=f"k{number}")).is_conflict
    assert not model.requests
    assert (await runtime.send("crab", "new", key="k-new")).text == "New."
    assert (await runtime.send("crab", "new", key="k-new")).text == "New."
    assert len(model.requests) == 1
    await runtime.close()
    await storage.close()


@pytest.mark.req("delivery.key.withdrawn")
async def test_a_withdrawn_turn_leaves_its_key_free(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")], "Two.", "Three.")
    runtime = world.make_runtime(model, storage)
    first = runtime.start("crab", "First")
    await gate.wait_until_reached()
    waiting = runtime.start("crab", "Second", key="k")
    async with asyncio.timeout(TEST_TIMEOUT):
        while not waiting.is_started:
            await asyncio.sleep(0)
    waiting.kill()
    assert (await wait_for_done(waiting)).reason is StopReason.CANCELLED
    gate.open()
    await wait_for_done(first)
    unknown = await runtime.send("crab", "Third", guest="cat", key="g")
    assert unknown.reason is StopReason.ERROR
    assert (await runtime.send("crab", "Something else", key="k")).text == "Two."
    assert (await runtime.send("crab", "Third", key="g")).text == "Three."


@pytest.mark.req("delivery.key.withdrawn")
async def test_a_turn_that_storage_refused_leaves_its_key_free(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    storage.failing_appends = {0}
    runtime = world.make_runtime(ScriptedProvider("One."), storage)
    assert "disk is full" in (await runtime.send("crab", "Hi", key="k")).error
    assert (await runtime.send("crab", "Hi", key="k")).text == "One."


@pytest.mark.req("delivery.key.killed")
async def test_a_run_that_was_killed_is_not_run_again_and_one_that_waits_behind_it_is(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([*answer_with_text("One "), gate], "Two.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "First", key="k1")
    await gate.wait_until_reached()
    waiting = runtime.start("crab", "Second", key="k2")
    assert await runtime.kill("crab")
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert (await wait_for_done(waiting)).text == "Two."
    again = await follow_run(runtime, runtime.start("crab", "First", key="k1"))
    assert is_stored(again)
    assert isinstance(again[-1], Done)
    assert again[-1].reason is StopReason.CANCELLED
    assert len(model.requests) == 2


async def test_an_empty_key_counts_as_no_key(storage: Storage, world: RuntimeWorld) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.make_runtime(model, storage)
    for _ in range(3):
        await runtime.send("crab", "Hi", key="")
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    "key", ["a\nb", "\0", '"', "\\", '\'"key":', "ключ 🦀", " ", "\u2028", "</x>", "{}", "k" * 128]
)
@pytest.mark.req("delivery.key.characters")
async def test_a_key_may_have_any_characters(
    storage: Storage, world: RuntimeWorld, key: str
) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.make_runtime(model, storage)
    await runtime.send("crab", f'say "key":"{key}" twice', key="other")
    for _ in range(2):
        assert (await runtime.send("crab", "Hi", key=key)).text == "Hello."
    await runtime.compact("crab", fresh=True)
    assert (await runtime.send("crab", "Hi", key=key)).text == "Hello."
    assert len(model.requests) == 2
    assert (await runtime.send("crab", "Hi", key=key + "x")).text == "Hello."
    assert len(model.requests) == 3


# ── Repeated steers ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.key.steer")
async def test_a_steer_with_a_key_is_sent_once_live_and_after_the_run(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()

    async def look(call: ToolDispatch) -> str:
        await gate.pass_through()
        return "waves"

    model = ScriptedProvider(answer_with_calls(LOOK), "Both.")
    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look))
    run = runtime.start("crab", "Look!", key="k")
    await gate.wait_until_reached()
    async with asyncio.timeout(TEST_TIMEOUT):
        await asyncio.gather(*(runtime.steer("crab", "And listen.", key="s") for _ in range(20)))
        await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Something else", key="s")
    with pytest.raises(KeyConflictError):
        runtime.start("crab", "And listen.", key="s")
    gate.open()
    events = await follow_run(runtime, run)
    assert events.count(UserSteered("And listen.")) == 1
    await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Something else", key="s")
    assert (await runtime.send("crab", "And listen.", key="s")).is_conflict
    await runtime.compact("crab", fresh=True)
    await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(NothingInFlightError):
        await runtime.steer("crab", "And smell.", key="s2")
    page = await storage.read_page(PAIR, 0, 100)
    assert page is not None
    assert [r.message.text for r in page.messages].count("And listen.") == 1


@pytest.mark.req("delivery.key.steer")
async def test_steers_that_race_while_the_log_is_searched_are_sent_once(
    world: RuntimeWorld,
) -> None:
    """The marker has dropped keys, so every new key is searched for in the log."""

    class SlowSearch(WatchedStorage):
        async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
            await run_ready_tasks(3)
            return await super().find_run(pair, run=run, key=key)

    storage = SlowSearch()
    gate = Gate()
    model = ScriptedProvider("One.", [gate, *answer_with_text("Two.")], "Three.")
    runtime = world.make_runtime(model, storage)
    await runtime.send("crab", "First")
    conversation = runtime.conversations.get(PAIR)
    conversation.archived_keys._dropped = 1  # as after more than ten thousand keys
    run = runtime.start("crab", "Second")
    await gate.wait_until_reached()
    async with asyncio.timeout(TEST_TIMEOUT):
        await asyncio.gather(*(runtime.steer("crab", "And listen.", key="s") for _ in range(20)))
    gate.open()
    await wait_for_done(run)
    assert [m.text for m in await read_history(storage)].count("And listen.") == 1


@pytest.mark.req("delivery.key.steer")
async def test_a_steer_that_comes_while_a_repeated_key_is_looked_for_is_not_lost(
    world: RuntimeWorld,
) -> None:
    """The repeated run holds the turn for a moment; a steer into it would be withdrawn."""

    class SlowLoad(WatchedStorage):
        gate: Gate | None = None

        async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
            if self.gate is not None:
                await self.gate.pass_through()
            return await super().load_and_repair(pair)

    storage = SlowLoad()
    model = ScriptedProvider("One.", "Two.")
    await world.make_runtime(model, storage).send("crab", "First", key="k")
    runtime = world.make_runtime(model, storage)
    storage.gate = Gate()
    again = runtime.start("crab", "First", key="k")
    await storage.gate.wait_until_reached()
    steering = asyncio.ensure_future(runtime.steer("crab", "And listen."))
    await run_ready_tasks(3)
    storage.gate.open()
    assert join_text(await follow_run(runtime, again)) == "One."
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(NothingInFlightError):
            await steering
    # A run with a new key takes the steer.
    storage.gate = Gate()
    runtime = world.make_runtime(model, storage)
    new = runtime.start("crab", "Second", key="k2")
    await storage.gate.wait_until_reached()
    steering = asyncio.ensure_future(runtime.steer("crab", "And listen."))
    await run_ready_tasks(3)
    storage.gate.open()
    async with asyncio.timeout(TEST_TIMEOUT):
        await steering
    await wait_for_done(new)
    assert "And listen." in [m.text for m in await read_history(storage)]


# ── Following ───────────────────────────────────────────────────────────────────────────────────


def make_call_answers(count: int) -> list[Sequence[AnswerStep]]:
    return [
        answer_with_calls(
            ToolCall(f"c{number}", "look", f'{{"n":{number}}}'), text=f"step {number}. "
        )
        for number in range(count)
    ]


@pytest.mark.req("delivery.attach.dropped")
@pytest.mark.parametrize("slow", [False, True])
async def test_steps_that_are_not_in_memory_any_more_are_read_from_the_log(
    storage: Storage, world: RuntimeWorld, slow: bool
) -> None:
    """Once with a follower that comes late, once with one that reads nothing for a long time."""
    gate, middle = Gate(), Gate()

    async def look(call: ToolDispatch) -> str:
        if call.call_id == "c19":
            middle._reached.set()
            await gate.pass_through()
        return f"{call.call_id} " * 200

    model = ScriptedProvider(*make_call_answers(20), "Done.")
    limits = RuntimeLimits(run_buffer=4000)
    crab = make_patient_agent()
    runtime = world.make_runtime(
        model, storage, hook=ScriptedTools(look=look), limits=limits, agents=[crab]
    )
    run = runtime.start("crab", "Look!", key="k")
    events: list[Event] = []
    stream = runtime.follow(run)
    async with asyncio.timeout(TEST_TIMEOUT):
        if slow:
            events.append((await anext(stream)).event)
            events.append((await anext(stream)).event)
        await middle.wait_until_reached()
        assert run.replay_buffer.last_dropped
        assert run.replay_buffer.size < 20_000
        gate.open()
        async for _, event in stream:
            if isinstance(event, Started):
                events = []
            events.append(event)
    steps = "".join(f"step {number}. " for number in range(20))
    assert join_text(events) == f"{steps}Done."
    outputs = [event.output for event in events if isinstance(event, ToolResult)]
    assert outputs == [f"c{number} " * 200 for number in range(20)]
    assert isinstance(events[-1], Done)


@pytest.mark.req("delivery.attach.readers")
async def test_a_slow_reader_misses_nothing_and_delays_no_other(
    storage: Storage, world: RuntimeWorld
) -> None:
    """It reads one event at a time while many others come, of changing kinds."""
    pieces = [*make_call_answers(30), answer_with_text("The ", "end.")]

    async def look(call: ToolDispatch) -> str:
        return call.call_id

    model = ScriptedProvider(*pieces)
    runtime = world.make_runtime(
        model, storage, hook=ScriptedTools(look=look), agents=[make_patient_agent()]
    )
    run = runtime.start("crab", "Look!", key="k")

    async def read_slowly(pause: int) -> list[Event]:
        events: list[Event] = []
        async for _, event in runtime.follow(run):
            events.append(event)
            await run_ready_tasks(pause)
        return events

    async with asyncio.timeout(TEST_TIMEOUT):
        fast, *slow = await asyncio.gather(
            read_slowly(0), read_slowly(1), read_slowly(7), read_slowly(40)
        )
    for events in slow:
        assert join_text(events) == join_text(fast)
        for kind in (ToolResult, Started, Done):
            assert [e for e in events if isinstance(e, kind)] == [
                e for e in fast if isinstance(e, kind)
            ]


@pytest.mark.req("delivery.attach.compaction")
@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_follower_of_a_compaction_sees_a_run_without_text_that_ends(
    storage: Storage, world: RuntimeWorld, is_killed: bool
) -> None:
    gate = Gate()
    model = ScriptedProvider("One.", [gate, *answer_with_text("A summary.")])
    runtime = world.make_runtime(model, storage)
    await runtime.send("crab", "Hi")
    compacting = asyncio.ensure_future(runtime.compact("crab"))
    await gate.wait_until_reached()
    run = runtime.find_run("crab")
    assert run is not None
    following = asyncio.ensure_future(follow_run(runtime, run))
    await run_ready_tasks(3)
    if is_killed:
        await runtime.kill("crab")
    gate.open()
    await asyncio.wait([compacting])
    assert (compacting.exception() is not None) == is_killed
    events = await following
    assert isinstance(events[0], Started)
    assert join_text(events) == ""
    assert isinstance(events[-1], Done)
    expected = StopReason.ERROR if is_killed else StopReason.COMPLETED
    assert events[-1].reason is expected


def make_patient_agent() -> Agent:
    return msgspec.structs.replace(CRAB, max_iterations=50)
