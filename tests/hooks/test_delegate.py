"""Delegation through a real socket: parallel tasks in the foreground and background."""

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
    """Return the result of the only call of a turn."""
    found: list[tuple[str, bool]] = [
        (event.output, event.is_error)
        async for event in client.stream("crab", content, sender=sender, cwd=cwd)
        if isinstance(event, wire.ToolResultEvent)
    ]
    ((output, is_error),) = found
    return (output if is_error else json.loads(output)), is_error


@pytest.mark.req("delegate.results")
async def test_results_and_errors_of_tasks_are_both_reported(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        outcome, is_error = await read_outcome(
            client,
            build_script(
                {"agent": "twin", "message": "!say found it"},
                {"message": "!status 400 no such luck"},
                {"agent": "twin", "message": "!nothing"},
            ),
        )
    assert not is_error
    assert outcome[0] == {"agent": "twin", "result": "found it", "error": None}
    assert outcome[1]["agent"] == "worker"
    assert "no such luck" in outcome[1]["error"]
    assert outcome[2] == {"agent": "twin", "result": None, "error": "it said nothing (no_action)"}


@pytest.mark.req("delegate.worker")
async def test_a_worker_always_exists_and_has_the_rights_of_its_caller(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        outcome, _ = await read_outcome(
            client,
            build_script({"message": "!say a"}, {"message": "!say b", "system_prompt": "Be b."}),
        )
        assert [entry["result"] for entry in outcome] == ["a", "b"]
        sub_requests = [
            request
            for request in daemon.model.requests
            if not request["messages"][0]["content"].startswith("You are crab.")
        ]
        assert {request["model"] for request in sub_requests} == {"scripted"}
        assert all(request.get("reasoning_effort") for request in sub_requests)
        assert sorted(request["messages"][0]["content"][:5] for request in sub_requests) == [
            "Be b.",
            "You c",
        ]
        assert [agent.name for agent in (await client.list_agents()).agents] == ["crab", "twin"]


@pytest.mark.req("delegate.cwd")
async def test_each_task_has_its_own_directory_and_keeps_the_origin_of_the_first_run(
    tmp_path: Path,
) -> None:
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
        outcome, is_error = await read_outcome(client, build_script(nowhere), cwd=str(tmp_path))
        outside, is_refused = await read_outcome(client, build_script({"message": "x", "cwd": "/"}))
    assert sorted(seen) == [("a", "user~a"), ("b", "user~a")]
    assert is_error
    assert outcome.startswith("invalid arguments: cwd")
    assert is_refused
    assert outside.startswith("permission denied: cwd '/' is outside of ")


@pytest.mark.req("delegate.parent")
async def test_events_of_a_delegated_run_name_its_parent(tmp_path: Path) -> None:
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
async def test_background_tasks_do_not_block_the_caller_and_outlive_it(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        task = {"agent": "twin", "message": "!wait\n!say late"}
        outcome, _ = await read_outcome(client, build_script(task, background=True))
        (started,) = outcome
        assert started["agent"] == "twin"
        await daemon.model.until_waiting()
        daemon.model.release()
        async with asyncio.timeout(10):
            while daemon.daemon.runtime.running_count:
                await asyncio.sleep(0)
        page = await client.list_messages("twin", sender=started["task_id"])
        assert [message.content for message in page.messages][1:] == ["late"]


@pytest.mark.req("delegate.kill")
async def test_killing_the_caller_kills_its_tasks(tmp_path: Path) -> None:
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
        outcome, is_error = await read_outcome(client, build_script(*[{"message": "x"}] * 17))
        assert (outcome, is_error) == ("at most 16 tasks in one call", True)
        outcome, is_error = await read_outcome(client, nested(4))
        assert not is_error
        sent_texts = [
            message["content"]
            for request in daemon.model.requests
            for message in request["messages"]
            if message["role"] == "tool"
        ]
        assert any("at most 3 agents deep" in text for text in sent_texts)


async def test_an_unknown_agent_starts_no_task(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, agents=AGENTS, hooks={}) as daemon, daemon.client() as client:
        outcome, is_error = await read_outcome(
            client, build_script({"message": "!wait"}, {"agent": "missing", "message": "x"})
        )
        assert is_error
        assert outcome.startswith("no agent is called 'missing'")
        assert len((await client.list_agents()).agents) == 2
