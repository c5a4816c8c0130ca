"""Keys: what is said with one is run once in its conversation, whoever repeats it, and whenever."""

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
    Limits,
    NothingInFlightError,
    Run,
    Runtime,
    Started,
    StopReason,
    TextDelta,
    ToolDispatch,
    ToolResult,
    UserSteered,
)
from crabtalk.storage import (
    Agent,
    FileStorage,
    MessageRecord,
    Meta,
    Pair,
    Record,
    Storage,
    Stored,
    hash_content,
)
from crabtalk.storage.keys import FINGERPRINT, MOST_FINGERPRINTS
from tests.runtime.provider import PATIENCE, Gate, ScriptedProvider, Step, calls, says
from tests.runtime.world import (
    CRAB,
    NOW,
    PAIR,
    Tools,
    UnhurriedStorage,
    WatchedStorage,
    World,
    ended,
    kept,
    moments,
)

LOOK = ToolCall("c1", "look", "{}")


async def followed(runtime: Runtime, run: Run, after: int = 0) -> list[Event]:
    async with asyncio.timeout(PATIENCE):
        return [event async for _, event in runtime.follow(run, after)]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def is_stored(events: list[Event]) -> bool:
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Done)
    return events[0].is_stored


# ── Repeated turns ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("delivery.key.running")
async def test_a_key_repeated_while_it_runs_is_the_same_run_from_its_beginning(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([*says("One "), gate, *says("two.")])
    runtime = world.runtime(model, storage)
    first = runtime.start("crab", "Hi", key="k")
    await gate.reached()
    second = runtime.start("crab", "Hi", key="k")
    assert second is first
    reading = [asyncio.ensure_future(followed(runtime, run)) for run in (first, second)]
    await moments(3)
    gate.open()
    told = await asyncio.gather(*reading)
    assert [text_of(events) for events in told] == ["One two."] * 2
    assert not any(map(is_stored, told))
    assert len(model.requests) == 1


@pytest.mark.req("delivery.key.running")
async def test_a_key_repeated_while_it_waits_in_line_is_the_same_run(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *says("One.")], "Two.")
    runtime = world.runtime(model, storage)
    before = runtime.start("crab", "First")
    await gate.reached()
    waiting = runtime.start("crab", "Second", key="k")
    await moments(3)
    assert runtime.start("crab", "Second", key="k") is waiting
    gate.open()
    assert text_of(await followed(runtime, waiting)) == "Two."
    await ended(before)
    assert [m.text for m in await kept(storage)] == ["First", "One.", "Second", "Two."]


@pytest.mark.req("delivery.key.stored")
@pytest.mark.parametrize("since", ["nothing", "turns", "compaction", "fresh", "restart"])
async def test_a_key_repeated_after_its_run_gives_the_stored_outcome_whatever_came_since(
    storage: Storage, world: World, since: str
) -> None:
    model = ScriptedProvider(calls(LOOK, text="Let me see."), "Waves.", respond=lambda _: "More.")

    async def look(call: ToolDispatch) -> str:
        return "blue"

    runtime = world.runtime(model, storage, hook=Tools(look=look))
    run = runtime.start("crab", "Look!", key="k")
    live = await followed(runtime, run)
    await moments(2)  # until the run has left memory
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
            runtime = world.runtime(model, storage, hook=Tools(look=look))
    asked = len(model.requests)
    again = runtime.start("crab", "Look!", key="k")
    stored = await followed(runtime, again)
    assert is_stored(stored)
    assert isinstance(stored[0], Started)
    assert stored[0].run_id == run.id
    assert text_of(stored) == text_of(live) == "Let me see.Waves."
    assert [e.output for e in stored if isinstance(e, ToolResult)] == ["blue"]
    assert isinstance(stored[-1], Done)
    assert stored[-1].reason is StopReason.COMPLETED
    assert (await runtime.send("crab", "Look!", key="k")).text == "Waves."
    assert len(model.requests) == asked
    assert stored == await runtime.stored_events("crab", key="k")
    assert stored == await runtime.stored_events("crab", run_id=run.id)


@pytest.mark.req("delivery.key.unique")
async def test_the_same_key_in_another_conversation_is_another_key(
    storage: Storage, world: World
) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.runtime(model, storage)
    for agent, sender in [("crab", "a"), ("crab", "b"), ("owl", "a")]:
        done = await runtime.send(agent, "Hi", sender=sender, key="k")
        assert done.text == "Hello."
    assert len(model.requests) == 3


