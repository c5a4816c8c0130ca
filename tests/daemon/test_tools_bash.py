"""The bash tool through the socket: its results, and that none of its processes survive."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from crabtalk.client import Client
from crabtalk.hooks.bash import MAX_RESULT_BYTES
from crabtalk.protocol import wire
from crabtalk.runtime import RuntimeLimits
from tests.daemon.in_process_daemon import (
    PATIENCE,
    InProcessDaemon,
    collect_events,
    get_stream_end,
    list_request_messages,
    read_conversation,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
    select_tool_results,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)

# The hook's own tests cover starting and ending a shell on both event loops.
pytestmark = pytest.mark.one_loop

CRAB = 'prompt = "You are crab."\n'
NOTHING = {"stdout": "", "stderr": "", "exit_code": -1}


async def run_bash(
    client: Client, command: str, *, sender: str = "", cwd: str = "", **more: Any
) -> str:
    """The output of one successful call."""
    calls = [("bash", {"command": command, **more})]
    (result,) = await run_tool_calls(client, "crab", calls, sender=sender, cwd=cwd)
    assert not result.is_error, result.output
    return result.output


async def run_failing_bash(client: Client, arguments: dict[str, Any] | str, **options: Any) -> str:
    """The output of one failed call."""
    (result,) = await run_tool_calls(client, "crab", [("bash", arguments)], **options)
    assert result.is_error, result.output
    return result.output


def with_bash(settings: str) -> dict[str, str]:
    return {"crab": f"{CRAB}[hooks.bash]\n{settings}\n"}


# ── Results ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.result")
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("echo out; echo err >&2", {"stdout": "out\n", "stderr": "err\n", "exit_code": 0}),
        ("echo out; exit 7", {"stdout": "out\n", "stderr": "", "exit_code": 7}),
        ("no-such-program 2>/dev/null", {"stdout": "", "stderr": "", "exit_code": 127}),
        ("kill -9 $$", NOTHING),
        (r"printf 'a\xff\x00b\xc3'", {"stdout": "a�\0b�", "stderr": "", "exit_code": 0}),
    ],
    ids=["works", "fails", "unknown", "signalled", "binary"],
)
async def test_the_model_gets_both_streams_and_the_exit_code(
    tmp_path: Path, command: str, answer: dict[str, Any]
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command)) == answer
        role, text = list_request_messages(daemon.model.requests[-1])[-1]
        assert (role, json.loads(text)) == ("tool", answer)


@pytest.mark.req("bash.process")
async def test_a_command_has_the_runs_directory_and_the_calls_environment(tmp_path: Path) -> None:
    directory = tmp_path / "a place"
    directory.mkdir()
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        answer = await run_bash(
            client, 'pwd; echo "$X-$Y"', env={"X": "a b", "Y": "'"}, cwd=str(directory)
        )
        assert json.loads(answer)["stdout"] == f"{directory}\na b-'\n"
        assert json.loads(await run_bash(client, 'pwd; echo "$X"'))["stdout"] == f"{Path.cwd()}\n\n"


@pytest.fixture
def _stdin_that_never_ends() -> Iterator[None]:
    """Give the daemon a stdin without an end, as on a terminal."""
    before, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    yield
    os.dup2(before, 0)
    for descriptor in (before, read, write):
        os.close(descriptor)


@pytest.mark.req("bash.process")
@pytest.mark.usefixtures("_stdin_that_never_ends")
async def test_a_command_has_an_empty_stdin_even_if_the_daemon_has_none(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, "cat; echo over", timeout=5))["stdout"] == "over\n"


@pytest.mark.req("bash.output_bounded")
async def test_a_hundred_megabytes_cost_the_daemon_and_the_model_a_few_kilobytes(
    tmp_path: Path,
) -> None:
    command = "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await run_bash(client, "true")
        before = get_peak_memory(reset=True)
        text = await run_bash(client, command)
        assert get_peak_memory() - before < 32 * 1024, "kilobytes"
        assert len(text.encode()) <= MAX_RESULT_BYTES < RuntimeLimits().tool_output
        answer = json.loads(text)
        assert answer["stdout"].startswith("first\nxxx")
        assert answer["stdout"].endswith("xxx\nlast\n")
        missing = answer["cut"]["stdout"]
        output = answer["stdout"].replace(f"\n… {missing} bytes left out …\n", "")
        assert len(output) + missing == 100_000_000 + len("first\n\nlast\n")
        assert list_request_messages(daemon.model.requests[-1])[-1] == ("tool", text)


def get_peak_memory(*, reset: bool = False) -> int:
    """The peak memory of this process since the last reset, in kilobytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


