"""Killing a run: its work stops at once, complete messages stay, other runs are not affected."""

import asyncio
from contextlib import aclosing

import pytest

from crabtalk.model import Chunk, Message, ToolCall
from crabtalk.model.messages import Usage
from crabtalk.runtime import (
    Done,
    Event,
    RuntimeLimits,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ToolDispatch,
    ToolResult,
    UnknownConversationError,
    tool_calls,
)
from crabtalk.runtime.conversation import INTERRUPTED
from crabtalk.storage import Storage
from tests.runtime.runtime_world import (
    PAIR,
    RuntimeWorld,
    ScriptedTools,
    WatchedStorage,
    YieldingStorage,
    assistant_message,
    collect_events,
    read_history,
    run_ready_tasks,
    user_message,
    wait_for_done,
)
from tests.runtime.scripted_provider import (
    TEST_TIMEOUT,
    AnswerStep,
    Gate,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
    find_history_error,
)

LOOK = ToolCall("c1", "look", "{}")
SWIM = ToolCall("c2", "swim", "{}")


def answer_until_gate(gate: Gate) -> list[AnswerStep]:
    """Sends some text, then waits for the gate."""
    return [Chunk(text="Once upon"), gate, Chunk(text=" a time")]


# ── While the model speaks ──────────────────────────────────────────────────────────────────────


async def test_a_kill_closes_the_models_stream_and_keeps_the_users_message(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider(answer_until_gate(gate), "Hello.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Tell!")
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    assert await collect_events(run.events()) == [
        Started("crab", "run-1"),
        TextStart("crab"),
        TextDelta("Once upon"),
        TextEnd("crab"),
        Done("crab", StopReason.CANCELLED, model="m"),
    ]
    assert model.cut_off_streams == 1
    assert await read_history(storage) == [user_message("Tell!")]
    # The conversation goes on from there.
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    assert model.last_messages == (user_message("Tell!"), user_message("Hi"))


async def test_a_run_that_waits_for_its_reader_can_be_killed(world: RuntimeWorld) -> None:
    model = ScriptedProvider(answer_with_text(*"abcdefgh"), "Hello.")
    runtime = world.make_runtime(model, limits=RuntimeLimits(stream_events=3))
    run = runtime.start("crab", "Spell!")
    other = runtime.start("crab", "Spell!", sender="other")
    await wait_for_done(other)  # by then the first one is as far as it gets
    assert run.event_queue.is_full
    assert await runtime.kill("crab")
    assert (await collect_events(run.events()))[-1] == Done("crab", StopReason.CANCELLED, model="m")
    assert model.cut_off_streams == 1


async def test_a_killed_run_reports_its_steps_and_usage_so_far(world: RuntimeWorld) -> None:
    gate = Gate()
    usage = Usage(1, 2, 3)

    async def look(call: ToolDispatch) -> str:
        return "waves"

    model = ScriptedProvider(
        answer_with_calls(LOOK, text="I look.", usage=usage), answer_until_gate(gate)
    )
    runtime = world.make_runtime(model, hook=ScriptedTools(look=look))
    run = runtime.start("crab", "Tell!")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    assert await wait_for_done(run) == Done(
        "crab", StopReason.CANCELLED, "I look.", model="m", usage=usage, steps=1
    )


# ── While tools run ─────────────────────────────────────────────────────────────────────────────


async def test_a_kill_cancels_tools_and_keeps_the_results_that_were_there(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    stopped: list[str] = []

    async def look(call: ToolDispatch) -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            stopped.append(call.call_id)
            raise
        return "never"

    async def swim(call: ToolDispatch) -> str:
        return "wet"

    model = ScriptedProvider(answer_with_calls(LOOK, SWIM), "Hello.")
    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look, swim=swim))
    run = runtime.start("crab", "Go!")
    events: list[Event] = []
    async with asyncio.timeout(TEST_TIMEOUT), aclosing(run.events()) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, ToolResult):
                await runtime.kill("crab")
    assert stopped == ["c1"]
    assert events[-2:] == [
        ToolResult("c2", "wet", 0),
        Done("crab", StopReason.CANCELLED, model="m", steps=1),
    ]
    history = [
        user_message("Go!"),
        Message("assistant", tool_calls=(LOOK, SWIM)),
        Message("tool", INTERRUPTED, call_id="c1", name="look", is_error=True),
        Message("tool", "wet", call_id="c2", name="swim"),
    ]
    assert await read_history(storage) == history
    assert (await wait_for_done(runtime.start("crab", "And?"))).text == "Hello."
    assert list(model.last_messages) == [*history, user_message("And?")]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_kill_while_the_calls_are_stored_makes_none_of_them(
    world: RuntimeWorld, fails: bool
) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[1] = Gate()
    storage.failing_appends |= {1} if fails else set()

    async def look(call: ToolDispatch) -> str:
        raise AssertionError("it was killed before")

    model = ScriptedProvider(answer_with_calls(LOOK), "Hello.")
    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look))
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    gate.open()
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    history = [user_message("Look!")]
    if not fails:
        history += [
            Message("assistant", tool_calls=(LOOK,)),
            Message("tool", INTERRUPTED, call_id="c1", name="look", is_error=True),
        ]
    assert await read_history(storage) == history
    assert (await wait_for_done(runtime.start("crab", "And?"))).text == "Hello."
    assert list(model.last_messages) == [*history, user_message("And?")]