@pytest.mark.req("delivery.key.conflict")
async def test_a_key_with_other_content_or_another_guest_is_refused_live_and_stored(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *says("One.")])
    runtime = world.runtime(model, storage)
    run = runtime.start("crab", "Hi", key="k")
    await gate.reached()
    with pytest.raises(KeyConflictError, match="give each message a key of its own"):
        runtime.start("crab", "Hello", key="k")
    with pytest.raises(KeyConflictError):
        runtime.start("crab", "Hi", guest="owl", key="k")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Hi", key="k")
    gate.open()
    await ended(run)
    for options in ({"content": "Hello"}, {"content": "Hi", "guest": "owl"}):
        done = await runtime.send("crab", key="k", **options)  # type: ignore[arg-type]
        assert done.is_conflict
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Hi", key="k")
    await runtime.compact("crab", fresh=True)
    assert (await runtime.send("crab", "Hello", key="k")).is_conflict
    assert len(model.requests) == 1
    assert await kept(storage) == []


@pytest.mark.req("delivery.key.conflict")
async def test_somebody_with_the_wrong_content_does_not_keep_the_right_one_from_its_outcome(
    world: World,
) -> None:
    """The wrong one comes first, and the log was not looked at yet when the right one comes."""
    storage = UnhurriedStorage()
    model = ScriptedProvider("One.")
    first = world.runtime(model, storage)
    await first.send("crab", "Right", key="k")
    runtime = world.runtime(model, storage)
    wrong = runtime.start("crab", "Wrong", key="k")
    right = runtime.start("crab", "Right", key="k")
    assert (await ended(wrong)).is_conflict
    assert text_of(await followed(runtime, right)) == "One."
    assert len(model.requests) == 1


@pytest.mark.req("delivery.key.conflict")
async def test_of_two_new_messages_with_one_key_the_first_runs_and_the_other_is_refused(
    world: World,
) -> None:
    storage = UnhurriedStorage()
    model = ScriptedProvider("One.")
    runtime = world.runtime(model, storage)
    runs = [runtime.start("crab", text, key="k") for text in ("a", "b", "a")]
    done = [await ended(run) for run in runs]
    assert [each.is_conflict for each in done] == [False, True, False]
    assert [done[0].text, done[2].text] == ["One.", "One."]
    assert [m.text for m in await kept(storage)] == ["a", "One."]


@pytest.mark.req("delivery.key.forgotten_never")
async def test_a_key_is_known_though_ten_thousand_came_after_it(world: World, home: Path) -> None:
    home.mkdir()
    storage = FileStorage(home, flush=False)
    count = MOST_FINGERPRINTS + 500
    records: list[Record] = [Meta(*PAIR, created_at=NOW).snapshot()]
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
    records.append(Meta(*PAIR, created_at=NOW, updated_at=NOW, message_count=count).snapshot())
    await storage.append(PAIR, records, create=True)
    model = ScriptedProvider(respond=lambda _: "New.")
    runtime = world.runtime(model, storage)
    await runtime.compact("crab", fresh=True)
    stored = await storage.load(PAIR)
    assert isinstance(stored, Stored)
    assert stored.marker is not None
    assert stored.marker.dropped_keys == 500
    assert len(stored.marker.keys) == (MOST_FINGERPRINTS * FINGERPRINT + 2) // 3 * 4
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
async def test_a_turn_that_was_taken_back_leaves_its_key_free(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *says("One.")], "Two.", "Three.")
    runtime = world.runtime(model, storage)
    first = runtime.start("crab", "First")
    await gate.reached()
    waiting = runtime.start("crab", "Second", key="k")
    async with asyncio.timeout(PATIENCE):
        while not waiting.is_started:
            await asyncio.sleep(0)
    waiting.kill()
    assert (await ended(waiting)).reason is StopReason.CANCELLED
    gate.open()
    await ended(first)
    unknown = await runtime.send("crab", "Third", guest="nobody", key="g")
    assert unknown.reason is StopReason.ERROR
    assert (await runtime.send("crab", "Something else", key="k")).text == "Two."
    assert (await runtime.send("crab", "Third", key="g")).text == "Three."


@pytest.mark.req("delivery.key.withdrawn")
async def test_a_turn_that_storage_refused_leaves_its_key_free(world: World) -> None:
    storage = WatchedStorage()
    storage.failing = {0}
    runtime = world.runtime(ScriptedProvider("One."), storage)
    assert "disk is full" in (await runtime.send("crab", "Hi", key="k")).error
    assert (await runtime.send("crab", "Hi", key="k")).text == "One."


