"""The agent loop: the order of events, what is stored and when, and how a turn ends."""

import asyncio
import logging

import msgspec
import pytest

from crabtalk.model import ApiError, Chunk, ErrorKind, Message, Request, ToolCall, ToolCallDelta
from crabtalk.model.messages import Usage
from crabtalk.runtime import (
    ContextUsage,
    Done,
    Event,
    Run,
    Started,
    StopReason,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolDispatch,
    ToolResult,
    ToolsComplete,
    ToolStart,
    UserMessageReceived,
)
from crabtalk.storage import FileStorage, Pair, Storage, StorageError, StoredConversation
from tests.runtime.runtime_world import (
    CRAB,
    PAIR,
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
    AnswerStep,
    Gate,
    ScriptedAnswer,
    ScriptedProvider,
    answer_with_calls,
    answer_with_text,
)

LOOK = ToolCall("c1", "look", '{"at": "sea"}')
SWIM = ToolCall("c2", "swim", "{}")
BUSY = ApiError(ErrorKind.OVERLOADED, "come back later", provider="scripted", status=529)


async def look_at_waves(call: ToolDispatch) -> str:
    return "waves"


def make_result(call: ToolCall, output: str) -> Message:
    return Message("tool", output, call_id=call.id, name=call.name)


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


async def test_text_comes_between_its_start_and_end_events(world: RuntimeWorld) -> None:
    usage = Usage(10, 2, 12)
    runtime = world.make_runtime(ScriptedProvider(answer_with_text("Hel", "lo", usage=usage)))
    assert await collect_events(runtime.stream("crab", "Hi")) == [
        Started("crab", "run-1"),
        TextStart("crab"),
        TextDelta("Hel"),
        TextDelta("lo"),
        TextEnd("crab"),
        ContextUsage(usage),
        Done("crab", StopReason.COMPLETED, "Hello", model="m", usage=usage, steps=1),
    ]


async def test_thinking_and_text_take_turns_and_never_nest(world: RuntimeWorld) -> None:
    answer = [Chunk(reasoning="hm"), Chunk(text="so"), Chunk(reasoning="no"), Chunk(reasoning="!")]
    runtime = world.make_runtime(ScriptedProvider(answer))
    assert await collect_events(runtime.stream("crab", "Hi")) == [
        Started("crab", "run-1"),
        ThinkingStart("crab"),
        ThinkingDelta("hm"),
        ThinkingEnd("crab"),
        TextStart("crab"),
        TextDelta("so"),
        TextEnd("crab"),
        ThinkingStart("crab"),
        ThinkingDelta("no"),
        ThinkingDelta("!"),
        ThinkingEnd("crab"),
        Done("crab", StopReason.COMPLETED, "so", model="m", steps=1),
    ]


