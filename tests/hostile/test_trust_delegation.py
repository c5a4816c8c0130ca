"""Delegation under attack: the rights of delegates, and the limits and end of a tree of runs."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits
from tests.daemon.in_process_daemon import (
    InProcessDaemon,
    ToolCalls,
    collect_events,
    follow_feed,
    get_stream_end,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.loop_latency import measure_loop_latency

PROMPT = 'prompt = "p"\n'


def make_delegate_step(*tasks: Mapping[str, Any], background: bool = False) -> ToolCalls:
    return [("delegate", {"tasks": list(tasks), "background": background})]


def make_task(*steps: ToolCalls, **options: Any) -> dict[str, Any]:
    return {"message": script_tool_calls(*steps), **options}


@asynccontextmanager
async def serve_agents(
    path: Path, agents: Mapping[str, str], **options: Any
) -> AsyncIterator[InProcessDaemon]:
    async with run_daemon(path, hooks={}, agents=agents, **options) as daemon:
        yield daemon


async def collect_tool_outputs(daemon: InProcessDaemon) -> list[str]:
    """The outputs of all tools but `delegate`, after all runs have ended."""
    await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
    outputs: dict[str, str] = {}
    names: dict[str, str] = {}
    for request in daemon.model.requests:
        for message in request["messages"]:
            for call in message.get("tool_calls") or ():
                names[call["id"]] = call["function"]["name"]
            if message["role"] == "tool":
                outputs[message["tool_call_id"]] = message["content"]
    return [text for call, text in outputs.items() if names[call] != "delegate"]


def list_all_ways(work: ToolCalls, **options: Any) -> list[ToolCalls]:
    """The work as a child's task, as a grandchild's, and each in the background."""
    child = make_task(work, **options)
    grandchild = make_task(make_delegate_step(child))
    background_child = make_task(make_delegate_step(child, background=True))
    return [
        make_delegate_step(child),
        make_delegate_step(grandchild),
        make_delegate_step(child, background=True),
        make_delegate_step(grandchild, background=True),
        make_delegate_step(background_child),
    ]


async def run_all_ways(
    daemon: InProcessDaemon, client: Client, caller: str, work: ToolCalls, cwd: Path, **target: Any
) -> list[str]:
    """The outputs of the delegates' tools. Each way is a separate turn."""
    ways = list_all_ways(work, **target)
    for step in ways:
        await wait_with_timeout(
            collect_events(client.stream(caller, script_tool_calls(step), cwd=str(cwd)))
        )
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
    outputs = await collect_tool_outputs(daemon)
    assert len(outputs) == len(ways) * len(work), outputs
    return outputs


TO_OTHERS = pytest.mark.parametrize(
    "target", [{"agent": "crab"}, {"system_prompt": "you may"}, {}], ids=["agent", "made", "worker"]
)


