"""Tool calls: concurrent, each with a result, and none can break or flood the run."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.model import Message, ToolCall
from crabtalk.runtime import (
    Done,
    Env,
    Hook,
    RuntimeLimits,
    StopReason,
    ToolDispatch,
    ToolError,
    ToolResult,
    ToolStart,
)
from crabtalk.runtime.tool_calls import truncate_middle
from crabtalk.storage import Agent, Storage
from tests.runtime.runtime_world import (
    CRAB,
    RuntimeWorld,
    ScriptedTools,
    collect_events,
    read_history,
    wait_for_done,
)
from tests.runtime.scripted_provider import TEST_TIMEOUT, ScriptedProvider, answer_with_calls

LOOK = ToolCall("c1", "look", "{}")
SWIM = ToolCall("c2", "swim", "{}")


async def answer_fine(call: ToolDispatch) -> str:
    return "fine"


async def run_calls(world: RuntimeWorld, hook: Hook, *calls: ToolCall) -> list[ToolResult]:
    """The results of these calls, in a run that must complete in spite of them."""
    runtime = world.make_runtime(ScriptedProvider(answer_with_calls(*calls), "Done."), hook=hook)
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert events[-1] == Done("crab", StopReason.COMPLETED, "Done.", model="m", steps=2)
    return [event for event in events if isinstance(event, ToolResult)]


async def test_tools_of_one_step_run_side_by_side(world: RuntimeWorld) -> None:
    meeting = asyncio.Barrier(2)

    async def meet(call: ToolDispatch) -> str:
        async with asyncio.timeout(TEST_TIMEOUT):
            await meeting.wait()
        return "met"

    results = await run_calls(world, ScriptedTools(look=meet, swim=meet), LOOK, SWIM)
    assert {result.output for result in results} == {"met"}


async def test_two_calls_of_one_tool_are_two_calls(world: RuntimeWorld) -> None:
    async def echo(call: ToolDispatch) -> str:
        return call.arguments

    again = ToolCall("c3", "look", '{"again": true}')
    assert await run_calls(world, ScriptedTools(look=echo), LOOK, again) == [
        ToolResult("c1", "{}", 0),
        ToolResult("c3", '{"again": true}', 0),
    ]


async def test_a_tool_that_fails_is_answered_with_its_sentence_as_an_error(
    storage: Storage, world: RuntimeWorld
) -> None:
    async def refuse(call: ToolDispatch) -> str:
        raise ToolError("permission denied: not you")

    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(LOOK), "Done."), storage, hook=ScriptedTools(look=refuse)
    )
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert ToolResult("c1", "permission denied: not you", 0, is_error=True) in events
    assert (await read_history(storage))[2] == Message(
        "tool", "permission denied: not you", call_id="c1", name="look", is_error=True
    )


async def test_a_call_of_an_unknown_tool_is_answered_with_an_error(world: RuntimeWorld) -> None:
    assert await run_calls(world, ScriptedTools(look=answer_fine), SWIM) == [
        ToolResult("c2", "tool not registered: swim", 0, is_error=True)
    ]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("by zero"), TimeoutError(), OSError(28, "full")]
)
async def test_a_tool_may_raise_anything_and_the_run_goes_on(
    world: RuntimeWorld, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: ToolDispatch) -> str:
        raise error

    swim_result, look_result = sorted(
        await run_calls(world, ScriptedTools(look=broken, swim=answer_fine), LOOK, SWIM),
        key=lambda result: result.is_error,
    )
    assert swim_result.output == "fine"
    assert look_result.output == f"look failed: {type(error).__name__}: {error}"
    assert "the tool look failed" in caplog.text


async def test_a_hook_that_raises_in_dispatch_fails_only_that_call(
    world: RuntimeWorld,
) -> None:
    class Hasty(ScriptedTools):
        def dispatch(self, call: ToolDispatch) -> Awaitable[str] | None:
            if call.name == "look":
                raise ToolError("invalid arguments: look where?")
            return super().dispatch(call)

    results = await run_calls(world, Hasty(look=answer_fine, swim=answer_fine), LOOK, SWIM)
    assert ToolResult("c1", "invalid arguments: look where?", 0, is_error=True) in results
    assert ToolResult("c2", "fine", 0) in results


async def test_a_tool_whose_own_work_was_cancelled_does_not_cancel_the_run(
    world: RuntimeWorld,
) -> None:
    async def lost(call: ToolDispatch) -> str:
        connection: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection.cancel()
        return await connection

    results = await run_calls(world, ScriptedTools(look=lost, swim=answer_fine), LOOK, SWIM)
    assert {result.call_id: result.is_error for result in results} == {"c1": True, "c2": False}


async def test_a_call_says_who_makes_it_for_whom_and_where(
    world: RuntimeWorld, tmp_path: Path
) -> None:
    seen: list[ToolDispatch] = []

    async def note(call: ToolDispatch) -> str:
        seen.append(call)
        return "noted"

    call = ToolCall("c7", "note", '{"text": "not checked')
    runtime = world.make_runtime(
        ScriptedProvider(answer_with_calls(call), "Done.", answer_with_calls(call), "Done."),
        hook=ScriptedTools(note=note),
    )
    here = runtime.start("crab", "Note!", sender="tg:7", cwd=tmp_path / "project")
    await wait_for_done(here)
    there = runtime.start("crab", "Note!", sender="tg:7")
    await wait_for_done(there)
    assert seen == [
        ToolDispatch(
            name="note",
            arguments='{"text": "not checked',
            call_id="c7",
            agent="crab",
            sender="tg:7",
            run=run,
            cwd=cwd,
        )
        for run, cwd in ((here, tmp_path / "project"), (there, world.cwd))
    ]


async def test_calls_beyond_the_bound_of_a_step_are_answered_with_errors(
    world: RuntimeWorld,
) -> None:
    done: list[str] = []

    async def count(call: ToolDispatch) -> str:
        done.append(call.call_id)
        return "counted"

    many = [ToolCall(f"c{n}", "count", "{}") for n in range(5)]
    model = ScriptedProvider(answer_with_calls(*many), "Done.")
    runtime = world.make_runtime(
        model, hook=ScriptedTools(count=count), limits=RuntimeLimits(tool_calls=3)
    )
    await wait_for_done(runtime.start("crab", "Count!"))
    assert done == ["c0", "c1", "c2"]
    results = model.last_messages[2:]
    assert [result.call_id for result in results] == ["c0", "c1", "c2", "c3", "c4"]
    refused = "not carried out: at most 3 calls in one step; call it again in the next"
    assert [result.text for result in results] == ["counted"] * 3 + [refused] * 2
    assert [result.is_error for result in results] == [False] * 3 + [True] * 2


@pytest.mark.parametrize("fails", [False, True])
async def test_output_is_cut_for_the_model_the_client_and_the_log_alike(
    storage: Storage, world: RuntimeWorld, fails: bool
) -> None:
    async def flood(call: ToolDispatch) -> str:
        if fails:
            raise ToolError("é" * 1000)
        return "é" * 1000

    model = ScriptedProvider(answer_with_calls(LOOK), "Done.")
    runtime = world.make_runtime(
        model, storage, hook=ScriptedTools(look=flood), limits=RuntimeLimits(tool_output=101)
    )
    events = await collect_events(runtime.stream("crab", "Go!"))
    expected = "é" * 25 + "\n… 1900 of 2000 bytes left out …\n" + "é" * 25
    assert ToolResult("c1", expected, 0, is_error=fails) in events
    assert model.last_messages[-1].text == (await read_history(storage))[2].text == expected


def test_output_within_the_limit_is_not_cut() -> None:
    assert truncate_middle("é" * 50, 100) == "é" * 50
    assert truncate_middle("", 1) == ""


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 64))
def test_a_cut_keeps_whole_characters_of_both_ends_and_says_what_is_missing(
    text: str, limit: int
) -> None:
    size = len(text.encode())
    shorter = truncate_middle(text, limit)
    if size <= limit:
        assert shorter == text
        return
    gap = next(n for n in range(size + 1) if f"\n… {n} of {size} bytes left out …\n" in shorter)
    head, tail = shorter.split(f"\n… {gap} of {size} bytes left out …\n", 1)
    assert text.startswith(head)
    assert text.endswith(tail)
    ends = len(head.encode()) + len(tail.encode())
    assert ends <= limit
    assert ends + gap == size
    # At either cut at most the rest of one character is missing, plus the odd byte of the limit.
    assert ends >= limit - 1 - 2 * 3


def test_lone_surrogates_are_replaced_when_output_is_cut() -> None:
    assert truncate_middle("\ud800" * 10, 4) == "??\n… 6 of 10 bytes left out …\n??"
    assert truncate_middle("a\ud800b", 4) == "a?b"


async def test_the_model_is_offered_what_its_agent_may_call_in_a_stable_order(
    world: RuntimeWorld,
) -> None:
    class Scoped(ScriptedTools):
        def scoped_tools(self, agent: Agent) -> tuple[list[str], str | None]:
            return (["swim", "look"] if agent.name == "crab" else []), None

    model = ScriptedProvider("One.", "Two.")
    runtime = world.make_runtime(
        model, hook=Scoped(swim=answer_fine, dig=answer_fine, look=answer_fine)
    )
    await wait_for_done(runtime.start("crab", "Hi"))
    await wait_for_done(runtime.start("owl", "Hi"))
    assert [tool.name for tool in model.requests[0].tools] == ["look", "swim"]
    assert model.requests[1].tools == ()


async def test_the_default_hook_and_env_are_enough_for_a_run(world: RuntimeWorld) -> None:
    """The default hook has no tools, and the default environment no instructions."""
    hook = Hook()
    assert hook.system_prompt() is None
    runtime = world.make_runtime(ScriptedProvider(answer_with_calls(LOOK), "Done."), env=Env())
    events = await collect_events(runtime.stream("crab", "Go!"))
    assert ToolStart((LOOK,)) in events
    assert ToolResult("c1", "tool not registered: look", 0, is_error=True) in events


async def test_a_hook_can_replace_the_users_text(world: RuntimeWorld) -> None:
    class Commands(ScriptedTools):
        def preprocess(self, agent: str, content: str) -> str | None:
            return f"{agent} was told: {content[1:]}" if content.startswith("/") else None

    model = ScriptedProvider("One.", "Two.", "Three.")
    runtime = world.make_runtime(model, hook=Commands())
    await wait_for_done(runtime.start("crab", "/look"))
    await wait_for_done(runtime.start("crab", "look"))
    await wait_for_done(runtime.start("crab", "/look", verbatim=True))
    texts = [message.text for message in model.last_messages if message.role == "user"]
    assert texts == ["crab was told: look", "look", "/look"]


async def test_an_agent_runs_as_the_hook_built_it(world: RuntimeWorld) -> None:
    class Building(ScriptedTools):
        def on_build_agent(self, agent: Agent) -> Agent:
            return Agent(agent.name, f"{agent.prompt} You have claws.", model=agent.model)

    model = ScriptedProvider("Hello.")
    runtime = world.make_runtime(model, hook=Building())
    await wait_for_done(runtime.start("crab", "Hi"))
    assert model.requests[0].messages[0] == Message("system", "You are crab. You have claws.")
    assert runtime.agents["crab"] == CRAB