async def test_a_chunk_that_thinks_and_speaks_thinks_first(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(ScriptedProvider([Chunk(text="so", reasoning="hm")]))
    assert (await collect_events(runtime.stream("crab", "Hi")))[1:-1] == [
        ThinkingStart("crab"),
        ThinkingDelta("hm"),
        ThinkingEnd("crab"),
        TextStart("crab"),
        TextDelta("so"),
        TextEnd("crab"),
    ]


async def test_a_call_is_announced_early_then_complete_then_its_result_then_the_usage(
    world: RuntimeWorld,
) -> None:
    first, second = Usage(10, 5, 15), Usage(20, 3, 23, cache_hit=8)
    runtime = world.make_runtime(
        ScriptedProvider(
            answer_with_calls(LOOK, usage=first), answer_with_text("Waves.", usage=second)
        ),
        hook=ScriptedTools(look=look_at_waves),
    )
    assert await collect_events(runtime.stream("crab", "Look!")) == [
        Started("crab", "run-1"),
        ToolStart((ToolCall("c1", "look"),), early=True),
        ToolStart((LOOK,)),
        ToolResult("c1", "waves", 0),
        ToolsComplete(),
        ContextUsage(first),
        TextStart("crab"),
        TextDelta("Waves."),
        TextEnd("crab"),
        ContextUsage(second),
        Done(
            "crab",
            StopReason.COMPLETED,
            "Waves.",
            model="m",
            usage=Usage(30, 8, 38, cache_hit=8),
            steps=2,
        ),
    ]


async def test_results_are_emitted_as_they_come_and_stored_in_the_order_of_the_calls(
    storage: Storage, world: RuntimeWorld
) -> None:
    swum = asyncio.Event()

    async def look(call: ToolDispatch) -> str:
        await swum.wait()
        return "waves"

    async def swim(call: ToolDispatch) -> str:
        return "wet"

    class Listening(ScriptedTools):
        def on_event(self, run: Run, event: Event) -> None:
            if isinstance(event, ToolResult):
                swum.set()

    hook = Listening(look=look, swim=swim)
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK, SWIM), "Done."), storage, hook=hook
    )
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert events[2:6] == [
        ToolStart((LOOK, SWIM)),
        ToolResult("c2", "wet", 0),
        ToolResult("c1", "waves", 0),
        ToolsComplete(),
    ]
    assert await read_history(storage) == [
        user_message("Go!"),
        Message("assistant", tool_calls=(LOOK, SWIM)),
        make_result(LOOK, "waves"),
        make_result(SWIM, "wet"),
        assistant_message("Done."),
    ]


async def test_the_early_notice_comes_inside_an_open_segment_and_once_a_step(
    world: RuntimeWorld,
) -> None:
    def named(index: int, call: ToolCall) -> Chunk:
        return Chunk(tool_calls=(ToolCallDelta(index, call.id, call.name, call.arguments),))

    answer = [Chunk(text="I "), named(0, LOOK), Chunk(text="go"), named(1, SWIM)]
    runtime = world.make_runtime(
        ScriptedProvider(answer, answer_with_calls(SWIM), "Done."),
        hook=ScriptedTools(look=look_at_waves, swim=look_at_waves),
    )
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert events[1:7] == [
        TextStart("crab"),
        TextDelta("I "),
        ToolStart((ToolCall("c1", "look"),), early=True),
        TextDelta("go"),
        TextEnd("crab"),
        ToolStart((LOOK, SWIM)),
    ]
    early = [event for event in events if isinstance(event, ToolStart) and event.early]
    assert early == [
        ToolStart((ToolCall("c1", "look"),), early=True),
        ToolStart((ToolCall("c2", "swim"),), early=True),
    ]


async def test_a_call_is_announced_only_once_it_has_a_name(world: RuntimeWorld) -> None:
    pieces = [ToolCallDelta(0, "c1"), ToolCallDelta(0, name="look"), ToolCallDelta(0, arguments="")]
    runtime = world.make_runtime(
        ScriptedProvider([Chunk(tool_calls=(piece,)) for piece in pieces], "Done."),
        hook=ScriptedTools(look=look_at_waves),
    )
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert events[1:3] == [
        ToolStart((ToolCall("c1", "look"),), early=True),
        ToolStart((ToolCall("c1", "look"),)),
    ]


@pytest.mark.parametrize("usage", [None, Usage()])
async def test_an_empty_usage_is_not_emitted(world: RuntimeWorld, usage: Usage | None) -> None:
    runtime = world.make_runtime(ScriptedProvider(answer_with_text("Hello.", usage=usage)))
    events = await collect_events(runtime.stream("crab", "Hi"))
    assert not [event for event in events if isinstance(event, ContextUsage)]
    assert events[-1] == Done("crab", StopReason.COMPLETED, "Hello.", model="m", steps=1)


async def test_empty_deltas_are_never_emitted(world: RuntimeWorld) -> None:
    answer = [Chunk(text=""), Chunk(reasoning=""), Chunk(text="Hello."), Chunk(), Chunk(text="")]
    runtime = world.make_runtime(ScriptedProvider(answer))
    assert (await collect_events(runtime.stream("crab", "Hi")))[1:-1] == [
        TextStart("crab"),
        TextDelta("Hello."),
        TextEnd("crab"),
    ]