@pytest.mark.req("trust.delegates.tools")
@TO_OTHERS
async def test_roots_and_a_missing_shell_apply_to_delegates(
    tmp_path: Path, target: dict[str, str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("outside-word")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "hard").hardlink_to(tmp_path / "secret")
    confined = f'{PROMPT}[hooks.bash]\ndisabled = true\n[hooks.files]\nroots = ["{root}"]\n'
    agents = {"crab": PROMPT, "guarded": confined}
    async with serve_agents(tmp_path, agents) as daemon, daemon.client() as client:
        paths = [
            str(tmp_path / "secret"),
            "link",
            "hard",
            "../secret",
            f"{daemon.home}/config.toml",
        ]
        work = [("read", {"path": path}) for path in paths]
        work.append(("bash", {"command": f"cat {tmp_path}/secret"}))
        outputs = await run_all_ways(daemon, client, "guarded", work, root, **target)
        starts = {text.split(":")[0] for text in outputs}
        assert starts == {"permission denied", "tool not available"}, outputs
        assert "outside-word" not in json.dumps(daemon.model.requests)


@pytest.mark.req("trust.delegates.tools")
@TO_OTHERS
async def test_a_delegate_has_no_tool_that_its_caller_lacks(
    tmp_path: Path, target: dict[str, str]
) -> None:
    agents = {"crab": PROMPT, "front": f'{PROMPT}tools = ["delegate"]\n'}
    work: ToolCalls = [
        ("bash", {"command": "touch ran"}),
        ("read", {"path": "f"}),
        ("search_sessions", {"query": "x"}),
    ]
    async with serve_agents(tmp_path, agents) as daemon, daemon.client() as client:
        outputs = await run_all_ways(daemon, client, "front", work, tmp_path, **target)
        assert {text.split(":")[0] for text in outputs} == {"tool not available"}
        assert not (tmp_path / "ran").exists()


@pytest.mark.req("trust.delegates.rules")
@TO_OTHERS
async def test_deny_lists_and_rules_apply_to_delegates(
    tmp_path: Path, target: dict[str, str]
) -> None:
    strict = (
        f'{PROMPT}[permissions]\ndeny = ["edit(f)", "bash(rm:*)", "read(g)"]\n'
        '[hooks.bash]\ndeny = ["touch"]\n'
    )
    free = f'{PROMPT}[permissions]\nallow = ["bash", "edit", "read"]\n'
    for name in "fg":
        (tmp_path / name).write_text("old")
    work: ToolCalls = [
        ("bash", {"command": "touch ran"}),
        ("bash", {"command": "env -i rm f; true"}),
        ("edit", {"path": "f", "old_string": "old", "new_string": "new"}),
        ("read", {"path": "./g"}),
    ]
    async with (
        serve_agents(tmp_path, {"crab": free, "strict": strict}) as daemon,
        daemon.client() as c,
    ):
        outputs = await run_all_ways(daemon, c, "strict", work, tmp_path, **target)
        assert {text.split(":")[0] for text in outputs} == {"permission denied"}, outputs
        assert not (tmp_path / "ran").exists()
        assert (tmp_path / "f").read_text() == "old"


@pytest.mark.req("trust.delegates.rules")
@TO_OTHERS
async def test_delegates_ask_for_approval_like_their_caller(
    tmp_path: Path, target: dict[str, str]
) -> None:
    agents = {
        "crab": f'{PROMPT}[permissions]\nallow = ["bash"]\n',
        "careful": f'{PROMPT}approve = ["bash"]\n',
    }
    work: ToolCalls = [("bash", {"command": "touch ran"})]
    async with (
        serve_agents(tmp_path, agents) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as follower,
    ):
        for number, step in enumerate(list_all_ways(work, **target), start=1):
            script = script_tool_calls(step)
            running = asyncio.ensure_future(
                collect_events(client.stream("careful", script, cwd=str(tmp_path)))
            )

            def questions() -> list[wire.AgentEventMsg]:
                return [event for event in follower.events if event.kind == wire.ASK_USER]

            await wait_until(lambda: len(questions()) == number)  # noqa: B023 - awaited here
            event = questions()[-1]
            assert "touch ran" in event.ask.questions[0].question
            assert event.parent.run_id, "a delegate asks"
            reply = client.reply_to_ask(
                event.agent, "Deny", sender=event.sender, ask_id=event.ask.ask_id
            )
            await wait_with_timeout(reply)
            await wait_with_timeout(running)
            await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        assert not (tmp_path / "ran").exists()


@pytest.mark.req("trust.approvals.unwatched")
@TO_OTHERS
async def test_a_delegates_call_is_refused_at_once_if_no_client_sees_its_question(
    tmp_path: Path, target: dict[str, str]
) -> None:
    """The caller's stream does not show the question."""
    agents = {"crab": PROMPT, "careful": f'{PROMPT}approve = ["bash"]\n'}
    work: ToolCalls = [("bash", {"command": "touch ran"})]
    async with serve_agents(tmp_path, agents) as daemon, daemon.client() as client:
        outputs = await run_all_ways(daemon, client, "careful", work, tmp_path, **target)
        assert {text.split(",")[0] for text in outputs} == {
            "permission denied: it needs the owner's approval"
        }
        assert not (tmp_path / "ran").exists()


@pytest.mark.req("trust.delegates.strangers")
async def test_a_stranger_starts_workers_only_and_they_have_its_rights(tmp_path: Path) -> None:
    agents = {"crab": PROMPT, "other": PROMPT}
    (tmp_path / "secret").write_text("outside-word")
    work: ToolCalls = [
        ("bash", {"command": "id"}),
        ("read", {"path": str(tmp_path / "secret")}),
        ("read", {"path": "../../config.toml"}),
    ]
    async with serve_agents(tmp_path, agents) as daemon, daemon.client() as client:
        (result,) = await run_tool_calls(
            client, "crab", make_delegate_step(make_task(work, agent="other")), sender="tg:6"
        )
        assert result.output.startswith("permission denied: the sender 'tg:6'")
        for options in ({}, {"agent": "crab"}, {"system_prompt": "s"}, {"agent": "worker"}):
            for step in list_all_ways(work, **options):
                await run_tool_calls(client, "crab", step, sender="tg:6")
        outputs = await collect_tool_outputs(daemon)
        # For a worker, the original agent is another agent: two of five ways are open.
        assert len(outputs) == (3 * 5 + 2) * 3
        assert {text.split(":")[0] for text in outputs} == {"permission denied"}


# ── The sandbox ─────────────────────────────────────────────────────────────────────────────────


def has_sandbox() -> bool:
    if (bwrap := shutil.which("bwrap")) is None:
        return False
    argv = [bwrap, "--ro-bind", "/", "/", "--unshare-net", "--unshare-pid", "--proc", "/proc"]
    return not subprocess.run([*argv, "true"], capture_output=True, check=False).returncode


needs_bwrap = pytest.mark.skipif(not has_sandbox(), reason="bwrap cannot be used here")
BOXED = {"crab": PROMPT, "boxed": f'{PROMPT}[hooks.bash]\nsandbox = "bwrap"\n'}


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("outside")
    (directory / "f").write_text("old")
    return directory


@needs_bwrap
@pytest.mark.req("trust.delegates.sandbox")
@TO_OTHERS
async def test_the_sandbox_applies_to_delegates(
    tmp_path: Path, outside: Path, target: dict[str, str]
) -> None:
    directory = tmp_path / "place"
    (directory / "sub").mkdir(parents=True)
    change = {"path": str(outside / "f"), "old_string": "old", "new_string": "new"}
    work: ToolCalls = [
        ("bash", {"command": f"touch kept; touch {outside}/x || echo refused"}),
        ("read", {"path": change["path"]}),
        ("edit", change),
    ]
    async with serve_agents(tmp_path, BOXED) as daemon, daemon.client() as client:
        for cwd in ({}, {"cwd": "sub"}):
            await run_all_ways_again(daemon, client, work, directory, target | cwd)
        outputs = await collect_tool_outputs(daemon)
        assert sum("refused" in text for text in outputs) == 10
        assert sum(text.startswith("permission denied: ") for text in outputs) == 10
        assert [path.name for path in outside.iterdir()] == ["f"]
        assert (outside / "f").read_text() == "old"
        assert (directory / "sub" / "kept").exists()


async def run_all_ways_again(
    daemon: InProcessDaemon, client: Client, work: ToolCalls, cwd: Path, options: dict[str, str]
) -> None:
    for step in list_all_ways(work, **options):
        await wait_with_timeout(
            collect_events(client.stream("boxed", script_tool_calls(step), cwd=str(cwd)))
        )
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)


