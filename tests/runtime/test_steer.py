"""Saying something into a run: read at the next step, in order, and never lost."""

import msgspec
import pytest

from crabtalk.model import ApiError, ErrorKind, Message, ToolCall
from crabtalk.runtime import (
    BusyError,
    Done,
    Limits,
    NothingInFlightError,
    StopReason,
    ToolDispatch,
    ToolsComplete,
    UserSteered,
)
from crabtalk.storage import Storage
from tests.runtime.provider import Gate, ScriptedProvider, calls, says
from tests.runtime.world import (
    CRAB,
    Tools,
    WatchedStorage,
    World,
    assistant,
    ended,
    kept,
    told,
    user,
)

LOOK = ToolCall("c1", "look", "{}")
BUSY = ApiError(ErrorKind.OVERLOADED, "come back later")


def gated(gate: Gate) -> Tools:
    async def look(call: ToolDispatch) -> str:
        await gate.passed()
        return "waves"

    return Tools(look=look)


async def test_what_is_said_into_a_run_is_read_at_its_next_step_and_kept_in_order(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider(calls(LOOK), "Both.")
    runtime = world.runtime(model, storage, hook=gated(gate))
    run = runtime.start("crab", "Look!")
    await gate.reached()
    await runtime.steer("crab", "Also listen.")
    await runtime.steer("crab", "And smell.")
    gate.open()
    events = await told(run.events())
    at = events.index(ToolsComplete())
    assert events[at + 1 : at + 3] == [UserSteered("Also listen."), UserSteered("And smell.")]
    history = [
        user("Look!"),
        Message("assistant", tool_calls=(LOOK,)),
        Message("tool", "waves", call_id="c1", name="look"),
        user("Also listen."),
        user("And smell."),
    ]
    assert list(model.seen) == history
    assert await kept(storage) == [*history, assistant("Both.")]


async def test_what_is_said_while_the_model_speaks_is_one_more_step(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *says("One.")], "Two.")
    runtime = world.runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    done = (await told(run.events()))[-1]
    assert done == Done("crab", StopReason.COMPLETED, "Two.", model="m", steps=2)
    assert [m.text for m in await kept(storage)] == ["Hi", "One.", "Really?", "Two."]


async def test_what_is_said_as_the_last_answer_is_being_kept_is_one_more_step(
    world: World,
) -> None:
    storage = WatchedStorage()
    gate = storage.gates[1] = Gate()
    runtime = world.runtime(ScriptedProvider("One.", "Two."), storage)
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    events = await told(run.events())
    assert UserSteered("Really?") in events
    assert events[-1] == Done("crab", StopReason.COMPLETED, "Two.", model="m", steps=2)
    assert [m.text for m in await kept(storage)] == ["Hi", "One.", "Really?", "Two."]


async def test_what_is_said_to_a_model_that_says_nothing_is_one_more_step(world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate], "Two."))
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "Say something.")
    gate.open()
    assert (await ended(run)).text == "Two."


async def test_what_is_said_at_the_last_step_a_turn_may_take_is_one_more_step(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    hasty = msgspec.structs.replace(CRAB, max_iterations=1)
    model = ScriptedProvider(calls(LOOK), "Stopped.")
    runtime = world.runtime(model, storage, agents=[hasty], hook=gated(gate))
    run = runtime.start("crab", "Look!")
    await gate.reached()
    await runtime.steer("crab", "Stop.")
    gate.open()
    assert await ended(run) == Done("crab", StopReason.COMPLETED, "Stopped.", model="m", steps=2)
    assert [m.text for m in await kept(storage)][-2:] == ["Stop.", "Stopped."]


async def test_what_was_said_into_a_run_that_is_killed_is_kept(
    storage: Storage, world: World
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate], "Hello.")
    runtime = world.runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "Wait.")
    await runtime.steer("crab", "No, go on.")
    await runtime.kill("crab")
    assert (await ended(run)).reason is StopReason.CANCELLED
    assert await kept(storage) == [user("Hi"), user("Wait."), user("No, go on.")]
    await ended(runtime.start("crab", "So?"))
    assert list(model.seen) == [user("Hi"), user("Wait."), user("No, go on."), user("So?")]