@pytest.mark.req("delivery.key.killed")
async def test_a_run_that_was_killed_is_not_run_again_and_one_that_waits_behind_it_is(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([*says("One "), gate], "Two.")
    runtime = world.runtime(model, storage)
    run = runtime.start("crab", "First", key="k1")
    await gate.reached()
    waiting = runtime.start("crab", "Second", key="k2")
    assert await runtime.kill("crab")
    assert (await ended(run)).reason is StopReason.CANCELLED
    assert (await ended(waiting)).text == "Two."
    again = await followed(runtime, runtime.start("crab", "First", key="k1"))
    assert is_stored(again)
    assert isinstance(again[-1], Done)
    assert again[-1].reason is StopReason.CANCELLED
    assert len(model.requests) == 2


async def test_an_empty_key_is_none(storage: Storage, world: World) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.runtime(model, storage)
    for _ in range(3):
        await runtime.send("crab", "Hi", key="")
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    "key", ["a\nb", "\0", '"', "\\", '\'"key":', "ключ 🦀", " ", "\u2028", "</x>", "{}", "k" * 128]
)
@pytest.mark.req("delivery.key.characters")
async def test_a_key_may_have_any_characters(storage: Storage, world: World, key: str) -> None:
    model = ScriptedProvider(respond=lambda _: "Hello.")
    runtime = world.runtime(model, storage)
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
async def test_a_steer_with_a_key_is_said_once_live_and_after_the_run(
    storage: Storage, world: World
) -> None:
    gate = Gate()

    async def look(call: ToolDispatch) -> str:
        await gate.passed()
        return "waves"

    model = ScriptedProvider(calls(LOOK), "Both.")
    runtime = world.runtime(model, storage, hook=Tools(look=look))
    run = runtime.start("crab", "Look!", key="k")
    await gate.reached()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(runtime.steer("crab", "And listen.", key="s") for _ in range(20)))
        await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Something else", key="s")
    with pytest.raises(KeyConflictError):
        runtime.start("crab", "And listen.", key="s")
    gate.open()
    events = await followed(runtime, run)
    assert events.count(UserSteered("And listen.")) == 1
    await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(KeyConflictError):
        await runtime.steer("crab", "Something else", key="s")
    assert (await runtime.send("crab", "And listen.", key="s")).is_conflict
    await runtime.compact("crab", fresh=True)
    await runtime.steer("crab", "And listen.", key="s")
    with pytest.raises(NothingInFlightError):
        await runtime.steer("crab", "And smell.", key="s2")
    page = await storage.page(PAIR, 0, 100)
    assert page is not None
    assert [r.message.text for r in page.messages].count("And listen.") == 1


@pytest.mark.req("delivery.key.steer")
async def test_steers_that_race_while_the_log_is_searched_are_said_once(world: World) -> None:
    """Keys were dropped from the marker, so that every new key is looked for in the log."""

    class SlowSearch(WatchedStorage):
        async def find_run(self, pair: Pair, *, run: str = "", key: str = "") -> list[Record]:
            await moments(3)
            return await super().find_run(pair, run=run, key=key)

    storage = SlowSearch()
    gate = Gate()
    model = ScriptedProvider("One.", [gate, *says("Two.")], "Three.")
    runtime = world.runtime(model, storage)
    await runtime.send("crab", "First")
    conversation = runtime.conversations.get(PAIR)
    conversation.archived_keys._dropped = 1  # as after more than ten thousand keys
    run = runtime.start("crab", "Second")
    await gate.reached()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(runtime.steer("crab", "And listen.", key="s") for _ in range(20)))
    gate.open()
    await ended(run)
    assert [m.text for m in await kept(storage)].count("And listen.") == 1


@pytest.mark.req("delivery.key.steer")
async def test_a_steer_that_comes_while_a_repeated_key_is_looked_for_is_not_lost(
    world: World,
) -> None:
    """The repetition has its turn for a moment; what is said into it would be taken back."""

    class SlowLoad(WatchedStorage):
        gate: Gate | None = None

        async def load(self, pair: Pair) -> Stored | None:
            if self.gate is not None:
                await self.gate.passed()
            return await super().load(pair)

    storage = SlowLoad()
    model = ScriptedProvider("One.", "Two.")
    await world.runtime(model, storage).send("crab", "First", key="k")
    runtime = world.runtime(model, storage)
    storage.gate = Gate()
    again = runtime.start("crab", "First", key="k")
    await storage.gate.reached()
    steering = asyncio.ensure_future(runtime.steer("crab", "And listen."))
    await moments(3)
    storage.gate.open()
    assert text_of(await followed(runtime, again)) == "One."
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(NothingInFlightError):
            await steering
    # Into one that is a run of its own it is said.
    storage.gate = Gate()
    runtime = world.runtime(model, storage)
    new = runtime.start("crab", "Second", key="k2")
    await storage.gate.reached()
    steering = asyncio.ensure_future(runtime.steer("crab", "And listen."))
    await moments(3)
    storage.gate.open()
    async with asyncio.timeout(PATIENCE):
        await steering
    await ended(new)
    assert "And listen." in [m.text for m in await kept(storage)]