async def test_a_segment_that_an_error_cuts_off_is_closed(world: RuntimeWorld) -> None:
    runtime = world.make_runtime(ScriptedProvider([Chunk(text="So"), BUSY]))
    events = await collect_events(runtime.stream("crab", "Hi"))
    assert events[1:-1] == [TextStart("crab"), TextDelta("So"), TextEnd("crab")]


async def test_every_event_reaches_the_hook_too(world: RuntimeWorld) -> None:
    hook = ScriptedTools(look=look_at_waves)
    runtime = world.make_runtime(ScriptedProvider(answer_with_calls(LOOK), "Waves."), hook=hook)
    events = await collect_events(runtime.stream("crab", "Look!"))
    assert [events[0], UserMessageReceived("Look!"), *events[1:]] == hook.events


async def test_a_hook_that_raises_on_an_event_breaks_no_run(world: RuntimeWorld) -> None:
    class Deaf(ScriptedTools):
        def on_event(self, run: Run, event: Event) -> None:
            raise RuntimeError("deaf")

    runtime = world.make_runtime(ScriptedProvider("Hello.", "Again."), hook=Deaf())
    for answer in ("Hello.", "Again."):
        done = (await collect_events(runtime.stream("crab", "Hi")))[-1]
        assert done == Done("crab", StopReason.COMPLETED, answer, model="m", steps=1)


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


async def test_the_model_gets_the_prompt_the_history_and_the_last_message(
    world: RuntimeWorld,
) -> None:
    model = ScriptedProvider("One.", "Two.")
    runtime = world.make_runtime(model)
    await collect_events(runtime.stream("crab", "First"))
    await collect_events(runtime.stream("crab", "Second"))
    assert model.requests[1] == Request(
        model="m",
        messages=(
            Message("system", "You are crab."),
            user_message("First"),
            assistant_message("One."),
            user_message("Second"),
        ),
    )


async def test_an_agent_without_a_model_gets_the_one_the_provider_prefers(
    world: RuntimeWorld,
) -> None:
    class Preferring(ScriptedProvider):
        async def default_model(self) -> str:
            return "preferred"

    model = Preferring("Hello.", "Hello.")
    any_model = msgspec.structs.replace(CRAB, name="any", model="")
    runtime = world.make_runtime(model, agents=[CRAB, any_model])
    done = await wait_for_done(runtime.start("any", "Hi"))
    assert done.model == model.requests[0].model == "preferred"
    assert (await wait_for_done(runtime.start("crab", "Hi"))).model == "m"


async def test_thinking_is_requested_only_for_agents_that_have_it(world: RuntimeWorld) -> None:
    model = ScriptedProvider("Hello.", "Hello.")
    thinker = msgspec.structs.replace(CRAB, name="thinker", thinking=True)
    runtime = world.make_runtime(model, agents=[CRAB, thinker])
    await collect_events(runtime.stream("crab", "Hi"))
    await collect_events(runtime.stream("thinker", "Hi"))
    assert [request.thinking for request in model.requests] == [False, True]


@pytest.mark.parametrize("how", ["by the agent", "by the turn"])
async def test_a_choice_of_tool_holds_for_the_first_step_only(
    world: RuntimeWorld, how: str
) -> None:
    model = ScriptedProvider(answer_with_calls(LOOK), answer_with_calls(LOOK), "Done.")
    picky = msgspec.structs.replace(CRAB, tool_choice="required" if how == "by the agent" else "")
    runtime = world.make_runtime(model, agents=[picky], hook=ScriptedTools(look=look_at_waves))
    choice = "" if how == "by the agent" else "required"
    await collect_events(runtime.stream("crab", "Look!", tool_choice=choice))
    assert [request.tool_choice for request in model.requests] == ["required", "auto", "auto"]