# ── Errors ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.spawn_failure")
@pytest.mark.parametrize(
    ("command", "reason"),
    [("true #" + "x" * 200_000, "Argument list too long"), ("true \0", "null byte")],
    ids=["too-long", "nul"],
)
async def test_a_command_that_cannot_be_started_is_an_error_with_the_same_json(
    tmp_path: Path, command: str, reason: str
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        sentence, document = (await run_failing_bash(client, {"command": command})).split("\n")
        assert sentence.startswith("bash failed: it could not be started: ")
        assert reason in sentence
        assert json.loads(document) == NOTHING


@pytest.mark.req("bash.spawn_failure")
async def test_a_directory_removed_during_the_run_is_an_error_of_the_next_call(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "place"
    directory.mkdir()
    steps = [[("bash", {"command": command})] for command in ('rmdir "$PWD"', "echo ran")]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        first, second = await run_tool_calls(client, "crab", *steps, cwd=str(directory))
        assert not first.is_error
        sentence, document = second.output.split("\n")
        assert second.is_error
        assert sentence.startswith(f"bash failed: the working directory {directory} is not there")
        assert json.loads(document) == NOTHING


@pytest.mark.req("bash.timeout")
@pytest.mark.parametrize("settings", ["timeout = 0.3", ""])
async def test_a_timeout_is_an_error_with_the_output_so_far(tmp_path: Path, settings: str) -> None:
    arguments = {"command": "echo early; sleep 1000"} | ({} if settings else {"timeout": 0.3})
    agents = with_bash(settings)
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        sentence, document = (await run_failing_bash(client, arguments)).split("\n")
        assert sentence.startswith("bash failed: it took longer than 0.3 s")
        assert json.loads(document) == {"stdout": "early\n", "stderr": "", "exit_code": -1}


@pytest.mark.req("bash.deny")
async def test_a_denied_command_is_not_run_and_the_rule_is_named(tmp_path: Path) -> None:
    agents = with_bash('deny = ["rm -rf", "touch"]')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        for command in (f"touch {tmp_path}/x", f"true && sh -c 'touch {tmp_path}/x'"):
            output = await run_failing_bash(client, {"command": command})
            assert output == "permission denied: the agent's file denies 'touch'"
        assert not (tmp_path / "x").exists()
        assert json.loads(await run_bash(client, "echo touch"))["stdout"] == "touch\n"
        system = list_request_messages(daemon.model.requests[0])[0][1]
        assert "<bash-policy>denied: rm -rf, touch</bash-policy>" in system


@pytest.mark.req("bash.disabled")
async def test_a_disabled_bash_is_neither_offered_nor_run(tmp_path: Path) -> None:
    agents = with_bash("disabled = true")
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        output = await run_failing_bash(client, {"command": f"touch {tmp_path}/x"})
        assert output == "tool not available: bash"
        assert not (tmp_path / "x").exists()
        offered = [tool["function"]["name"] for tool in daemon.model.requests[0]["tools"]]
        assert "read" in offered
        assert "bash" not in offered


@pytest.mark.req("hooks.tool.arguments")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": 1},
        {"command": ["ls"]},
        {"command": "true", "env": {"X": 1}},
        {"command": "true", "timeout": -1},
        '"ls"',
        '{"command": "ls"',
    ],
)
async def test_invalid_arguments_are_reported(
    tmp_path: Path, arguments: dict[str, Any] | str
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert (await run_failing_bash(client, arguments)).startswith("invalid arguments: ")


@pytest.mark.req("bash.senders")
async def test_an_external_sender_is_served_only_if_the_agents_file_allows_it(
    tmp_path: Path,
) -> None:
    agents = with_bash('allow_senders = ["tg:1", "event:*"]')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        for sender in ("tg:12", "wechat:1", "delegate:1", "anna", "cron"):
            output = await run_failing_bash(
                client, {"command": f"touch {tmp_path}/x"}, sender=sender
            )
            assert output.startswith(f"permission denied: bash is not for the sender {sender!r}; ")
        assert not (tmp_path / "x").exists()
        for sender in ("tg:1", "event:backup", "user~anna"):
            assert (
                json.loads(await run_bash(client, "echo ran", sender=sender))["stdout"] == "ran\n"
            )


@pytest.mark.req("bash.senders.delegate")
@pytest.mark.parametrize(("sender", "is_served"), [("user", True), ("tg:1", False)])
async def test_delegating_does_not_bypass_the_sender_restriction(
    tmp_path: Path, sender: str, is_served: bool
) -> None:
    task = {"message": script_tool_calls([("bash", {"command": f"touch {tmp_path}/x"})])}
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        calls = [("delegate", {"tasks": [task]})]
        await run_tool_calls(client, "crab", calls, sender=sender)
        assert (tmp_path / "x").exists() == is_served
        results = [
            text
            for request in daemon.model.requests
            for role, text in list_request_messages(request)
            if role == "tool" and "sender 'tg:1'" in text
        ]
        assert bool(results) != is_served


# ── Process cleanup ─────────────────────────────────────────────────────────────────────────────

# Fifty processes in the background, and a grandchild that ignores TERM. Each writes its pid.
STUBBORN = "trap '' TERM; echo $BASHPID >> {pids}; while :; do sleep 1000; done"
CROWD = (
    "for i in $(seq 50); do (echo $BASHPID >> {pids}; exec sleep 1000) & done; "
    f'(bash -c "{STUBBORN.replace("$", chr(92) + "$")}") & wait'
)


class ProcessCrowd:
    """The processes of a command, which write their pids into a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def pids(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []

    @property
    def alive(self) -> list[str]:
        return [pid for pid in self.pids if is_alive(pid)]

    async def wait_for_count(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.pids) < count:
                await asyncio.sleep(0.01)


def is_alive(pid: str) -> bool:
    """Zombies do not count as alive."""
    try:
        status = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[ProcessCrowd]:
    crowd = ProcessCrowd(tmp_path / "pids")
    yield crowd
    for pid in crowd.alive:
        subprocess.run(["kill", "-9", pid], check=False)


def script_crowd(crowd: ProcessCrowd, **more: Any) -> str:
    """A model script that starts the crowd."""
    return script_tool_calls([("bash", {"command": CROWD.format(pids=crowd.path), **more})])


@pytest.mark.req("bash.group_killed")
async def test_no_process_is_left_after_a_killed_run(tmp_path: Path, crowd: ProcessCrowd) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        running = client.stream("crab", script_crowd(crowd))
        await wait_for_event(running, wire.ToolStartEvent)
        await crowd.wait_for_count(51)
        assert len(crowd.alive) == 51
        assert await client.kill("crab")
        assert (
            get_stream_end(await collect_events(running)).stop_reason == wire.STOP_REASON_CANCELLED
        )
        assert crowd.alive == []
        assert (await read_conversation(client, "crab"))[-1][1].startswith("interrupted: ")


@pytest.mark.req("bash.group_killed")
async def test_no_process_is_left_when_a_timeout_is_reported(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        running = client.stream("crab", script_crowd(crowd, timeout=1))
        result = await wait_for_event(running, wire.ToolResultEvent)
        assert crowd.alive == []
        assert result.output.startswith("bash failed: it took longer than 1 s")
        assert len(crowd.pids) == 51, "it had the time to start them"
        await collect_events(running)


@pytest.mark.req("leave.cancels")
async def test_no_process_is_left_after_the_client_disconnects(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        running = client.stream("crab", script_crowd(crowd))
        await wait_for_event(running, wire.ToolStartEvent)
        await crowd.wait_for_count(51)
        await running.aclose()
        await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
        assert crowd.alive == []


@pytest.mark.req("bash.no_survivors")
async def test_background_processes_end_with_the_command(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
    command = CROWD.format(pids=crowd.path).removesuffix("wait")
    command += f"until [ $(wc -l < {crowd.path}) = 51 ]; do sleep 0.01; done; echo done"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command))["stdout"] == "done\n"
        assert (len(crowd.pids), crowd.alive) == (51, [])


@pytest.mark.req("bash.no_survivors")
async def test_a_process_that_leaves_the_session_does_not_delay_the_result(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
    """Only a sandbox can end such processes."""
    command = f"setsid bash -c 'echo $$ > {crowd.path}; exec sleep 1000' & echo done; "
    command += f"until [ -s {crowd.path} ]; do sleep 0.01; done"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command))["stdout"] == "done\n"


# ── Sandbox ─────────────────────────────────────────────────────────────────────────────────────


def has_sandbox() -> bool:
    if (bwrap := shutil.which("bwrap")) is None:
        return False
    argv = [bwrap, "--ro-bind", "/", "/", "--unshare-net", "--unshare-pid", "--proc", "/proc"]
    return not subprocess.run([*argv, "true"], capture_output=True, check=False).returncode


needs_bwrap = pytest.mark.skipif(not has_sandbox(), reason="bwrap cannot be used here")


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_the_sandbox_allows_writes_only_in_the_runs_directory_and_hides_the_daemon(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory, outside = tmp_path / "place", tmp_path_factory.mktemp("outside")
    directory.mkdir()
    agents = with_bash('sandbox = "bwrap"')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        command = f"echo in > kept; touch {outside}/x || echo refused; ls {daemon.home}/run"
        answer = json.loads(await run_bash(client, command, cwd=str(directory)))
        assert (answer["stdout"], (directory / "kept").read_text()) == ("refused\n", "in\n")
        assert not (outside / "x").exists()


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_the_sandbox_of_a_killed_run_also_ends_processes_that_left_the_session(
    tmp_path: Path,
) -> None:
    mark = f"{4000 + id(tmp_path) % 1000}.{id(tmp_path)}"
    started = tmp_path / "started"
    command = f"setsid sleep {mark} & setsid bash -c 'touch {started}; exec sleep {mark}' & wait"
    agents = with_bash('sandbox = "bwrap"')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        script = script_tool_calls([("bash", {"command": command})])
        running = client.stream("crab", script, cwd=str(tmp_path))
        await wait_for_event(running, wire.ToolStartEvent)
        async with asyncio.timeout(PATIENCE):
            while not (started.exists() and len(find_sleepers(mark)) >= 2):
                await asyncio.sleep(0.01)
        await client.kill("crab")
        await collect_events(running)
        async with asyncio.timeout(PATIENCE):  # the kernel ends the processes of the namespace
            while find_sleepers(mark):
                await asyncio.sleep(0.01)


def find_sleepers(mark: str) -> list[str]:
    """The `sleep` processes with exactly this duration."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                pids.append(path.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pids


@pytest.mark.req("bash.sandbox")
async def test_without_bwrap_nothing_is_run_and_the_error_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = with_bash('sandbox = "bwrap"')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        monkeypatch.setenv("PATH", str(tmp_path))
        output = await run_failing_bash(client, {"command": f"echo > {tmp_path}/x"})
        assert output.startswith("bash failed: ")
        assert "install the package bubblewrap" in output
        assert not (tmp_path / "x").exists()


# ── Concurrency ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.no_blocking")
async def test_the_calls_of_a_step_run_concurrently(tmp_path: Path) -> None:
    """Each waits for the others, so in sequence they would never end."""
    command = f"touch {tmp_path}/at-$N; until [ $(ls {tmp_path}/at-* | wc -l) = 8 ]; do :; done"
    calls = [("bash", {"command": command, "env": {"N": str(n)}, "timeout": 15}) for n in range(8)]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await run_tool_calls(client, "crab", calls)
        assert [json.loads(result.output)["exit_code"] for result in results] == [0] * 8


@pytest.mark.req("stream.results")
@pytest.mark.req("tools.too_many")
async def test_results_are_stored_in_call_order_and_calls_beyond_the_limit_are_refused(
    tmp_path: Path,
) -> None:
    """Calls of the first half wait until a result of the second half was streamed."""
    command = f"until [ $N -ge 32 ] || [ -e {tmp_path}/reported ]; do sleep 0.02; done; "
    command += f"echo $N; touch {tmp_path}/$N"
    calls = [("bash", {"command": command, "env": {"N": str(n)}}) for n in range(70)]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        events: list[Any] = []
        executed: list[int] = []
        async with (
            asyncio.timeout(PATIENCE),
            aclosing(client.stream("crab", script_tool_calls(calls))) as stream,
        ):
            async for event in stream:
                events.append(event)
                if isinstance(event, wire.ToolResultEvent) and not event.is_error:
                    executed.append(int(json.loads(event.output)["stdout"]))
                    (tmp_path / "reported").touch()
        assert executed[0] >= 32
        assert sorted(executed) == list(range(64))
        stored = [text for role, text in await read_conversation(client, "crab") if role == "tool"]
        assert [json.loads(text)["stdout"] for text in stored[:64]] == [f"{n}\n" for n in range(64)]
        refused = [result for result in select_tool_results(events) if result.is_error]
        assert [result.output for result in refused] == stored[64:]
        assert len(refused) == 6
        for text in stored[64:]:
            assert text.startswith("not carried out: at most 64 calls in one step; ")
        assert not (tmp_path / "64").exists()


@pytest.mark.req("control.never_waits")
async def test_the_daemon_answers_other_requests_while_commands_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        script = script_tool_calls(
            [("bash", {"command": "yes | head -c 50000000"}) for _ in range(4)]
        )
        running = asyncio.ensure_future(collect_events(client.stream("crab", script)))
        answered = await count_pings(daemon, running)
        assert [result.is_error for result in select_tool_results(await running)] == [False] * 4
        assert answered > 10


async def count_pings(daemon: InProcessDaemon, task: asyncio.Future[Any]) -> int:
    """Send pings one after the other until the task is done. Returns their number."""
    count = 0
    async with daemon.client() as client:
        while not task.done():
            await wait_with_timeout(client.ping())
            count += 1
    return count