async def test_a_result_that_comes_together_with_the_kill_is_stored(world: RuntimeWorld) -> None:
    storage = WatchedStorage()

    async def look(call: ToolDispatch) -> str:
        call.run.kill()
        return "waves"

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK)), storage, hook=ScriptedTools(look=look)
    )
    events = await collect_events(runtime.stream("crab", "Look!"))
    assert ToolResult("c1", "waves", 0) in events
    assert events[-1] == Done("crab", StopReason.CANCELLED, model="m", steps=1)
    assert (await read_history(storage))[-1] == Message("tool", "waves", call_id="c1", name="look")


async def test_a_tool_that_answers_its_cancellation_has_its_answer_stored(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()

    async def look(call: ToolDispatch) -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            return "half of the waves"
        return "never"

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK)), storage, hook=ScriptedTools(look=look)
    )
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert (await read_history(storage))[-1].text == "half of the waves"


async def test_a_tool_that_does_not_stop_is_abandoned(
    storage: Storage,
    world: RuntimeWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tool_calls, "GRACE", 0.01)
    gate = Gate()
    has_ended = asyncio.Event()

    async def look(call: ToolDispatch) -> str:
        while True:
            try:
                await gate.pass_through()
                has_ended.set()
                return "at last"
            except asyncio.CancelledError:
                continue

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK), "Hello."), storage, hook=ScriptedTools(look=look)
    )
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert "a tool does not stop" in caplog.text
    assert (await read_history(storage))[-1].text == INTERRUPTED
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    gate.open()
    async with asyncio.timeout(TEST_TIMEOUT):
        await has_ended.wait()


# ── Before the model is asked ───────────────────────────────────────────────────────────────────