async def test_an_agent_without_tools_has_no_choice_of_them(world: RuntimeWorld) -> None:
    model = ScriptedProvider("Hello.")
    picky = msgspec.structs.replace(CRAB, tool_choice="required")
    await collect_events(world.make_runtime(model, agents=[picky]).stream("crab", "Hi"))
    assert model.requests[0].tools == ()
    assert model.requests[0].tool_choice == "auto"


# ── Storing ─────────────────────────────────────────────────────────────────────────────────────


async def test_each_message_is_stored_before_its_consequences(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    model = ScriptedProvider(answer_with_calls(LOOK), "Waves.")

    async def record_request(request: Request) -> None:
        storage.journal.append("model asked")

    async def look(call: ToolDispatch) -> str:
        storage.journal.append("tool dispatched")
        return "waves"

    class Listening(ScriptedTools):
        def on_event(self, run: Run, event: Event) -> None:
            if isinstance(event, ToolsComplete):
                storage.journal.append("tools complete")
            if isinstance(event, Done):
                storage.journal.append("done")

    model.on_request = record_request
    await collect_events(
        world.make_runtime(model, storage, hook=Listening(look=look)).stream("crab", "Look!")
    )
    assert storage.journal == [
        "user stored",
        "model asked",
        "assistant stored",
        "tool dispatched",
        "tool stored",
        "tools complete",
        "model asked",
        "assistant stored",
        "done",
    ]


async def test_storage_has_all_messages_whenever_the_model_is_asked_or_a_tool_called(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider(answer_with_calls(LOOK), answer_with_calls(SWIM, text="On."), "Done.")
    last_stored: list[Message] = []

    async def check_history(request: Request) -> None:
        assert list(model.last_messages) == await read_history(storage)

    async def record_last(call: ToolDispatch) -> str:
        last_stored.append((await read_history(storage))[-1])
        return "ok"

    model.on_request = check_history
    hook = ScriptedTools(look=record_last, swim=record_last)
    runtime = world.make_runtime(model, storage, hook=hook)
    done = await wait_for_done(runtime.start("crab", "Go!"))
    assert done.reason is StopReason.COMPLETED, done
    assert last_stored == [
        Message("assistant", tool_calls=(LOOK,)),
        Message("assistant", "On.", tool_calls=(SWIM,)),
    ]
    assert await read_history(storage) == [*model.last_messages, assistant_message("Done.")]


async def test_the_log_says_what_the_run_did(world: RuntimeWorld) -> None:
    storage = WatchedStorage()
    usage = Usage(1, 2, 3)
    model = ScriptedProvider(answer_with_calls(LOOK, usage=usage), "Waves.")
    await collect_events(
        world.make_runtime(model, storage, hook=ScriptedTools(look=look_at_waves)).stream(
            "crab", "Look!"
        )
    )
    assert [(record.event, record.run) for record in storage.event_records] == [
        ("tool_start", "run-1"),
        ("tool_result", "run-1"),
        ("done", "run-1"),
    ]
    assert storage.event_records[1].data == {"call_id": "c1", "duration_ms": 0, "is_error": False}
    assert storage.event_records[2].data == {
        "model": "m",
        "agent": "crab",
        "iterations": 2,
        "stop_reason": "completed",
        "usage": {"prompt": 1, "completion": 2, "total": 3},
    }


async def test_each_run_is_one_log_line_without_any_message_text(
    world: RuntimeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "crabtalk.runtime")
    model = ScriptedProvider(answer_with_text("My secret.", usage=Usage(1, 2, 3)), [BUSY])
    runtime = world.make_runtime(model)
    await wait_for_done(runtime.start("crab", "Your secret?", sender="tg:7"))
    await wait_for_done(runtime.start("crab", "Owl's secret?", guest="owl"))
    first, second = [record for record in caplog.records if record.message == "run done"]
    assert first.levelno == logging.INFO
    assert vars(first)["fields"] == {
        "run": "run-1",
        "agent": "crab",
        "sender": "tg:7",
        "reason": "completed",
        "steps": 1,
        "model": "m",
        "tokens": 3,
    }
    assert second.levelno == logging.WARNING
    assert vars(second)["fields"] == {
        "run": "run-2",
        "agent": "crab",
        "sender": "user",
        "reason": "error",
        "steps": 0,
        "guest": "owl",
        "model": "wise",
        "error": "scripted: come back later (HTTP 529)",
    }
    assert "secret" not in str([vars(record) for record in caplog.records])


async def test_reasoning_is_stored_with_the_answer(storage: Storage, world: RuntimeWorld) -> None:
    answer = [Chunk(reasoning="hm"), Chunk(text="So.", opaque={"scripted": {"signature": "s"}})]
    await collect_events(world.make_runtime(ScriptedProvider(answer), storage).stream("crab", "Hi"))
    assert (await read_history(storage))[-1] == Message(
        "assistant", "So.", reasoning="hm", opaque={"scripted": {"signature": "s"}}
    )


# ── How a turn ends ─────────────────────────────────────────────────────────────────────────────


async def test_a_turn_stops_after_as_many_steps_as_its_agent_may_take(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider(
        answer_with_calls(LOOK), answer_with_calls(LOOK, text="Again."), "Hello."
    )
    hasty = msgspec.structs.replace(CRAB, max_iterations=2)
    runtime = world.make_runtime(
        model, storage, agents=[hasty], hook=ScriptedTools(look=look_at_waves)
    )
    done = await wait_for_done(runtime.start("crab", "Look!"))
    assert done == Done("crab", StopReason.MAX_ITERATIONS, "Again.", model="m", steps=2)
    assert (await read_history(storage))[-1] == make_result(LOOK, "waves")
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."


@pytest.mark.parametrize("answer", [[], [Chunk(finish="stop")], [Chunk(reasoning="hm")]])
async def test_an_empty_answer_is_no_action_and_not_stored(
    storage: Storage, world: RuntimeWorld, answer: list[AnswerStep]
) -> None:
    runtime = world.make_runtime(ScriptedProvider(answer, "Hello."), storage)
    done = await wait_for_done(runtime.start("crab", "Hi"))
    assert done == Done("crab", StopReason.NO_ACTION, model="m", steps=1)
    assert await read_history(storage) == [user_message("Hi")]
    assert (await wait_for_done(runtime.start("crab", "Hi?"))).text == "Hello."


async def test_a_model_that_fails_ends_the_turn_with_its_sentence_and_the_next_one_works(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider([Chunk(text="So"), BUSY], "Hello.")
    runtime = world.make_runtime(model, storage)
    done = await wait_for_done(runtime.start("crab", "Hi"))
    assert done == Done(
        "crab", StopReason.ERROR, error="scripted: come back later (HTTP 529)", model="m"
    )
    assert await read_history(storage) == [user_message("Hi")]
    assert (await wait_for_done(runtime.start("crab", "Hi?"))).text == "Hello."
    assert model.last_messages == (user_message("Hi"), user_message("Hi?"))


async def test_a_model_that_fails_after_tools_leaves_their_results(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider(answer_with_calls(LOOK, text="I look."), [BUSY], "Hello.")
    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look_at_waves))
    done = await wait_for_done(runtime.start("crab", "Look!"))
    assert (done.reason, done.text, done.steps) == (StopReason.ERROR, "I look.", 1)
    assert (await read_history(storage))[-1] == make_result(LOOK, "waves")
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."


async def test_an_incomplete_call_is_an_error_and_not_stored(
    storage: Storage, world: RuntimeWorld
) -> None:
    model = ScriptedProvider([Chunk(tool_calls=(ToolCallDelta(0, name="look"),))])
    done = await wait_for_done(world.make_runtime(model, storage).start("crab", "Look!"))
    assert done.reason is StopReason.ERROR
    assert done.error == "the model called a tool (look) without an id"
    assert await read_history(storage) == [user_message("Look!")]


async def test_an_unexpected_error_ends_only_that_turn(
    storage: Storage, world: RuntimeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    model = ScriptedProvider(respond=lambda request: answer_with_text("Hello."))

    async def broken(request: Request) -> None:
        raise ZeroDivisionError

    model.on_request = broken
    runtime = world.make_runtime(model, storage)
    done = await wait_for_done(runtime.start("crab", "Hi"))
    assert done.reason is StopReason.ERROR
    assert done.error == "internal error (ZeroDivisionError); the daemon's log has the details"
    assert "run run-1 failed" in caplog.text
    model.on_request = None
    assert (await wait_for_done(runtime.start("crab", "Hi?"))).text == "Hello."


# The appends of a turn with one call: the user's message, the call, its result, the answer.
@pytest.mark.parametrize(
    ("failing", "request_count", "journal"),
    [
        (0, 0, []),
        (1, 1, ["user stored"]),
        (2, 1, ["user stored", "assistant stored", "tool dispatched"]),
        (3, 2, ["user stored", "assistant stored", "tool dispatched", "tool stored"]),
    ],
)
async def test_storage_that_fails_ends_the_turn_there_and_the_next_one_reads_what_it_has(
    world: RuntimeWorld, failing: int, request_count: int, journal: list[str]
) -> None:
    storage = WatchedStorage()
    storage.failing_appends.add(failing)
    answers: list[ScriptedAnswer] = [answer_with_calls(LOOK), "Waves."]
    model = ScriptedProvider(*answers[:request_count], "Hello.")

    async def look(call: ToolDispatch) -> str:
        storage.journal.append("tool dispatched")
        return "waves"

    runtime = world.make_runtime(model, storage, hook=ScriptedTools(look=look))
    events = await collect_events(runtime.stream("crab", "Look!"))
    done = events[-1]
    assert isinstance(done, Done)
    assert done.reason is StopReason.ERROR
    assert done.error == "the disk is full; make room"
    assert len(model.requests) == request_count
    assert storage.journal == journal

    before = await read_history(storage)
    assert (await wait_for_done(runtime.start("crab", "Hi"))).text == "Hello."
    # Without results of calls that were completed as interrupted.
    messages = [m for m in model.last_messages if not m.is_error]
    assert messages == [*before, user_message("Hi")]
    assert await read_history(storage) == [*before, user_message("Hi"), assistant_message("Hello.")]


async def test_storage_that_fails_to_say_how_a_turn_failed_adds_its_sentence(
    world: RuntimeWorld,
) -> None:
    storage = WatchedStorage()
    storage.failing_appends.add(1)
    done = await wait_for_done(
        world.make_runtime(ScriptedProvider([BUSY]), storage).start("crab", "Hi")
    )
    assert done.error == "scripted: come back later (HTTP 529); then the disk is full; make room"


async def test_storage_that_cannot_be_read_ends_the_turn_with_its_sentence(
    world: RuntimeWorld,
) -> None:
    class Unreadable(WatchedStorage):
        async def load_and_repair(self, pair: Pair) -> StoredConversation | None:
            raise StorageError("the disk is gone; put it back")

    model = ScriptedProvider()
    done = await wait_for_done(world.make_runtime(model, Unreadable()).start("crab", "Hi"))
    assert done == Done("crab", StopReason.ERROR, error="the disk is gone; put it back")
    assert model.requests == []


async def test_a_log_that_vanishes_under_a_turn_is_an_error_and_then_a_new_conversation(
    world: RuntimeWorld,
) -> None:
    storage = FileStorage(world.cwd, flush=False)
    gate = Gate()
    model = ScriptedProvider([gate, *answer_with_text("Lost.")], "Hello.")
    runtime = world.make_runtime(model, storage)
    run = runtime.start("crab", "Hi")
    await gate.wait_until_reached()
    assert await storage.delete_conversation(PAIR)
    gate.open()
    done = await wait_for_done(run)
    assert done.reason is StopReason.ERROR
    assert "is gone; say it again to begin a new one" in done.error
    assert (await wait_for_done(runtime.start("crab", "Hi again"))).text == "Hello."
    assert await read_history(storage) == [user_message("Hi again"), assistant_message("Hello.")]
    await storage.close()