async def test_what_was_said_into_a_run_that_fails_is_kept(storage: Storage, world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate, BUSY]), storage)
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "Really?")
    gate.open()
    assert (await ended(run)).reason is StopReason.ERROR
    assert await kept(storage) == [user("Hi"), user("Really?")]


async def test_what_is_being_read_when_the_run_is_killed_is_kept_once(world: World) -> None:
    storage = WatchedStorage()
    asked = Gate()
    reading = storage.gates[2] = Gate()
    runtime = world.runtime(ScriptedProvider([asked, *says("One.")]), storage)
    run = runtime.start("crab", "Hi")
    await asked.reached()
    await runtime.steer("crab", "Really?")
    await runtime.steer("crab", "Sure?")
    asked.open()
    await reading.reached()
    await runtime.kill("crab")
    reading.open()
    assert (await ended(run)).reason is StopReason.CANCELLED
    assert [m.text for m in await kept(storage)] == ["Hi", "One.", "Really?", "Sure?"]


async def test_what_is_said_into_a_run_that_is_being_killed_is_kept(
    storage: Storage, world: World
) -> None:
    gate, tidying = Gate(), Gate()

    async def look(call: ToolDispatch) -> str:
        try:
            await gate.passed()
        finally:
            await tidying.passed()
        return "never"

    runtime = world.runtime(ScriptedProvider(calls(LOOK)), storage, hook=Tools(look=look))
    run = runtime.start("crab", "Look!")
    await gate.reached()
    await runtime.kill("crab")
    await tidying.reached()
    await runtime.steer("crab", "Stop!")
    tidying.open()
    await ended(run)
    assert (await kept(storage))[-1] == user("Stop!")


async def test_a_guest_reads_what_is_said_into_its_turn(storage: Storage, world: World) -> None:
    gate = Gate()
    runtime = world.runtime(ScriptedProvider([gate, *says("Hoo.")], "Hoo hoo."), storage)
    run = runtime.start("crab", "Owl?", guest="owl")
    await gate.reached()
    await runtime.steer("crab", "Louder.")
    gate.open()
    assert (await ended(run)).text == "Hoo hoo."
    assert await kept(storage) == [
        user("Owl?"),
        assistant("Hoo.", "owl"),
        user("Louder."),
        assistant("Hoo hoo.", "owl"),
    ]


async def test_there_must_be_a_run_to_say_something_into(world: World) -> None:
    runtime = world.runtime(ScriptedProvider("Hello."))
    sentence = "nothing runs in the conversation of crab with user; say it as a message of its own"
    with pytest.raises(NothingInFlightError, match=sentence):
        await runtime.steer("crab", "Hi")
    await ended(runtime.start("crab", "Hi"))
    with pytest.raises(NothingInFlightError, match=sentence):
        await runtime.steer("crab", "Hi")


async def test_a_run_that_keeps_its_last_words_takes_no_more(world: World) -> None:
    """Better a refusal than a promise that is not kept."""
    storage = WatchedStorage()
    asked = Gate()
    ending = storage.gates[1] = Gate()
    runtime = world.runtime(ScriptedProvider([asked]), storage)
    run = runtime.start("crab", "Hi")
    await asked.reached()
    await runtime.kill("crab")
    await ending.reached()
    with pytest.raises(NothingInFlightError):
        await runtime.steer("crab", "Wait.")
    ending.open()
    await ended(run)
    assert await kept(storage) == [user("Hi")]


async def test_what_waits_to_be_read_is_bounded(storage: Storage, world: World) -> None:
    gate = Gate()
    runtime = world.runtime(
        ScriptedProvider([gate, *says("One.")], "Two."), storage, limits=Limits(steers=2)
    )
    run = runtime.start("crab", "Hi")
    await gate.reached()
    await runtime.steer("crab", "a")
    await runtime.steer("crab", "b")
    with pytest.raises(BusyError, match="2 steering messages wait to be read; try again later"):
        await runtime.steer("crab", "c")
    gate.open()
    await ended(run)
    assert [m.text for m in await kept(storage)] == ["Hi", "One.", "a", "b", "Two."]
