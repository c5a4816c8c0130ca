"""Commands in their own process group: real processes, checked in /proc afterwards."""

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crabtalk.hooks import process_group
from crabtalk.hooks.process_group import CommandOutcome, CommandStartError, OutputBuffer

PATIENCE = 20
# Writes its process id to the given file and stays.
SLEEPER = "echo $BASHPID >> {}; exec sleep 1000"
FIFTY = "for i in $(seq 50); do (" + SLEEPER + ") & done; "


async def run_bash(
    command: str, cwd: Path, *, seconds: float = PATIENCE, **env: str
) -> CommandOutcome:
    async with asyncio.timeout(PATIENCE):
        return await process_group.run_command(
            ["bash", "-c", command], cwd=cwd, env=env, seconds=seconds
        )


def is_alive(pid: str) -> bool:
    """A zombie counts as dead."""
    try:
        stat = Path("/proc", pid, "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def read_lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def are_all_gone(pids: list[str]) -> bool:
    return not any(is_alive(pid) for pid in pids)


async def wait_until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not claim():
            await asyncio.sleep(0.01)


# ── Environment and results ─────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.result")
async def test_both_streams_and_the_exit_code_are_returned(tmp_path: Path) -> None:
    outcome = await run_bash("echo out; echo err >&2; exit 3", tmp_path)
    assert outcome.stdout.text() == ("out\n", 0)
    assert outcome.stderr.text() == ("err\n", 0)
    assert (outcome.exit_code, outcome.timed_out) == (3, False)


@pytest.mark.req("bash.result")
async def test_the_exit_code_is_minus_one_after_a_signal(tmp_path: Path) -> None:
    assert (await run_bash("kill -9 $$", tmp_path)).exit_code == -1


@pytest.mark.req("bash.process")
async def test_a_command_has_its_directory_its_environment_and_no_stdin(tmp_path: Path) -> None:
    outcome = await run_bash(
        'pwd; echo "$A $HOME" | cut -c1-4; cat; readlink /proc/$$/fd/0', tmp_path, A="b c"
    )
    assert outcome.stdout.text()[0].split("\n")[:3] == [str(tmp_path), "b c ", "/dev/null"]


@pytest.mark.req("bash.process")
async def test_a_command_inherits_no_descriptors_and_can_open_its_streams(
    tmp_path: Path,
) -> None:
    outcome = await run_bash(
        "echo out > /dev/stdout; echo err > /dev/stderr; ls /proc/$$/fd; true", tmp_path
    )
    visible = outcome.stdout.text()[0].split()
    assert visible == ["out", "0", "1", "2"]
    assert outcome.stderr.text()[0] == "err\n"


@pytest.mark.req("bash.process")
async def test_a_command_leads_its_own_group_and_session(tmp_path: Path) -> None:
    outcome = await run_bash("echo $$; cut -d' ' -f5,6 /proc/$$/stat", tmp_path)
    leader, group, session = outcome.stdout.text()[0].split()
    assert leader == group == session


@pytest.mark.req("bash.spawn_failure")
async def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CommandStartError, match=r"working directory .*gone is not there"):
        await run_bash("true", tmp_path / "gone")