@needs_bwrap
@pytest.mark.req("trust.delegates.cwd")
@TO_OTHERS
async def test_a_delegate_works_inside_its_callers_directory(
    tmp_path: Path, outside: Path, target: dict[str, str]
) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    (directory / "link").symlink_to(outside)
    escape: ToolCalls = [("bash", {"command": "touch x"})]
    async with serve_agents(tmp_path, BOXED) as daemon, daemon.client() as client:
        for cwd in (str(outside), "/", "..", "link", f"../../{outside.name}", "link/../.."):
            step = make_delegate_step(make_task(escape, cwd=cwd, **target))
            (result,) = await run_tool_calls(client, "boxed", step, cwd=str(directory))
            assert result.output.startswith("permission denied: cwd"), (cwd, result.output)
        assert await collect_tool_outputs(daemon) == []
        assert not (outside / "x").exists()


@needs_bwrap
@pytest.mark.req("trust.delegates.cwd")
@TO_OTHERS
async def test_a_directory_replaced_by_a_link_does_not_let_a_delegate_out(
    tmp_path: Path, outside: Path, target: dict[str, str]
) -> None:
    """The caller can write its directory, so it can replace the delegate's by a link."""
    directory = tmp_path / "place"
    (directory / "sub").mkdir(parents=True)
    change = {"path": "f", "old_string": "old", "new_string": "new"}
    escape = [
        [("bash", {"command": "touch x; touch sub/x; echo >> f"}), ("read", {"path": "f"})],
        [("edit", change), ("edit", {**change, "path": str(outside / "f")})],
    ]
    swap = ("bash", {"command": f"rmdir sub && ln -s {outside} sub"})
    async with serve_agents(tmp_path, BOXED) as daemon, daemon.client() as client:
        waiting = {"message": "!wait\n" + script_tool_calls(*escape), "cwd": "sub", **target}
        stream = client.stream(
            "boxed", script_tool_calls([*make_delegate_step(waiting), swap]), cwd=str(directory)
        )
        assert '"exit_code":0' in (await wait_for_event(stream, wire.ToolResultEvent)).output
        await daemon.model.until_waiting()
        daemon.model.release()
        await collect_events(stream)
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        assert (directory / "sub").is_symlink()
        assert [path.name for path in outside.iterdir()] == ["f"]
        assert (outside / "f").read_text() == "old"


# ── Trees of runs ───────────────────────────────────────────────────────────────────────────────