# ── Following ───────────────────────────────────────────────────────────────────────────────────


def many_calls(count: int) -> list[Sequence[Step]]:
    return [
        calls(ToolCall(f"c{number}", "look", f'{{"n":{number}}}'), text=f"step {number}. ")
        for number in range(count)
    ]


@pytest.mark.req("delivery.attach.dropped")
@pytest.mark.parametrize("slow", [False, True])
async def test_steps_that_are_not_in_memory_any_more_are_read_from_the_log(
    storage: Storage, world: World, slow: bool
) -> None:
    """A follower that comes late, and one that came first and read nothing for a long time."""
    gate, middle = Gate(), Gate()

    async def look(call: ToolDispatch) -> str:
        if call.call_id == "c19":
            middle._reached.set()
            await gate.passed()
        return f"{call.call_id} " * 200

    model = ScriptedProvider(*many_calls(20), "Done.")
    limits = Limits(run_buffer=4000)
    crab = patient_agent()
    runtime = world.runtime(model, storage, hook=Tools(look=look), limits=limits, agents=[crab])
    run = runtime.start("crab", "Look!", key="k")
    events: list[Event] = []
    stream = runtime.follow(run)
    async with asyncio.timeout(PATIENCE):
        if slow:
            events.append((await anext(stream)).event)
            events.append((await anext(stream)).event)
        await middle.reached()
        assert run.transcript.dropped
        assert run.transcript.size < 20_000
        gate.open()
        async for _, event in stream:
            if isinstance(event, Started):
                events = []
            events.append(event)
    steps = "".join(f"step {number}. " for number in range(20))
    assert text_of(events) == f"{steps}Done."
    outputs = [event.output for event in events if isinstance(event, ToolResult)]
    assert outputs == [f"c{number} " * 200 for number in range(20)]
    assert isinstance(events[-1], Done)


@pytest.mark.req("delivery.attach.readers")
async def test_a_reader_that_is_slow_misses_nothing_and_delays_nobody(
    storage: Storage, world: World
) -> None:
    """It takes an event whenever many others have come: kinds change all the time."""
    pieces = [*many_calls(30), says("The ", "end.")]

    async def look(call: ToolDispatch) -> str:
        return call.call_id

    model = ScriptedProvider(*pieces)
    runtime = world.runtime(model, storage, hook=Tools(look=look), agents=[patient_agent()])
    run = runtime.start("crab", "Look!", key="k")

    async def read_slowly(pause: int) -> list[Event]:
        found: list[Event] = []
        async for _, event in runtime.follow(run):
            found.append(event)
            await moments(pause)
        return found

    async with asyncio.timeout(PATIENCE):
        fast, *slow = await asyncio.gather(
            read_slowly(0), read_slowly(1), read_slowly(7), read_slowly(40)
        )
    for found in slow:
        assert text_of(found) == text_of(fast)
        for kind in (ToolResult, Started, Done):
            assert [e for e in found if isinstance(e, kind)] == [
                e for e in fast if isinstance(e, kind)
            ]


@pytest.mark.req("delivery.attach.compaction")
@pytest.mark.parametrize("is_killed", [False, True])
async def test_whoever_follows_a_compaction_sees_a_run_without_words_that_ends(
    storage: Storage, world: World, is_killed: bool
) -> None:
    gate = Gate()
    model = ScriptedProvider("One.", [gate, *says("A summary.")])
    runtime = world.runtime(model, storage)
    await runtime.send("crab", "Hi")
    compacting = asyncio.ensure_future(runtime.compact("crab"))
    await gate.reached()
    run = runtime.find_run("crab")
    assert run is not None
    following = asyncio.ensure_future(followed(runtime, run))
    await moments(3)
    if is_killed:
        await runtime.kill("crab")
    gate.open()
    await asyncio.wait([compacting])
    assert (compacting.exception() is not None) == is_killed
    events = await following
    assert isinstance(events[0], Started)
    assert text_of(events) == ""
    assert isinstance(events[-1], Done)
    expected = StopReason.ERROR if is_killed else StopReason.COMPLETED
    assert events[-1].reason is expected


def patient_agent() -> Agent:
    return msgspec.structs.replace(CRAB, max_iterations=50)
