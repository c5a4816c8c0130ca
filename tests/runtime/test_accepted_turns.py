"""A turn or a steer is acknowledged only when its message is stored. Accepted messages survive the
death of their process and the failure of their run."""

import asyncio

import pytest

from crabtalk.runtime import Done, Run, Started, StopReason
from crabtalk.storage import AcceptedMessage, Pair, Storage, StorageError
from tests.runtime.runtime_world import (
    PAIR,
    RuntimeWorld,
    WatchedStorage,
    collect_events,
    read_history,
    run_ready_tasks,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import TEST_TIMEOUT, Gate, ScriptedProvider, answer_with_text


class AcceptingStorage(WatchedStorage):
    """`accept_message` waits at `gate`, if there is one, and fails while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.gate: Gate | None = None
        self.is_full = False

    @property
    def pending_count(self) -> int:
        return len(self._accepted)

    async def accept_message(self, entry: AcceptedMessage) -> None:
        if self.gate is not None:
            await self.gate.pass_through()
        if self.is_full:
            raise StorageError("the disk is full; make room")
        await super().accept_message(entry)


async def read_first_event(run: Run) -> object:
    async with asyncio.timeout(TEST_TIMEOUT):
        return await run.event_queue.next_event()


async def read_texts(storage: Storage) -> list[str]:
    return [message.text for message in await read_history(storage)]


def list_run_ends(storage: WatchedStorage) -> list[tuple[str, object]]:
    done = [record for record in storage.event_records if record.event == "done"]
    return [(record.run, record.data["stop_reason"]) for record in done]


@pytest.mark.req("accepted.turn")
async def test_a_turn_is_started_when_its_message_is_stored(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[0] = Gate()
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await run_ready_tasks(3)
    assert not run.is_started
    gate.open()
    assert await read_first_event(run) == Started("crab", "run-1")
    assert (await read_texts(storage))[0] == "Hi"
    await wait_for_done(run)


@pytest.mark.req("accepted.turn")
async def test_a_turn_whose_message_cannot_be_stored_never_starts(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    storage.failing_appends = {0}
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    events = await collect_events(runtime.stream("crab", "Hi"))
    assert events == [Done("crab", StopReason.ERROR, error="the disk is full; make room")]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_turn_that_waits_is_started_when_it_is_accepted(world: RuntimeWorld) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    model = ScriptedProvider([model_gate, *answer_with_text("One.")], "Two.")
    runtime = world.make_runtime(model, storage)
    first = runtime.start("crab", "First")
    await model_gate.wait_until_reached()
    storage.gate = Gate()
    second = runtime.start("crab", "Second", guest="owl")
    await storage.gate.wait_until_reached()
    await run_ready_tasks(3)
    assert not second.is_started
    storage.gate.open()
    assert await read_first_event(second) == Started("owl", "run-2")
    assert await read_texts(storage) == ["First"]
    model_gate.open()
    await wait_for_done(first)
    await wait_for_done(second)
    assert await read_texts(storage) == ["First", "One.", "Second", "Two."]
    assert await storage.list_unsettled() == []
    assert storage.pending_count == 0


@pytest.mark.req("accepted.waiting_turn")
async def test_a_waiting_turn_that_cannot_be_accepted_fails_and_does_not_block_the_queue(
    world: RuntimeWorld,
) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("One.")], "Three."), storage
    )
    first = runtime.start("crab", "First")
    await model_gate.wait_until_reached()
    storage.is_full = True
    events = await collect_events(runtime.start("crab", "Second").events())
    assert events == [Done("crab", StopReason.ERROR, error="the disk is full; make room")]
    storage.is_full = False
    third = runtime.start("crab", "Third")
    model_gate.open()
    await wait_for_done(first)
    await wait_for_done(third)
    assert await read_texts(storage) == ["First", "One.", "Third", "Three."]


@pytest.mark.req("accepted.waiting_turn")
async def test_turns_that_are_accepted_slowly_run_in_the_order_of_the_calls(
    world: RuntimeWorld,
) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    answers = ["2", "3", "4"]
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("1")], *answers), storage
    )
    runs = [runtime.start("crab", "a")]
    await model_gate.wait_until_reached()
    storage.gate = Gate()
    runs += [runtime.start("crab", text) for text in "bcd"]
    await storage.gate.wait_until_reached()
    model_gate.open()
    await wait_for_done(runs[0])
    storage.gate.open()
    for run in runs:
        await wait_for_done(run)
    assert await read_texts(storage) == ["a", "1", "b", "2", "c", "3", "d", "4"]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_turn_that_is_killed_while_it_waits_is_withdrawn(world: RuntimeWorld) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([model_gate, *answer_with_text("One.")]), storage)
    first = runtime.start("crab", "First")
    await model_gate.wait_until_reached()
    second = runtime.start("crab", "Second")
    assert await read_first_event(second) == Started("crab", "run-2")
    second.kill()
    await wait_for_done(second)
    assert storage.pending_count == 0
    model_gate.open()
    await wait_for_done(first)
    assert await read_texts(storage) == ["First", "One."]


@pytest.mark.req("accepted.waiting_turn")
async def test_a_waiting_turn_that_fails_to_reach_the_log_is_closed_there_later(
    world: RuntimeWorld,
) -> None:
    storage = WatchedStorage()
    model_gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("One.")], "Three."), storage
    )
    first = runtime.start("crab", "First")
    await model_gate.wait_until_reached()
    second = runtime.start("crab", "Second")
    assert await read_first_event(second) == Started("crab", "run-2")
    # The answer of the first is stored; the second message and its closing both fail.
    storage.failing_appends = {2, 3}
    model_gate.open()
    assert (await wait_for_done(first)).text == "One."
    assert (await wait_for_done(second)).error == "the disk is full; make room"
    assert (await wait_for_done(runtime.start("crab", "Third"))).text == "Three."
    assert await read_texts(storage) == ["First", "One.", "Second", "Third", "Three."]
    assert list_run_ends(storage)[1] == ("run-2", "interrupted")


@pytest.mark.req("accepted.steer")
async def test_a_steer_is_acknowledged_when_it_is_stored_and_the_run_waits_for_it(
    world: RuntimeWorld,
) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("One.")], "Two."), storage
    )
    run = runtime.start("crab", "Hi")
    await model_gate.wait_until_reached()
    storage.gate = Gate()
    steering = asyncio.ensure_future(runtime.steer("crab", "Really?"))
    await storage.gate.wait_until_reached()
    model_gate.open()
    await run_ready_tasks(20)
    assert not steering.done()
    assert run.done is None
    storage.gate.open()
    await steering
    assert (await wait_for_done(run)).text == "Two."
    assert await read_texts(storage) == ["Hi", "One.", "Really?", "Two."]
    assert storage.pending_count == 0


@pytest.mark.req("accepted.steer")
async def test_a_steer_that_cannot_be_stored_is_an_error_and_is_not_read(
    world: RuntimeWorld,
) -> None:
    storage = AcceptingStorage()
    model_gate = Gate()
    model = ScriptedProvider([model_gate, *answer_with_text("One.")], "Two.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await model_gate.wait_until_reached()
    storage.is_full = True
    with pytest.raises(StorageError, match="the disk is full"):
        await runtime.steer("crab", "Really?")
    storage.is_full = False
    await runtime.steer("crab", "Sure?")
    model_gate.open()
    await wait_for_done(run)
    assert await read_texts(storage) == ["Hi", "One.", "Sure?", "Two."]


@pytest.mark.req("accepted.steer")
async def test_a_steer_that_its_run_cannot_append_is_put_into_the_log_later(
    world: RuntimeWorld,
) -> None:
    storage = WatchedStorage()
    model_gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([model_gate, *answer_with_text("One.")], "Later."), storage
    )
    run = runtime.start("crab", "Hi")
    await model_gate.wait_until_reached()
    await runtime.steer("crab", "Really?")
    storage.failing_appends = {1, 2}  # the answer, and the closing after it
    model_gate.open()
    assert (await wait_for_done(run)).reason is StopReason.ERROR
    assert (await wait_for_done(runtime.start("crab", "So?"))).text == "Later."
    assert await read_texts(storage) == ["Hi", "Really?", "So?", "Later."]


@pytest.mark.req("accepted.recovery")
async def test_messages_that_a_dead_process_accepted_are_closed_before_new_turns(
    storage: Storage, world: RuntimeWorld
) -> None:
    before = world.make_runtime(ScriptedProvider("Hello."), storage)
    await wait_for_done(before.start("crab", "Hi"))
    pending = [
        AcceptedMessage(*PAIR, "run-8", "Waited.", "2026-01-01T00:00:01Z", number=1, speaker="owl"),
        AcceptedMessage(
            *PAIR, "run-9", "Waited too.", "2026-01-01T00:00:02Z", number=2, speaker="crab"
        ),
        AcceptedMessage(*PAIR, "run-7", "Steered.", "2026-01-01T00:00:03Z", number=3, steer=1),
        AcceptedMessage("crab", "new", "run-6", "First ever.", "2026-01-01T00:00:04Z", number=4),
    ]
    for entry in pending:
        await storage.accept_message(entry)
    storage.abandon_messages(pending)
    model = ScriptedProvider("Well.")
    runtime = world.make_runtime(model, storage)
    await runtime.recover()
    run = runtime.start("crab", "And?")
    await wait_for_done(run)
    assert await read_texts(storage) == [
        "Hi",
        "Hello.",
        "Steered.",
        "Waited.",
        "Waited too.",
        "And?",
        "Well.",
    ]
    async with asyncio.timeout(TEST_TIMEOUT):
        while runtime.running_count:
            await asyncio.sleep(0.001)
    assert await read_history(storage, Pair("crab", "new")) == [user_message("First ever.")]
    assert await storage.list_unsettled() == []
    assert model.last_messages[-2:] == (user_message("Waited too."), user_message("And?"))
