"""Accepted means kept: what a turn or a steer is told before its text is kept, and what becomes of
accepted texts whose process died or whose run failed."""

import asyncio

import pytest

from crabtalk.runtime import Done, Run, Started, StopReason
from crabtalk.storage import Accepted, Pair, Storage, StorageError
from tests.runtime.provider import PATIENCE, Gate, ScriptedProvider, says
from tests.runtime.world import PAIR, WatchedStorage, World, ended, kept, moments, told, user


class AcceptingStorage(WatchedStorage):
    """Accepting waits at `gate`, if there is one, and fails while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None
        self.is_full = False

    @property
    def pending(self) -> int:
        return len(self._accepted)

    async def accept(self, entry: Accepted) -> None:
        if self.gate is not None:
            await self.gate.passed()
        if self.is_full:
            raise StorageError("the disk is full; make room")
        await super().accept(entry)


async def first_event(run: Run) -> object:
    async with asyncio.timeout(PATIENCE):
        return await run.outlet.next()


async def texts(storage: Storage) -> list[str]:
    return [message.text for message in await kept(storage)]


def ends(storage: WatchedStorage) -> list[tuple[str, object]]:
    done = [trace for trace in storage.traces if trace.event == "done"]
    return [(trace.run, trace.data["stop_reason"]) for trace in done]


@pytest.mark.req("accepted.turn")
async def test_a_turn_is_started_when_its_message_is_kept(world: World) -> None:
    storage = WatchedStorage()
    gate = storage.gates[0] = Gate()
    runtime = world.runtime(ScriptedProvider("Hello."), storage)
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await moments(3)
    assert not run.is_started
    gate.open()
    assert await first_event(run) == Started("crab", "run-1")
    assert (await texts(storage))[0] == "Hi"
    await ended(run)


@pytest.mark.req("accepted.turn")
async def test_a_turn_that_cannot_be_kept_never_starts(world: World) -> None:
    storage = WatchedStorage()
    storage.failing = {0}
    runtime = world.runtime(ScriptedProvider("Hello."), storage)
    events = await told(runtime.stream("crab", "Hi"))
    assert events == [Done("crab", StopReason.ERROR, error="the disk is full; make room")]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_turn_that_waits_is_started_when_it_is_accepted(world: World) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    model = ScriptedProvider([asked, *says("One.")], "Two.")
    runtime = world.runtime(model, storage)
    first = runtime.start("crab", "First")
    await asked.reached()
    storage.gate = Gate()
    second = runtime.start("crab", "Second", guest="owl")
    await storage.gate.reached()
    await moments(3)
    assert not second.is_started
    storage.gate.open()
    assert await first_event(second) == Started("owl", "run-2")
    assert await texts(storage) == ["First"]
    asked.open()
    await ended(first)
    await ended(second)
    assert await texts(storage) == ["First", "One.", "Second", "Two."]
    assert await storage.unsettled() == []
    assert storage.pending == 0


@pytest.mark.req("accepted.waiting_turn")
async def test_a_waiting_turn_that_cannot_be_accepted_is_an_error_and_nobody_waits_for_it(
    world: World,
) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")], "Three."), storage)
    first = runtime.start("crab", "First")
    await asked.reached()
    storage.is_full = True
    events = await told(runtime.start("crab", "Second").events())
    assert events == [Done("crab", StopReason.ERROR, error="the disk is full; make room")]
    storage.is_full = False
    third = runtime.start("crab", "Third")
    asked.open()
    await ended(first)
    await ended(third)
    assert await texts(storage) == ["First", "One.", "Third", "Three."]


@pytest.mark.req("accepted.waiting_turn")
async def test_turns_that_are_accepted_slowly_run_in_the_order_of_the_calls(world: World) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    answers = ["2", "3", "4"]
    runtime = world.runtime(ScriptedProvider([asked, *says("1")], *answers), storage)
    runs = [runtime.start("crab", "a")]
    await asked.reached()
    storage.gate = Gate()
    runs += [runtime.start("crab", text) for text in "bcd"]
    await storage.gate.reached()
    asked.open()
    await ended(runs[0])
    storage.gate.open()
    for run in runs:
        await ended(run)
    assert await texts(storage) == ["a", "1", "b", "2", "c", "3", "d", "4"]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_turn_that_is_left_while_it_waits_is_taken_back(world: World) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")]), storage)
    first = runtime.start("crab", "First")
    await asked.reached()
    second = runtime.start("crab", "Second")
    assert await first_event(second) == Started("crab", "run-2")
    second.kill()
    await ended(second)
    assert storage.pending == 0
    asked.open()
    await ended(first)
    assert await texts(storage) == ["First", "One."]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_waiting_turn_that_fails_to_reach_the_log_is_closed_there_later(
    world: World,
) -> None:
    storage = WatchedStorage()
    asked = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")], "Three."), storage)
    first = runtime.start("crab", "First")
    await asked.reached()
    second = runtime.start("crab", "Second")
    assert await first_event(second) == Started("crab", "run-2")
    # The answer of the first is kept, then nothing: neither the second message nor its closing.
    storage.failing = {2, 3}
    asked.open()
    assert (await ended(first)).text == "One."
    assert (await ended(second)).error == "the disk is full; make room"
    assert (await ended(runtime.start("crab", "Third"))).text == "Three."
    assert await texts(storage) == ["First", "One.", "Second", "Third", "Three."]
    assert ends(storage)[1] == ("run-2", "interrupted")


@pytest.mark.req("accepted.steer")
async def test_a_steer_is_acknowledged_when_it_is_kept_and_the_run_waits_for_it(
    world: World,
) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")], "Two."), storage)
    run = runtime.start("crab", "Hi")
    await asked.reached()
    storage.gate = Gate()
    steering = asyncio.ensure_future(runtime.steer("crab", "Really?"))
    await storage.gate.reached()
    asked.open()
    await moments(20)
    assert not steering.done()
    assert run.done is None
    storage.gate.open()
    await steering
    assert (await ended(run)).text == "Two."
    assert await texts(storage) == ["Hi", "One.", "Really?", "Two."]
    assert storage.pending == 0


@pytest.mark.req("accepted.steer")
async def test_a_steer_that_cannot_be_kept_is_an_error_and_is_not_read(world: World) -> None:
    storage = AcceptingStorage()
    asked = Gate()
    model = ScriptedProvider([asked, *says("One.")], "Two.")
    runtime = world.runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await asked.reached()
    storage.is_full = True
    with pytest.raises(StorageError, match="the disk is full"):
        await runtime.steer("crab", "Really?")
    storage.is_full = False
    await runtime.steer("crab", "Sure?")
    asked.open()
    await ended(run)
    assert await texts(storage) == ["Hi", "One.", "Sure?", "Two."]


@pytest.mark.req("accepted.steer")
async def test_a_steer_whose_run_cannot_keep_it_is_closed_later(world: World) -> None:
    storage = WatchedStorage()
    asked = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")], "Later."), storage)
    run = runtime.start("crab", "Hi")
    await asked.reached()
    await runtime.steer("crab", "Really?")
    storage.failing = {1, 2}  # the answer, and the closing that follows
    asked.open()
    assert (await ended(run)).reason is StopReason.ERROR
    assert (await ended(runtime.start("crab", "So?"))).text == "Later."
    assert await texts(storage) == ["Hi", "Really?", "So?", "Later."]


@pytest.mark.req("accepted.recovery")
async def test_what_a_dead_process_had_accepted_is_closed_ahead_of_new_turns(
    storage: Storage, world: World
) -> None:
    before = world.runtime(ScriptedProvider("Hello."), storage)
    await ended(before.start("crab", "Hi"))
    left = [
        Accepted(*PAIR, "run-8", "Waited.", "2026-01-01T00:00:01Z", number=1, speaker="owl"),
        Accepted(*PAIR, "run-9", "Waited too.", "2026-01-01T00:00:02Z", number=2, speaker="crab"),
        Accepted(*PAIR, "run-7", "Steered.", "2026-01-01T00:00:03Z", number=3, steer=1),
        Accepted("crab", "new", "run-6", "First ever.", "2026-01-01T00:00:04Z", number=4),
    ]
    for entry in left:
        await storage.accept(entry)
    storage.abandon(left)
    model = ScriptedProvider("Well.")
    runtime = world.runtime(model, storage)
    await runtime.recover()
    run = runtime.start("crab", "And?")
    await ended(run)
    assert await texts(storage) == [
        "Hi",
        "Hello.",
        "Steered.",
        "Waited.",
        "Waited too.",
        "And?",
        "Well.",
    ]
    async with asyncio.timeout(PATIENCE):
        while runtime.running:
            await asyncio.sleep(0.001)
    assert await kept(storage, Pair("crab", "new")) == [user("First ever.")]
    assert await storage.unsettled() == []
    assert model.seen[-2:] == (user("Waited too."), user("And?"))
