"""Steering messages: read at the run's next step, in order, and never lost."""

import msgspec
import pytest

from crabtalk.model import ApiError, ErrorKind, Message, ToolCall
from crabtalk.runtime import (
    BusyError,
    Done,
    NothingInFlightError,
    RuntimeLimits,
    StopReason,
    ToolDispatch,
    ToolsComplete,
    UserSteered,
)
from crabtalk.storage import Storage
from tests.runtime.runtime_world import (
    CRAB,
    RuntimeWorld,
    ScriptedTools,
    WatchedStorage,
    assistant_message,
    collect_events,
    read_history,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    Gate,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
)

LOOK = ToolCall("c1", "look", "{}")
BUSY = ApiError(ErrorKind.OVERLOADED, "come back later")


def make_gated_tools(gate: Gate) -> ScriptedTools:
    async def look(call: ToolDispatch) -> str:
        await gate.pass_through()
        return "waves"

    return ScriptedTools(look=look)


async def test_a_steer_is_read_at_the_next_step_and_stored_in_order(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider(answer_with_calls(LOOK), "Both.")
    runtime = world.make_runtime(model, storage, hook=make_gated_tools(gate))
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Also listen.")
    await runtime.steer("crab", "And smell.")
    gate.open()
    events = await collect_events(run.events())
    at = events.index(ToolsComplete())
    assert events[at + 1 : at + 3] == [UserSteered("Also listen."), UserSteered("And smell.")]
    history = [
        user_message("Look!"),
        Message("assistant", tool_calls=(LOOK,)),
        Message("tool", "waves", call_id="c1", name="look"),
        user_message("Also listen."),
        user_message("And smell."),
    ]
    assert list(model.last_messages) == history
    assert await read_history(storage) == [*history, assistant_message("Both.")]


async def test_a_steer_during_the_answer_adds_a_step(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")], "Two.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    done = (await collect_events(run.events()))[-1]
    assert done == Done("crab", StopReason.COMPLETED, "Two.", model="m", steps=2)
    assert [m.text for m in await read_history(storage)] == ["Hi", "One.", "Really?", "Two."]


async def test_a_steer_while_the_last_answer_is_stored_adds_a_step(
    world: RuntimeWorld,
) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[1] = Gate()
    runtime = world.make_runtime(ScriptedProvider("One.", "Two."), storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    events = await collect_events(run.events())
    assert UserSteered("Really?") in events
    assert events[-1] == Done("crab", StopReason.COMPLETED, "Two.", model="m", steps=2)
    assert [m.text for m in await read_history(storage)] == ["Hi", "One.", "Really?", "Two."]


async def test_a_steer_during_an_empty_answer_adds_a_step(
    world: RuntimeWorld,
) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([gate], "Two."))
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Say something.")
    gate.open()
    assert (await wait_for_done(run)).text == "Two."


async def test_a_steer_at_the_last_allowed_step_adds_a_step(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    hasty = msgspec.structs.replace(CRAB, max_iterations=1)
    model = ScriptedProvider(answer_with_calls(LOOK), "Stopped.")
    runtime = world.make_runtime(model, storage, agents=[hasty], hook=make_gated_tools(gate))
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Stop.")
    gate.open()
    assert await wait_for_done(run) == Done(
        "crab", StopReason.COMPLETED, "Stopped.", model="m", steps=2
    )
    assert [m.text for m in await read_history(storage)][-2:] == ["Stop.", "Stopped."]


async def test_steers_of_a_killed_run_are_stored(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    model = ScriptedProvider([gate], "Hello.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Wait.")
    await runtime.steer("crab", "No, go on.")
    await runtime.kill("crab")
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert await read_history(storage) == [
        user_message("Hi"),
        user_message("Wait."),
        user_message("No, go on."),
    ]
    await wait_for_done(runtime.start("crab", "So?"))
    assert list(model.last_messages) == [
        user_message("Hi"),
        user_message("Wait."),
        user_message("No, go on."),
        user_message("So?"),
    ]


async def test_steers_of_a_failed_run_are_stored(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([gate, BUSY]), storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    assert (await wait_for_done(run)).reason is StopReason.ERROR
    assert await read_history(storage) == [user_message("Hi"), user_message("Really?")]


async def test_a_steer_that_is_being_read_during_a_kill_is_stored_once(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    model_gate = Gate()
    reading = storage.append_gates[2] = Gate()
    runtime = world.make_runtime(ScriptedProvider([model_gate, *answer_with_text("One.")]), storage)
    run = runtime.start("crab", "Hi")
    await model_gate.wait_until_reached()
    await runtime.steer("crab", "Really?")
    await runtime.steer("crab", "Sure?")
    model_gate.open()
    await reading.wait_until_reached()
    await runtime.kill("crab")
    reading.open()
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert [m.text for m in await read_history(storage)] == ["Hi", "One.", "Really?", "Sure?"]


async def test_a_steer_into_a_run_that_is_being_killed_is_stored(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate, cleanup = Gate(), Gate()

    async def look(call: ToolDispatch) -> str:
        try:
            await gate.pass_through()
        finally:
            await cleanup.pass_through()
        return "never"

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK)), storage, hook=ScriptedTools(look=look)
    )
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    await cleanup.wait_until_reached()
    await runtime.steer("crab", "Stop!")
    cleanup.open()
    await wait_for_done(run)
    assert (await read_history(storage))[-1] == user_message("Stop!")


async def test_a_guest_reads_steers_into_its_turn(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([gate, *answer_with_text("Hoo.")], "Hoo hoo."), storage
    )
    run = runtime.start("crab", "Owl?", guest="owl")
    await gate.wait_until_reached()
    await runtime.steer("crab", "Louder.")
    gate.open()
    assert (await wait_for_done(run)).text == "Hoo hoo."
    assert await read_history(storage) == [
        user_message("Owl?"),
        assistant_message("Hoo.", "owl"),
        user_message("Louder."),
        assistant_message("Hoo hoo.", "owl"),
    ]


async def test_a_steer_without_a_run_is_refused(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."))
    sentence = "nothing runs in the conversation of crab with user; say it as a message of its own"
    with pytest.raises(NothingInFlightError, match=sentence):
        await runtime.steer("crab", "Hi")
    await wait_for_done(runtime.start("crab", "Hi"))
    with pytest.raises(NothingInFlightError, match=sentence):
        await runtime.steer("crab", "Hi")


async def test_a_run_that_is_storing_its_end_takes_no_steers(world: RuntimeWorld) -> None:
    """A refusal is better than an acknowledged message that is lost."""
    storage = WatchedStorage()
    model_gate = Gate()
    ending = storage.append_gates[1] = Gate()
    runtime = world.make_runtime(ScriptedProvider([model_gate]), storage)
    run = runtime.start("crab", "Hi")
    await model_gate.wait_until_reached()
    await runtime.kill("crab")
    await ending.wait_until_reached()
    with pytest.raises(NothingInFlightError):
        await runtime.steer("crab", "Wait.")
    ending.open()
    await wait_for_done(run)
    assert await read_history(storage) == [user_message("Hi")]


async def test_unread_steers_are_bounded(storage: Storage, world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(
        ScriptedProvider([gate, *answer_with_text("One.")], "Two."),
        storage,
        limits=RuntimeLimits(steers=2),
    )
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.steer("crab", "a")
    await runtime.steer("crab", "b")
    with pytest.raises(BusyError, match="2 steering messages wait to be read; try again later"):
        await runtime.steer("crab", "c")
    gate.open()
    await wait_for_done(run)
    assert [m.text for m in await read_history(storage)] == ["Hi", "One.", "a", "b", "Two."]