async def test_a_kill_while_the_users_message_is_stored_waits_for_the_write(
    world: RuntimeWorld,
) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[0] = Gate()
    model = ScriptedProvider("Hello.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    gate.open()
    assert await wait_for_done(run) == Done("crab", StopReason.CANCELLED)
    assert await read_history(storage) == [user_message("Hi")]
    assert model.requests == []
    assert (await wait_for_done(runtime.start("crab", "Hi?"))).text == "Hello."


async def test_a_run_can_be_killed_before_it_has_begun(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider("Hello.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    run.kill()
    assert await collect_events(run.events()) == [
        Started("crab", "run-1"),
        Done("crab", StopReason.CANCELLED),
    ]
    assert await read_history(storage) == [user_message("Hi")]
    assert model.requests == []
    assert (await wait_for_done(runtime.start("crab", "Hi?"))).text == "Hello."


async def test_a_turn_that_is_left_while_it_waits_gives_up_only_its_own_place(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("One.")], "Three.")
    runtime = world.make_runtime(model, storage)
    first = runtime.start("crab", "First")
    await gate.wait_until_reached()
    second, third = runtime.start("crab", "Second"), runtime.start("crab", "Third")
    events = second.events()
    async with asyncio.timeout(TEST_TIMEOUT):
        assert await anext(events) == Started("crab", "run-2")
        await events.aclose()
    assert await wait_for_done(second) == Done("crab", StopReason.CANCELLED)
    gate.open()
    assert (await wait_for_done(first)).text == "One."
    assert (await wait_for_done(third)).text == "Three."
    assert [m.text for m in await read_history(storage)] == ["First", "One.", "Third", "Three."]


# ── Results of a kill ───────────────────────────────────────────────────────────────────────────


async def test_a_kill_without_a_run_in_flight_returns_false(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    await wait_for_done(runtime.start("crab", "Hi"))
    assert not await runtime.kill("crab")
    assert not await world.make_runtime(ScriptedProvider(), storage).kill("crab")


async def test_a_kill_of_an_unknown_conversation_is_an_error(
    storage: Storage, world: RuntimeWorld
) -> None:
    runtime = world.make_runtime(ScriptedProvider(), storage)
    with pytest.raises(
        UnknownConversationError, match="crab has had no conversation with stranger yet"
    ):
        await runtime.kill("crab", "stranger")


async def test_an_empty_sender_is_the_user(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([gate]))
    run = runtime.start("crab", "Hi", sender="")
    await gate.wait_until_reached()
    assert run.pair == PAIR
    assert await runtime.kill("crab", "user")
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED


async def test_a_kill_stops_the_run_in_flight_and_not_those_that_wait(world: RuntimeWorld) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider([gate], "Two."))
    first, second = runtime.start("crab", "First"), runtime.start("crab", "Second")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    assert (await wait_for_done(first)).reason is StopReason.CANCELLED
    assert (await wait_for_done(second)).text == "Two."


async def test_a_second_kill_changes_nothing(storage: Storage, world: RuntimeWorld) -> None:
    gate, cleanup = Gate(), Gate()

    async def look(call: ToolDispatch) -> str:
        try:
            await gate.pass_through()
        except asyncio.CancelledError:
            await cleanup.pass_through()
        return "tidied up"

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK)), storage, hook=ScriptedTools(look=look)
    )
    run = runtime.start("crab", "Look!")
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    await cleanup.wait_until_reached()
    assert await runtime.kill("crab")
    run.kill()
    cleanup.open()
    assert (await wait_for_done(run)).reason is StopReason.CANCELLED
    assert [m.text for m in await read_history(storage)] == ["Look!", "", "tidied up"]
    run.kill()
    assert not await runtime.kill("crab")


async def test_a_kill_while_the_answer_is_stored_keeps_the_answer(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[1] = Gate()
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    await runtime.kill("crab")
    gate.open()
    done = await wait_for_done(run)
    assert (done.reason, done.text) == (StopReason.CANCELLED, "Hello.")
    assert await read_history(storage) == [user_message("Hi"), assistant_message("Hello.")]


async def kill_after(moment: int, world: RuntimeWorld) -> StopReason:
    """Runs a turn whose tools steer it, kills it at that moment, and checks the stored history."""
    steered: list[str] = []
    acknowledged: list[str] = []

    async def look(call: ToolDispatch) -> str:
        steered.append("Also listen.")
        await runtime.steer("crab", "Also listen.")
        acknowledged.append("Also listen.")
        await run_ready_tasks(2)
        return "waves"

    storage = YieldingStorage()
    hook = ScriptedTools(look=look, swim=look)
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK, SWIM), "Waves."), storage, hook=hook
    )
    run = runtime.start("crab", "Look!")
    await run_ready_tasks(moment)
    run.kill()
    done = await wait_for_done(run)
    conversation = runtime.conversations.find(PAIR)
    assert conversation is not None
    history = await read_history(storage)
    assert conversation.history == history
    assert conversation.meta.message_count == len(history)
    assert find_history_error(history) is None
    user_texts = [m.text for m in history if m.role == "user"]
    # A steer is sent even if its caller is cancelled meanwhile.
    assert user_texts == ["Look!", *steered][: len(user_texts)]
    assert len(user_texts) > len(acknowledged)
    runtime.set_provider(ScriptedProvider("Hello."))
    assert (await wait_for_done(runtime.start("crab", "And?"))).text == "Hello."
    return done.reason


async def test_a_kill_at_any_moment_leaves_a_whole_history_and_loses_or_doubles_nothing(
    world: RuntimeWorld,
) -> None:
    moment = 0
    while (reason := await kill_after(moment, world)) is StopReason.CANCELLED:
        moment += 1
    assert reason is StopReason.COMPLETED
    assert moment > 20