@pytest.mark.req("bash.spawn_failure")
@pytest.mark.parametrize(
    ("argv", "env"),
    [
        (["/nowhere/bash"], {}),
        (["bash", "-c", "x" * 300_000], {}),
        (["bash", "-c", "a\0b"], {}),
        (["bash", "-c", "true"], {"A=B": "c"}),
        (["bash", "-c", "true"], {"A": "\0"}),
    ],
)
async def test_a_command_the_system_refuses_is_an_error(
    argv: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(CommandStartError, match="could not be started"):
        await process_group.run_command(argv, cwd=tmp_path, env=env, seconds=1)


# ── Its end ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.group_killed")
async def test_at_the_timeout_fifty_children_end_with_the_shell(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = FIFTY.format(pids) + "echo started; wait"
    outcome = await run_bash(command, tmp_path, seconds=2)
    assert (outcome.timed_out, outcome.exit_code) == (True, -1)
    assert outcome.stdout.text()[0] == "started\n", "what it had said by then is kept"
    assert len(read_lines(pids)) == 50
    assert are_all_gone(read_lines(pids))


@pytest.mark.req("bash.group_killed")
async def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"trap '' TERM; echo $$ > {pids}; (while :; do sleep 1000; done) & wait; sleep 1000"
    assert (await run_bash(command, tmp_path, seconds=0.5)).timed_out
    assert len(read_lines(pids)) == 1
    assert are_all_gone(read_lines(pids))


@pytest.mark.req("bash.group_killed")
async def test_a_process_that_handles_sigterm_can_clean_up(tmp_path: Path) -> None:
    command = "trap 'echo tidy; exit' TERM; sleep 1000 & wait"
    assert (await run_bash(command, tmp_path, seconds=1)).stdout.text()[0] == "tidy\n"


@pytest.mark.req("bash.group_killed")
async def test_cancellation_waits_until_all_processes_are_gone(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    task = asyncio.ensure_future(run_bash(FIFTY.format(pids) + "wait", tmp_path))
    await wait_until(lambda: len(read_lines(pids)) == 50)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert are_all_gone(read_lines(pids))


@pytest.mark.req("bash.group_killed")
@pytest.mark.parametrize("moments", range(8))
async def test_cancellation_during_the_start_leaves_no_process(
    moments: int, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    task = asyncio.ensure_future(run_bash(SLEEPER.format(pids), tmp_path))
    for _ in range(moments):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert are_all_gone(read_lines(pids))


@pytest.mark.req("bash.group_killed")
async def test_a_second_cancellation_does_not_wait_for_cleanup(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = f"trap 'echo term >> {tmp_path}/heard' TERM; echo $$ > {pids}; while :; do :; done"
    task = asyncio.ensure_future(run_bash(command, tmp_path))
    await wait_until(lambda: bool(read_lines(pids)))
    task.cancel()
    await wait_until(lambda: bool(read_lines(tmp_path / "heard")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: are_all_gone(read_lines(pids)))


@pytest.mark.req("bash.no_survivors")
@pytest.mark.parametrize("elsewhere", ["", ">/dev/null 2>&1"])
async def test_children_in_the_background_end_with_the_shell(
    elsewhere: str, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    command = f"(echo $BASHPID > {pids}; exec sleep 1000) {elsewhere} & echo done"
    command += f"; until [ -s {pids} ]; do :; done"
    outcome = await run_bash(command, tmp_path)
    assert (outcome.stdout.text()[0], outcome.exit_code) == ("done\n", 0)
    assert len(read_lines(pids)) == 1
    assert are_all_gone(read_lines(pids))


@pytest.mark.req("bash.no_survivors")
async def test_output_of_a_child_right_after_the_shell_ends_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "LINGER", PATIENCE)  # for slow machines
    command = "(sleep 0.05; echo late) & echo early"
    assert (await run_bash(command, tmp_path)).stdout.text()[0] == "early\nlate\n"


@pytest.mark.req("bash.no_survivors")
async def test_a_process_that_left_the_group_does_not_delay_the_result(tmp_path: Path) -> None:
    """It is not in the group, but holds our pipes."""
    command = "setsid sleep 3 & echo done"
    outcome = await asyncio.wait_for(run_bash(command, tmp_path), 2.5)
    assert outcome.stdout.text()[0] == "done\n"


@pytest.mark.req("bash.no_blocking")
async def test_commands_run_concurrently(tmp_path: Path) -> None:
    """Two commands that can only finish together."""
    first = f"touch {tmp_path}/a; until [ -e {tmp_path}/b ]; do :; done"
    second = f"touch {tmp_path}/b; until [ -e {tmp_path}/a ]; do :; done"
    outcomes = await asyncio.gather(run_bash(first, tmp_path), run_bash(second, tmp_path))
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("bash.output_bounded")
async def test_a_hundred_megabytes_take_no_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = await run_bash("echo first; head -c 100000000 /dev/zero; echo; echo last", tmp_path)
    assert outcome.stdout.total == 100_000_000 + len("first\n\nlast\n")
    text, missing = outcome.stdout.text()
    assert text.startswith("first\n")
    assert text.endswith("\nlast\n")
    assert missing == outcome.stdout.total - process_group.MAX_KEPT_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.req("bash.output_bounded")
async def test_invalid_utf_8_is_replaced(tmp_path: Path) -> None:
    assert (await run_bash(r"printf 'a\xff\0b'", tmp_path)).stdout.text() == ("a�\0b", 0)


@given(st.lists(st.text(max_size=20)), st.integers(0, 64), st.integers(0, 64))
def test_a_text_is_kept_whole_or_as_its_two_ends(texts: list[str], bound: int, limit: int) -> None:
    output_buffer = OutputBuffer(bound)
    data = b"".join(text.encode(errors="ignore") for text in texts)
    for text in texts:
        output_buffer.add(text.encode(errors="ignore"))
    assert output_buffer.total == len(data)
    visible, missing = output_buffer.text(limit)
    if not missing:
        assert visible == data.decode()
        return
    head, gap, tail = visible.partition(f"\n… {missing} bytes left out …\n")
    assert gap
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert len(head.encode()) + len(tail.encode()) + missing == len(data)
    assert len(data) - missing <= min(bound, limit)


@given(st.lists(st.binary(max_size=40)))
def test_the_buffer_never_exceeds_its_bound(pieces: list[bytes]) -> None:
    output_buffer = OutputBuffer(16)
    for piece in pieces:
        output_buffer.add(piece)
        assert len(output_buffer._head) + len(output_buffer._tail) <= 24
