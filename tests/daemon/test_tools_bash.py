"""bash through the socket: what an agent is answered, and what is left of its processes."""

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

# How a shell is started and ended is tested on both loops with the hook itself.
pytestmark = pytest.mark.one_loop

CRAB = 'prompt = "You are crab."\n'
NOTHING = {"stdout": "", "stderr": "", "exit_code": -1}


async def run_bash(
    client: Client, command: str, *, sender: str = "", cwd: str = "", **more: Any
) -> str:
    """The answer to one call that worked."""
    calls = [("bash", {"command": command, **more})]
    (result,) = await run_tool_calls(client, "crab", calls, sender=sender, cwd=cwd)
    assert not result.is_error, result.output
    return result.output


async def run_failing_bash(client: Client, arguments: dict[str, Any] | str, **options: Any) -> str:
    """The answer to one that did not."""
    (result,) = await run_tool_calls(client, "crab", [("bash", arguments)], **options)
    assert result.is_error, result.output
    return result.output


def with_bash(settings: str) -> dict[str, str]:
    return {"crab": f"{CRAB}[hooks.bash]\n{settings}\n"}


# ── What a command sees, and what is seen of it ─────────────────────────────────────────────────


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
async def test_the_model_is_shown_both_streams_and_the_exit_code(
    tmp_path: Path, command: str, answer: dict[str, Any]
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command)) == answer
        role, text = list_request_messages(daemon.model.requests[-1])[-1]
        assert (role, json.loads(text)) == ("tool", answer)


@pytest.mark.req("bash.process")
async def test_a_command_has_the_runs_directory_and_the_calls_environment(tmp_path: Path) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        answer = await run_bash(
            client, 'pwd; echo "$X-$Y"', env={"X": "a b", "Y": "'"}, cwd=str(place)
        )
        assert json.loads(answer)["stdout"] == f"{place}\na b-'\n"
        assert json.loads(await run_bash(client, 'pwd; echo "$X"'))["stdout"] == f"{Path.cwd()}\n\n"


@pytest.fixture
def _stdin_that_never_ends() -> Iterator[None]:
    """For the daemon, as when it was started from a terminal."""
    before, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    yield
    os.dup2(before, 0)
    for descriptor in (before, read, write):
        os.close(descriptor)


@pytest.mark.req("bash.process")
@pytest.mark.usefixtures("_stdin_that_never_ends")
async def test_a_command_has_nothing_to_read_whatever_the_daemon_has(tmp_path: Path) -> None:
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
        kept = answer["stdout"].replace(f"\n… {missing} bytes left out …\n", "")
        assert len(kept) + missing == 100_000_000 + len("first\n\nlast\n")
        assert list_request_messages(daemon.model.requests[-1])[-1] == ("tool", text)