async def test_a_kill_of_a_guest_leaves_the_users_message(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider(answer_until_gate(gate))
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Owl?", guest="owl")
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    assert await wait_for_done(run) == Done("owl", StopReason.CANCELLED, model="wise")
    assert model.cut_off_streams == 1
    assert await read_history(storage) == [user_message("Owl?")]


# ── Leaving ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_reader_that_stops_reading_ends_the_run(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider(answer_until_gate(gate), "Hello.")
    runtime = world.make_runtime(model, storage)
    stream = runtime.stream("crab", "Tell!")
    async with asyncio.timeout(TEST_TIMEOUT):
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await gate.wait_until_reached()
        await stream.aclose()
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    assert model.cut_off_streams == 1
    assert [m.text for m in await read_history(storage)] == ["Tell!", "Hi", "Hello."]


async def test_a_reader_that_is_cancelled_ends_the_run(world: RuntimeWorld) -> None:
    gate = Gate()
    model = ScriptedProvider([gate], "Hello.")
    runtime = world.make_runtime(model)
    reader = asyncio.ensure_future(collect_events(runtime.stream("crab", "Tell!")))
    await gate.wait_until_reached()
    reader.cancel()
    await asyncio.wait([reader])
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    assert model.cut_off_streams == 1


async def test_a_reader_that_leaves_after_the_first_event_leaves_the_conversation_in_order(
    storage: Storage, world: RuntimeWorld
) -> None:
    """The run has not had a chance to begin by then."""
    runtime = world.make_runtime(ScriptedProvider("Hello."), storage)
    stream = runtime.stream("crab", "Tell!")
    async with asyncio.timeout(TEST_TIMEOUT):
        assert await anext(stream) == Started("crab", "run-1")
        await stream.aclose()
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    assert [m.text for m in await read_history(storage)] == ["Tell!", "Hi", "Hello."]


async def test_a_detached_run_goes_on_without_its_reader_and_is_stored(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    model = ScriptedProvider(answer_until_gate(gate))
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Tell!", detached=True)
    events = run.events()
    async with asyncio.timeout(TEST_TIMEOUT):
        await anext(events)
        await events.aclose()
    await gate.wait_until_reached()
    gate.open()
    assert (await wait_for_done(run)).reason is StopReason.COMPLETED
    assert model.cut_off_streams == 0
    assert await read_history(storage) == [
        user_message("Tell!"),
        assistant_message("Once upon a time"),
    ]


async def test_a_caller_cancelled_while_waiting_for_the_end_does_not_end_the_run(
    storage: Storage, world: RuntimeWorld
) -> None:
    gate = Gate()
    runtime = world.make_runtime(ScriptedProvider(answer_until_gate(gate)), storage)
    run = runtime.start("crab", "Tell!")
    await gate.wait_until_reached()
    waiter = asyncio.ensure_future(run.wait())
    await asyncio.wait([waiter], timeout=0)
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    gate.open()
    assert (await wait_for_done(run)).text == "Once upon a time"
    assert await read_history(storage) == [
        user_message("Tell!"),
        assistant_message("Once upon a time"),
    ]


async def test_closing_the_runtime_kills_all_runs_and_stores_their_messages(
    storage: Storage, world: RuntimeWorld
) -> None:
    gates = [Gate() for _ in range(3)]
    model = ScriptedProvider(*[[gate] for gate in gates])
    runtime = world.make_runtime(model, storage)
    runs = [runtime.start("crab", "Tell!", sender=f"s{n}") for n in range(3)]
    for gate in gates:
        await gate.wait_until_reached()
    runs.append(runtime.start("crab", "Tell more!", sender="s0"))
    runs.append(runtime.start("crab", "Tell!", sender="new"))
    async with asyncio.timeout(TEST_TIMEOUT):
        await runtime.close()
    assert [run.done.reason for run in runs if run.done] == [StopReason.CANCELLED] * 5
    assert model.is_closed
    assert runtime.running_count == 0
    stored = await storage.list_conversations()
    assert sorted(meta.created_by for _, meta in stored) == ["new", "s0", "s1", "s2"]
