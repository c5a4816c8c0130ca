"""The bash tool, called by an agent: results, permissions and the sandbox."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crabtalk.hooks import AskRegistry, CompositeHook, process_group
from crabtalk.hooks.bash import (
    DEFAULT_TIMEOUT,
    MAX_RESULT_BYTES,
    MAX_TIMEOUT,
    BashHook,
    BashSettings,
)
from crabtalk.hooks.process_group import CommandOutcome
from crabtalk.model import ToolCall
from crabtalk.runtime import ParentRun, Run, Runtime, RuntimeLimits, ToolResult
from crabtalk.storage import Agent, AgentError, Pair
from tests.runtime.runtime_world import RuntimeWorld
from tests.runtime.scripted_provider import ScriptedProvider, answer_with_calls

PATIENCE = 20


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[RuntimeWorld]:
    world = RuntimeWorld(tmp_path)
    yield world
    await world.close()


def build_agent(**settings: Any) -> Agent:
    return Agent("crab", "You are crab.", model="m", hooks={"bash": settings})


def build_runtime(
    world: RuntimeWorld, arguments: dict[str, Any], *, hook: BashHook | None = None, **settings: Any
) -> Runtime:
    """Build an engine whose agent has these settings and calls bash once."""
    model = ScriptedProvider(
        answer_with_calls(ToolCall("c", "bash", json.dumps(arguments))), "Done."
    )
    hooks = CompositeHook({"bash": hook or BashHook()}, AskRegistry())
    return world.make_runtime(model, agents=[build_agent(**settings)], hook=hooks)


async def read_result(run: Run) -> ToolResult:
    async with asyncio.timeout(PATIENCE):
        found = [event async for event in run.events() if isinstance(event, ToolResult)]
    assert len(found) == 1
    return found[0]


async def run_bash(world: RuntimeWorld, command: str, **settings: Any) -> dict[str, Any]:
    """Return the output of a call that succeeded."""
    output = await read_result(
        build_runtime(world, {"command": command}, **settings).start("crab", "Go!")
    )
    assert not output.is_error, output.output
    found: dict[str, Any] = json.loads(output.output)
    return found


async def run_failing_bash(
    world: RuntimeWorld, command: str, *, cwd: Path | None = None, **settings: Any
) -> str:
    """Return the output of a call that failed."""
    runtime = build_runtime(world, {"command": command}, **settings)
    output = await read_result(runtime.start("crab", "Go!", cwd=cwd))
    assert output.is_error, output.output
    return output.output


# ── Results ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.result")
async def test_an_exit_code_above_zero_is_no_error(world: RuntimeWorld) -> None:
    assert await run_bash(world, "echo out; echo err >&2; exit 7") == {
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 7,
    }


@pytest.mark.req("bash.process")
async def test_a_command_runs_in_the_runs_directory_with_the_calls_variables(
    world: RuntimeWorld,
) -> None:
    (world.cwd / "sub").mkdir()
    runtime = build_runtime(world, {"command": "pwd; echo $X", "env": {"X": "y"}})
    output = await read_result(runtime.start("crab", "Go!", cwd=world.cwd / "sub"))
    assert json.loads(output.output)["stdout"] == f"{world.cwd}/sub\ny\n"


@pytest.mark.req("bash.spawn_failure")
async def test_a_missing_directory_is_an_error_with_the_same_json(world: RuntimeWorld) -> None:
    sentence, document = (await run_failing_bash(world, "ls", cwd=world.cwd / "gone")).split("\n")
    assert sentence.startswith("bash failed: the working directory ")
    assert json.loads(document) == {"stdout": "", "stderr": "", "exit_code": -1}


@pytest.mark.req("bash.timeout")
async def test_a_timeout_is_an_error_with_the_output_so_far(world: RuntimeWorld) -> None:
    runtime = build_runtime(world, {"command": "echo early; sleep 1000", "timeout": 0.5})
    output = await read_result(runtime.start("crab", "Go!"))
    sentence, document = output.output.split("\n")
    assert output.is_error
    assert sentence.startswith("bash failed: it took longer than 0.5 s")
    assert json.loads(document) == {"stdout": "early\n", "stderr": "", "exit_code": -1}


@pytest.mark.req("bash.timeout")
async def test_an_agent_can_have_its_own_timeout(world: RuntimeWorld) -> None:
    assert "longer than 0.25 s" in await run_failing_bash(world, "sleep 1000", timeout=0.25)


@pytest.mark.req("bash.timeout")
async def test_a_command_runs_at_most_one_hour(
    world: RuntimeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    async def run(*args: Any, seconds: float, **rest: Any) -> CommandOutcome:
        given.append(seconds)
        return await real(*args, seconds=seconds, **rest)

    real = process_group.run_command
    monkeypatch.setattr("crabtalk.hooks.process_group.run_command", run)
    for timeout in (None, 5, 1e9):
        runtime = build_runtime(world, {"command": "true", "timeout": timeout})
        assert not (await read_result(runtime.start("crab", "Go!"))).is_error
    assert given == [DEFAULT_TIMEOUT, 5, MAX_TIMEOUT] == [120, 5, 3600]


@pytest.mark.req("bash.output_bounded")
@pytest.mark.parametrize(
    "command",
    [
        "yes | head -c 10000000",
        "yes | head -c 10000000; yes | head -c 10000000 >&2",
        "head -c 10000000 /dev/zero",
        "head -c 10000000 /dev/urandom | tee /dev/stderr",
        "yes '\"' | head -c 10000000",
    ],
)
async def test_the_json_is_complete_for_any_length_of_output(
    command: str, world: RuntimeWorld
) -> None:
    found = await run_bash(world, f"echo first; {command}; echo; echo last")
    assert found["stdout"].startswith("first\n")
    assert found["stdout"].endswith("\nlast\n")
    assert 9_900_000 < found["cut"]["stdout"] < 10_000_012
    assert f"\n… {found['cut']['stdout']} bytes left out …\n" in found["stdout"]
    assert ("stderr" in found["cut"]) == bool(found["stderr"])
    assert found["exit_code"] == 0


def test_a_result_with_an_error_message_stays_below_the_engines_limit() -> None:
    assert RuntimeLimits().tool_output - MAX_RESULT_BYTES > 1024


@pytest.mark.parametrize(
    "arguments", [{}, {"command": 1}, {"command": "true", "timeout": 0}, {"command": "x", "env": 1}]
)
async def test_invalid_arguments_are_reported(
    arguments: dict[str, Any], world: RuntimeWorld
) -> None:
    output = await read_result(build_runtime(world, arguments).start("crab", "Go!"))
    assert output.is_error
    assert output.output.startswith("invalid arguments: ")


@pytest.mark.req("bash.group_killed")
async def test_a_killed_run_ends_after_its_processes(world: RuntimeWorld) -> None:
    pids = world.cwd / "pids"
    command = f"for i in $(seq 50); do (echo $BASHPID >> {pids}; exec sleep 1000) & done; wait"
    runtime = build_runtime(world, {"command": command})
    run = runtime.start("crab", "Go!")
    async with asyncio.timeout(PATIENCE):
        while not pids.exists() or len(pids.read_text().split()) < 50:
            await asyncio.sleep(0.01)
        assert await runtime.kill("crab")
        await run.wait()
    for pid in pids.read_text().split():
        stat = Path("/proc", pid, "stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


# ── Permissions ──────────────────────────────────────────────────────────────────────────────────


async def run_as_sender(
    world: RuntimeWorld, sender: str, parent: ParentRun | None = None, **settings: Any
) -> str:
    runtime = build_runtime(world, {"command": "echo ran"}, **settings)
    return (await read_result(runtime.start("crab", "Go!", sender=sender, parent=parent))).output


@pytest.mark.req("bash.senders")
@pytest.mark.parametrize(
    "sender",
    ["tg:123", "event:backup", "delegate:1", ":", "anna", "USER", "cron", "tg：666", "user "],
)
async def test_a_sender_from_elsewhere_is_refused(sender: str, world: RuntimeWorld) -> None:
    output = await run_as_sender(world, sender, allow_senders=["tg:1", "tg:1234", "mail:*"])
    assert output.startswith("permission denied: ")
    assert sender in output


@pytest.mark.req("bash.senders")
@pytest.mark.parametrize("sender", ["user", "user~work", "tg:123", "event:backup", "event:"])
async def test_the_owner_and_named_senders_may_use_bash(sender: str, world: RuntimeWorld) -> None:
    assert "ran" in await run_as_sender(world, sender, allow_senders=["tg:123", "event:*"])


@pytest.mark.req("bash.senders.delegate")
@pytest.mark.parametrize(("origin", "is_served"), [("user", True), ("tg:1", False), ("", False)])
async def test_a_delegated_run_is_judged_by_its_origin(
    origin: str, is_served: bool, world: RuntimeWorld
) -> None:
    parent = ParentRun(Pair("crab", "delegate:0"), "run", "call", origin=origin)
    output = await run_as_sender(world, "delegate:1", parent)
    assert output.startswith("permission denied: ") != is_served


@pytest.mark.req("bash.disabled")
async def test_a_disabled_bash_is_neither_offered_nor_executed(world: RuntimeWorld) -> None:
    model = ScriptedProvider(
        answer_with_calls(ToolCall("c", "bash", '{"command": "touch x"}')), "Done."
    )
    runtime = world.make_runtime(model, agents=[build_agent(disabled=True)], hook=BashHook())
    assert (await read_result(runtime.start("crab", "Go!"))).output == "tool not available: bash"
    assert model.requests[0].tools == ()
    assert not (world.cwd / "x").exists()


@pytest.mark.req("bash.deny")
async def test_a_denied_command_is_refused_by_name(world: RuntimeWorld) -> None:
    output = await run_failing_bash(world, "true && touch x", deny=["rm -rf", "touch"])
    assert output == "permission denied: the agent's file denies 'touch'"
    assert not (world.cwd / "x").exists()


@pytest.mark.req("bash.deny.unreadable")
async def test_a_command_that_cannot_be_checked_is_refused(world: RuntimeWorld) -> None:
    output = await run_failing_bash(world, "touch x; echo 'y", deny=["curl"])
    assert output.startswith("permission denied: the command cannot be checked")
    assert not (world.cwd / "x").exists()


@pytest.mark.req("bash.deny.prompt")
def test_denied_commands_are_listed_in_the_prompt() -> None:
    hook = BashHook()
    assert hook.scoped_tools(build_agent()) == (["bash"], None)
    assert hook.scoped_tools(build_agent(deny=["curl", "git push"])) == (
        ["bash"],
        "<bash-policy>denied: curl, git push</bash-policy>",
    )
    assert hook.scoped_tools(build_agent(disabled=True, deny=["curl"])) == ([], None)


@pytest.mark.req("bash.settings")
@pytest.mark.parametrize(
    "settings",
    [
        {"disabled": "yes"},
        {"deny": "curl"},
        {"deny": ["curl | sh"]},
        {"deny": [""]},
        {"sandbox": "docker"},
        {"timeout": 0},
        {"timeout": 3601},
        {"allow_senders": [1]},
    ],
)
def test_invalid_settings_break_the_agent(settings: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match=r"hooks\.bash"):
        BashHook().on_build_agent(build_agent(**settings))


@pytest.mark.req("bash.settings")
async def test_settings_follow_changes_of_the_agent(world: RuntimeWorld) -> None:
    hook = BashHook()
    runtime = build_runtime(world, {"command": "true"}, hook=hook, deny=["true"])
    assert hook.get_settings("crab").deny == ("true",)
    runtime.register(build_agent(timeout=5))
    assert hook.get_settings("crab") == BashSettings(timeout=5)
    assert not (await read_result(runtime.start("crab", "Go!"))).is_error
    runtime.unregister("crab")
    assert hook.get_settings("crab") == hook.get_settings("unknown") == BashSettings()


# ── The sandbox ──────────────────────────────────────────────────────────────────────────────────


def find_sandbox_problem() -> str:
    """Return why there can be no sandbox here; empty if there can."""
    if (bwrap := shutil.which("bwrap")) is None:
        return "bwrap is not installed"
    argv = [
        bwrap,
        "--ro-bind",
        "/",
        "/",
        "--unshare-net",
        "--unshare-pid",
        "--proc",
        "/proc",
        "true",
    ]
    tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


needs_bwrap = pytest.mark.skipif(bool(why := find_sandbox_problem()), reason=why or "-")


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_in_the_sandbox_only_the_working_directory_can_be_written(
    world: RuntimeWorld, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "seen").touch()
    found = await run_bash(
        world,
        f"echo in > kept; touch {outside}/x || echo refused; touch /etc/x || echo refused;"
        "echo > /tmp/mine && cat kept; ls /tmp; echo $$",
        sandbox="bwrap",
    )
    assert found["stdout"].split()[:4] == ["refused", "refused", "in", "mine"]
    assert (world.cwd / "kept").read_text() == "in\n"
    assert not (outside / "x").exists()


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_the_sandbox_has_no_network_and_no_other_processes(world: RuntimeWorld) -> None:
    command = "tail -n +3 /proc/net/dev | cut -d: -f1; ls -d /proc/[0-9]* | wc -l"
    device, processes = (await run_bash(world, command, sandbox="bwrap"))["stdout"].split()
    assert device == "lo"
    assert int(processes) < 10


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_root_has_no_special_rights_in_the_sandbox(world: RuntimeWorld) -> None:
    found = await run_bash(world, "mount -o remount,rw,bind /; touch /etc/x", sandbox="bwrap")
    assert found["exit_code"] != 0
    assert not Path("/etc/x").exists()


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_the_sandbox_hides_directories_with_sockets(world: RuntimeWorld) -> None:
    (world.cwd / "run").mkdir()
    (world.cwd / "run" / "socket").touch()
    hook = BashHook([world.cwd / "run", world.cwd / "absent"])
    assert (await run_bash(world, "ls run", hook=hook, sandbox="bwrap"))["stdout"] == ""


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_at_the_timeout_the_sandbox_ends_even_processes_outside_the_group(
    world: RuntimeWorld,
) -> None:
    mark = f"{4000 + id(world) % 1000}.{id(world)}"
    command = f"setsid sleep {mark} & sleep {mark}"
    assert "longer than 0.5 s" in await run_failing_bash(
        world, command, sandbox="bwrap", timeout=0.5
    )

    def is_running() -> bool:
        return any(
            mark.encode() in read_cmdline(path) for path in Path("/proc").glob("[0-9]*/cmdline")
        )

    async with asyncio.timeout(PATIENCE):
        while is_running():
            await asyncio.sleep(0.01)


def read_cmdline(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.req("bash.sandbox")
async def test_a_missing_sandbox_program_is_an_error(
    world: RuntimeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(world.cwd))
    output = await run_failing_bash(world, "echo ran", sandbox="bwrap")
    assert output.startswith("bash failed: ")
    assert "bubblewrap" in output
    assert 'sandbox = "off"' in output
    assert "ran\\n" not in output


@pytest.mark.req("bash.sandbox")
async def test_a_failing_sandbox_is_an_error(
    world: RuntimeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = world.cwd / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{world.cwd}:/usr/bin:/bin")
    output = await run_failing_bash(world, "echo ran", sandbox="bwrap")
    assert output.startswith("bash failed: the sandbox could not be set up")
    assert "No permissions" in output


@pytest.mark.req("bash.sandbox")
async def test_a_sandbox_for_the_root_directory_is_an_error(world: RuntimeWorld) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    output = await run_failing_bash(world, "echo ran", cwd=Path("/"), sandbox="bwrap")
    assert output.startswith("bash failed: a sandbox that may write / is none")