def make_delegation_bomb(
    depth: int, width: int, *, background: bool = False, leaf: str = "!say boom"
) -> str:
    """A script that delegates to `width` runs, which do the same, `depth` levels deep."""
    script = leaf
    for _ in range(depth):
        script = script_tool_calls(
            make_delegate_step(*[{"message": script}] * width, background=background)
        )
    return script


@pytest.mark.clock
@pytest.mark.req("trust.tree.runs")
@pytest.mark.parametrize("background", [False, True])
async def test_a_delegation_bomb_stops_at_its_limit_without_delaying_others(
    tmp_path: Path, background: bool
) -> None:
    async with serve_agents(tmp_path, {"crab": PROMPT}) as daemon, daemon.client() as client:
        script = make_delegation_bomb(3, 16, background=background)
        running = asyncio.ensure_future(collect_events(client.stream("crab", script)))
        pings = 0
        # The model and the client are in this process too, so their time is included.
        async with daemon.client() as other, measure_loop_latency() as late:
            while not running.done() or daemon.daemon.runtime.running_count:
                await wait_with_timeout(other.ping())
                pings += 1
                await asyncio.sleep(0.001)
        await running
        assert daemon.model.request_count <= 3 * 64
        sentence = "this turn and the tasks it delegated started 64 runs, the most one turn may"
        assert sentence in json.dumps(daemon.model.requests)
        assert "raise tree_runs in [limits] of config.toml" in json.dumps(daemon.model.requests)
        assert pings > 10
        assert sorted(late)[int(len(late) * 0.99)] < 0.05, sorted(late)[-5:]


@pytest.mark.req("trust.tree.kill")
async def test_after_a_kill_no_descendant_asks_a_model_again(tmp_path: Path) -> None:
    async with serve_agents(tmp_path, {"crab": PROMPT}) as daemon, daemon.client() as client:
        busy = "\n!then\n".join(['!chunks 5 100\n!tool set_title {"title": "t"}'] * 10)
        script = make_delegation_bomb(2, 4, background=True, leaf=busy)
        # The caller's turn ends, but its tasks go on.
        await wait_with_timeout(collect_events(client.stream("crab", script)))
        running = asyncio.ensure_future(
            collect_events(client.stream("crab", make_delegation_bomb(2, 4, leaf=busy)))
        )
        await wait_until(lambda: daemon.daemon.runtime.running_count >= 20)
        assert await client.kill("crab")
        await wait_with_timeout(running)
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        await asyncio.sleep(0.05)  # for requests that were on their way
        request_count = daemon.model.request_count
        assert request_count < 100
        await asyncio.sleep(0.3)  # time enough for hundreds of requests
        assert daemon.model.request_count == request_count
        assert not daemon.model.statistics()["answering"]


@pytest.mark.req("trust.tree.kill")
async def test_a_kill_ends_background_tasks(tmp_path: Path) -> None:
    """The turn that started them is over, and no other turn runs."""
    async with serve_agents(tmp_path, {"crab": PROMPT}) as daemon, daemon.client() as client:
        await wait_with_timeout(
            client.send(
                "crab", make_delegation_bomb(2, 3, background=True, leaf="!wait\n!say late")
            )
        )
        await daemon.model.until_waiting(9)
        assert await client.kill("crab")
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        await daemon.model.until_hung_up(9)
        assert daemon.model.request_count == daemon.model.statistics()["asked"]


@pytest.mark.req("trust.tree.calls")
async def test_a_tree_makes_a_bounded_number_of_model_calls(tmp_path: Path) -> None:
    limits = RuntimeLimits(tree_model_calls=7)
    async with (
        serve_agents(tmp_path, {"crab": PROMPT}, limits=limits) as daemon,
        daemon.client() as client,
    ):
        events = await collect_events(client.stream("crab", make_delegation_bomb(2, 4)))
        assert daemon.model.request_count == 7
        error = get_stream_end(events).error
        assert error.startswith("this turn and the tasks it delegated made 7 model calls")
        assert "tree_model_calls in [limits]" in error
        # The next turn starts counting at zero.
        assert not get_stream_end(await collect_events(client.stream("crab", "!say again"))).error


@pytest.mark.req("trust.tree.tokens")
async def test_a_tree_uses_a_bounded_number_of_tokens(tmp_path: Path) -> None:
    limits = RuntimeLimits(tree_tokens=1000)
    async with (
        serve_agents(tmp_path, {"crab": PROMPT}, limits=limits) as daemon,
        daemon.client() as client,
    ):
        script = make_delegation_bomb(1, 4, leaf="!usage 200 100\n!say used")
        events = await collect_events(client.stream("crab", script))
        error = get_stream_end(events).error
        assert error.startswith("this turn and the tasks it delegated used 12")
        assert "tree_tokens in [limits]" in error
        assert not get_stream_end(await collect_events(client.stream("crab", "!say again"))).error
