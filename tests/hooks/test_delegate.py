"""Delegation through a real socket: tasks side by side, in the foreground and behind it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from tests.daemon.in_process_daemon import FunctionTools, follow_feed, run_daemon

AGENTS = {
    "crab": 'prompt = "You are crab."\nmodel = "scripted"\nthinking = true\n',
    "twin": 'prompt = "You are twin."\n',
}


def build_script(*tasks: dict[str, Any], background: bool = False) -> str:
    arguments = json.dumps({"tasks": list(tasks), "background": background})
    return f"!tool delegate {arguments}\n!then\n!say done"


async def read_outcome(
    client: Client, content: str, sender: str | None = None, cwd: str | None = None
) -> tuple[Any, bool]:
    """What the one call of a turn came to."""
    found: list[tuple[str, bool]] = [
        (event.output, event.is_error)
        async for event in client.stream("crab", content, sender=sender, cwd=cwd)
        if isinstance(event, wire.ToolResultEvent)
    ]
    ((output, is_error),) = found
    return (output if is_error else json.loads(output)), is_error


@pytest.mark.req("delegate.results")
async def test_tasks_are_carried_out_and_results_and_errors_both_reported(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        told, is_error = await read_outcome(
            client,
            build_script(
                {"agent": "twin", "message": "!say found it"},
                {"message": "!status 400 no such luck"},
                {"agent": "twin", "message": "!nothing"},
            ),
        )
    assert not is_error
    assert told[0] == {"agent": "twin", "result": "found it", "error": None}
    assert told[1]["agent"] == "worker"
    assert "no such luck" in told[1]["error"]
    assert told[2] == {"agent": "twin", "result": None, "error": "it said nothing (no_action)"}


@pytest.mark.req("delegate.worker")
async def test_a_worker_is_always_there_and_is_what_its_caller_is(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        told, _ = await read_outcome(
            client,
            build_script({"message": "!say a"}, {"message": "!say b", "system_prompt": "Be b."}),
        )
        assert [entry["result"] for entry in told] == ["a", "b"]
        asked = [
            request
            for request in daemon.model.requests
            if not request["messages"][0]["content"].startswith("You are crab.")
        ]
        assert {request["model"] for request in asked} == {"scripted"}
        assert all(request.get("reasoning_effort") for request in asked)
        assert sorted(request["messages"][0]["content"][:5] for request in asked) == [
            "Be b.",
            "You c",
        ]
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab", "twin"]


@pytest.mark.req("delegate.cwd")
async def test_each_task_has_its_own_directory_and_acts_for_whoever_began(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def look(call: ToolDispatch) -> str:
        seen.append((call.cwd.name, call.run.origin))
        return "ok"

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    tasks = [
        {"message": "!tool look {}\n!then\n!say ok", "cwd": str(tmp_path / name), "agent": agent}
        for name, agent in (("a", "twin"), ("b", ""))
    ]
    hooks = {"test": FunctionTools(look=look)}
    async with (
        run_daemon(tmp_path, agents=AGENTS, hooks=hooks) as daemon,
        daemon.client() as client,
    ):
        await read_outcome(client, build_script(*tasks), sender="user~a", cwd=str(tmp_path))
        nowhere = {"message": "x", "cwd": "nowhere"}
        told, is_error = await read_outcome(client, build_script(nowhere), cwd=str(tmp_path))
        outside, is_refused = await read_outcome(client, build_script({"message": "x", "cwd": "/"}))
    assert sorted(seen) == [("a", "user~a"), ("b", "user~a")]
    assert is_error
    assert told.startswith("invalid arguments: cwd")
    assert is_refused
    assert outside.startswith("permission denied: cwd '/' is outside of ")


@pytest.mark.req("delegate.parent")
async def test_what_a_delegated_run_does_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon,
        daemon.client() as client,
        follow_feed(daemon) as follower,
    ):
        await read_outcome(
            client, build_script({"message": "!say a"}, {"agent": "twin", "message": "!say b"})
        )
        events = await follower.wait_until_done(3)
    own = next(event for event in events if event.agent == "crab")
    starts = next(event for event in events if event.kind == wire.TOOL_START)
    children = [event for event in events if event.HasField("parent")]
    assert {(e.parent.agent, e.parent.sender, e.parent.run_id) for e in children} == {
        ("crab", "user", own.run_id)
    }
    assert {e.parent.call_id for e in children} == {starts.tool_calls[0].id}
    assert {e.parent.task for e in children} == {0, 1}


@pytest.mark.req("delegate.background")
async def test_in_the_background_the_caller_goes_on_and_tasks_outlive_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        task = {"agent": "twin", "message": "!wait\n!say late"}
        told, _ = await read_outcome(client, build_script(task, background=True))
        (started,) = told
        assert started["agent"] == "twin"
        await daemon.model.until_waiting()
        daemon.model.release()
        async with asyncio.timeout(10):
            while daemon.daemon.runtime.running_count:
                await asyncio.sleep(0)
        page = await client.list_messages("twin", sender=started["task_id"])
        assert [message.content for message in page.messages][1:] == ["late"]


@pytest.mark.req("delegate.kill")
async def test_killing_the_caller_kills_what_it_delegated(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        turn = asyncio.ensure_future(
            read_outcome(
                client, build_script({"message": "!wait"}, {"agent": "twin", "message": "!wait"})
            )
        )
        await daemon.model.until_waiting(2)
        await client.kill("crab")
        await daemon.model.until_hung_up(2)
        with pytest.raises(ValueError, match="not enough values"):
            await turn
        async with asyncio.timeout(10):
            while daemon.daemon.runtime.running_count:
                await asyncio.sleep(0)


@pytest.mark.req("delegate.bounds")
async def test_depth_and_width_are_bounded(tmp_path: Path) -> None:
    def nested(levels: int) -> str:
        message = "!say bottom"
        for _ in range(levels):
            message = f"!tool delegate {json.dumps({'tasks': [{'message': message}]})}"
        return f"{message}\n!then\n!say done"

    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        told, is_error = await read_outcome(client, build_script(*[{"message": "x"}] * 17))
        assert (told, is_error) == ("at most 16 tasks in one call", True)
        told, is_error = await read_outcome(client, nested(4))
        assert not is_error
        said = [
            message["content"]
            for request in daemon.model.requests
            for message in request["messages"]
            if message["role"] == "tool"
        ]
        assert any("at most 3 agents deep" in text for text in said)


async def test_an_agent_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        told, is_error = await read_outcome(
            client, build_script({"message": "!wait"}, {"agent": "nobody", "message": "x"})
        )
        assert is_error
        assert told.startswith("no agent is called 'nobody'")
        assert len((await client.list_agents()).agents) == 2