def get_peak_memory(*, reset: bool = False) -> int:
    """The most memory this process had, in kilobytes; since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


# ── What it refuses ─────────────────────────────────────────────────────────────────────────────


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
async def test_a_directory_that_goes_away_during_the_run_is_an_error_of_the_next_call(
    tmp_path: Path,
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    steps = [[("bash", {"command": command})] for command in ('rmdir "$PWD"', "echo ran")]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        first, second = await run_tool_calls(client, "crab", *steps, cwd=str(place))
        assert not first.is_error
        sentence, document = second.output.split("\n")
        assert second.is_error
        assert sentence.startswith(f"bash failed: the working directory {place} is not there")
        assert json.loads(document) == NOTHING


@pytest.mark.req("bash.timeout")
@pytest.mark.parametrize("settings", ["timeout = 0.3", ""])
async def test_a_time_out_is_an_error_with_what_was_said_until_then(
    tmp_path: Path, settings: str
) -> None:
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
async def test_a_disabled_bash_is_not_offered_and_not_carried_out(tmp_path: Path) -> None:
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
async def test_arguments_that_do_not_fit_are_said_so(
    tmp_path: Path, arguments: dict[str, Any] | str
) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert (await run_failing_bash(client, arguments)).startswith("invalid arguments: ")


@pytest.mark.req("bash.senders")
async def test_a_sender_from_elsewhere_is_served_only_where_the_agents_file_names_it(
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
async def test_delegating_is_no_way_around_that(
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


# ── Its end ─────────────────────────────────────────────────────────────────────────────────────

# Fifty in the background, and a grandchild that does not listen. Each writes down who it is.
STUBBORN = "trap '' TERM; echo $BASHPID >> {pids}; while :; do sleep 1000; done"
CROWD = (
    "for i in $(seq 50); do (echo $BASHPID >> {pids}; exec sleep 1000) & done; "
    f'(bash -c "{STUBBORN.replace("$", chr(92) + "$")}") & wait'
)


class ProcessCrowd:
    """Processes that were started by a command, and wrote their ids into a file."""

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
    """A corpse that nobody has looked at yet is not."""
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
    """The script of a model that has the crowd started."""
    return script_tool_calls([("bash", {"command": CROWD.format(pids=crowd.path), **more})])


@pytest.mark.req("bash.group_killed")
async def test_when_a_killed_run_is_over_no_process_of_it_is_left(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
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
async def test_when_a_time_out_is_told_no_process_of_the_command_is_left(
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
async def test_when_its_client_leaves_a_command_and_all_it_started_go_too(
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
async def test_what_is_left_in_the_background_ends_with_the_command(
    tmp_path: Path, crowd: ProcessCrowd
) -> None:
    command = CROWD.format(pids=crowd.path).removesuffix("wait")
    command += f"until [ $(wc -l < {crowd.path}) = 51 ]; do sleep 0.01; done; echo done"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command))["stdout"] == "done\n"
        assert (len(crowd.pids), crowd.alive) == (51, [])


@pytest.mark.req("bash.no_survivors")
async def test_who_leaves_the_session_holds_nobody_up(tmp_path: Path, crowd: ProcessCrowd) -> None:
    """Only a sandbox keeps those from living on."""
    command = f"setsid bash -c 'echo $$ > {crowd.path}; exec sleep 1000' & echo done; "
    command += f"until [ -s {crowd.path} ]; do sleep 0.01; done"
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        assert json.loads(await run_bash(client, command))["stdout"] == "done\n"


# ── In the sandbox ──────────────────────────────────────────────────────────────────────────────


def has_sandbox() -> bool:
    if (bwrap := shutil.which("bwrap")) is None:
        return False
    argv = [bwrap, "--ro-bind", "/", "/", "--unshare-net", "--unshare-pid", "--proc", "/proc"]
    return not subprocess.run([*argv, "true"], capture_output=True, check=False).returncode


needs_bwrap = pytest.mark.skipif(not has_sandbox(), reason="bwrap cannot be used here")


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_in_the_sandbox_only_the_runs_directory_is_written_and_the_daemon_is_out_of_reach(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place, outside = tmp_path / "place", tmp_path_factory.mktemp("outside")
    place.mkdir()
    agents = with_bash('sandbox = "bwrap"')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        command = f"echo in > kept; touch {outside}/x || echo refused; ls {daemon.home}/run"
        answer = json.loads(await run_bash(client, command, cwd=str(place)))
        assert (answer["stdout"], (place / "kept").read_text()) == ("refused\n", "in\n")
        assert not (outside / "x").exists()


@needs_bwrap
@pytest.mark.req("bash.sandbox")
async def test_of_a_killed_run_the_sandbox_keeps_even_those_who_left_the_session(
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
        async with asyncio.timeout(PATIENCE):  # the kernel clears the namespace when it is over
            while find_sleepers(mark):
                await asyncio.sleep(0.01)


def find_sleepers(mark: str) -> list[str]:
    """Those who sleep for exactly so long."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == f"sleep\0{mark}\0".encode():
                found.append(path.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.req("bash.sandbox")
async def test_without_bwrap_nothing_is_run_and_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = with_bash('sandbox = "bwrap"')
    async with run_daemon(tmp_path, hooks={}, agents=agents) as daemon, daemon.client() as client:
        monkeypatch.setenv("PATH", str(tmp_path))
        output = await run_failing_bash(client, {"command": f"echo > {tmp_path}/x"})
        assert output.startswith("bash failed: ")
        assert "install the package bubblewrap" in output
        assert not (tmp_path / "x").exists()


# ── Many at once ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.no_blocking")
async def test_the_calls_of_a_step_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for the others, so one after the other they would never end."""
    command = f"touch {tmp_path}/at-$N; until [ $(ls {tmp_path}/at-* | wc -l) = 8 ]; do :; done"
    calls = [("bash", {"command": command, "env": {"N": str(n)}, "timeout": 15}) for n in range(8)]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        results = await run_tool_calls(client, "crab", calls)
        assert [json.loads(result.output)["exit_code"] for result in results] == [0] * 8


@pytest.mark.req("stream.results")
@pytest.mark.req("tools.too_many")
async def test_results_are_kept_in_call_order_and_those_too_many_are_told_so(
    tmp_path: Path,
) -> None:
    """Calls of the first half wait until a result of the second was told."""
    command = f"until [ $N -ge 32 ] || [ -e {tmp_path}/told ]; do sleep 0.02; done; "
    command += f"echo $N; touch {tmp_path}/$N"
    calls = [("bash", {"command": command, "env": {"N": str(n)}}) for n in range(70)]
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        events: list[Any] = []
        made: list[int] = []
        async with (
            asyncio.timeout(PATIENCE),
            aclosing(client.stream("crab", script_tool_calls(calls))) as stream,
        ):
            async for event in stream:
                events.append(event)
                if isinstance(event, wire.ToolResultEvent) and not event.is_error:
                    made.append(int(json.loads(event.output)["stdout"]))
                    (tmp_path / "told").touch()
        assert made[0] >= 32
        assert sorted(made) == list(range(64))
        kept = [text for role, text in await read_conversation(client, "crab") if role == "tool"]
        assert [json.loads(text)["stdout"] for text in kept[:64]] == [f"{n}\n" for n in range(64)]
        refused = [result for result in select_tool_results(events) if result.is_error]
        assert [result.output for result in refused] == kept[64:]
        assert len(refused) == 6
        for text in kept[64:]:
            assert text.startswith("not carried out: at most 64 calls in one step; ")
        assert not (tmp_path / "64").exists()


@pytest.mark.req("control.never_waits")
async def test_the_daemon_answers_others_while_commands_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        script = script_tool_calls(
            [("bash", {"command": "yes | head -c 50000000"}) for _ in range(4)]
        )
        running = asyncio.ensure_future(collect_events(client.stream("crab", script)))
        answered = await count_pings(daemon, running)
        assert [result.is_error for result in select_tool_results(await running)] == [False] * 4
        assert answered > 10


async def count_pings(daemon: InProcessDaemon, meanwhile: asyncio.Future[Any]) -> int:
    """How many were answered, one after the other, until something else is over."""
    count = 0
    async with daemon.client() as client:
        while not meanwhile.done():
            await wait_with_timeout(client.ping())
            count += 1
    return count
