"""A daemon that is killed at any moment loses nothing it acknowledged, and doubles nothing."""

import asyncio
import json
import os
import secrets
import signal
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from crabtalk.client import Client, ConnectionClosedError, connect
from crabtalk.protocol import wire
from crabtalk.storage import Pair
from crabtalk.storage.checksums import remove_seal
from tests.crash.checks import (
    ClientTurn,
    check_request,
    check_turn,
    check_wire,
    list_wire_messages,
    log_path,
    read_log,
)
from tests.crash.crash_clients import KILL_POINTS
from tests.crash.crash_stress import CrashReport, run_crash_stress
from tests.crash.launched_daemon import (
    LaunchedDaemon,
    prepare_home,
    run_process,
    run_turn,
    wait_until_recovered,
)
from tests.model_server import ModelServer, model_server


def run_seeded_stress(
    home: Path, rounds: int, durability: str = "fsync", *, crowded: bool = False
) -> CrashReport:
    """The seed is random; set CRABTALK_CRASH_SEED to repeat a run."""
    seed = os.environ.get("CRABTALK_CRASH_SEED") or secrets.token_hex(4)
    try:
        work = run_crash_stress(home, seed, rounds, durability=durability, crowded=crowded)
        report = asyncio.run(work)
    except BaseException as error:
        error.add_note(f"to see it again: CRABTALK_CRASH_SEED={seed}")
        raise
    print(report)  # noqa: T201 - shown with -s, and when something fails
    return report


@pytest.mark.timeout(180)
@pytest.mark.req("durability.kill9")
@pytest.mark.req("durability.before_model")
@pytest.mark.req("durability.turn_before_end")
@pytest.mark.req("durability.no_dangling_calls")
@pytest.mark.req("durability.torn_line")
@pytest.mark.req("durability.atomic_files")
def test_a_dozen_kills_lose_nothing_and_double_nothing(home: Path) -> None:
    report = run_seeded_stress(home, 12)
    assert report.cut_turns > 0
    assert report.halved_lines > 0


@pytest.mark.timeout(120)
@pytest.mark.req("accepted.kill9")
@pytest.mark.req("accepted.recovery")
def test_a_few_kills_with_turns_in_line_and_steers_lose_nothing_acknowledged(home: Path) -> None:
    report = run_seeded_stress(home, 8, crowded=True)
    assert report.accepted > 0
    assert report.closed > 0


@pytest.mark.timeout(60)
@pytest.mark.req("accepted.recovery")
@pytest.mark.req("accepted.turn")
def test_a_start_closes_messages_that_a_killed_daemon_had_accepted(home: Path) -> None:
    asyncio.run(kill_with_waiting_turns(home))


async def kill_with_waiting_turns(home: Path) -> None:
    """A running turn, two waiting ones and a steer are acknowledged; then comes a kill."""
    pair = Pair("crab", "user")
    async with model_server() as model:
        prepare_home(home, model)
        async with run_process(home) as process:
            async with connect(home=home, reconnect_timeout=0) as client:
                streams = []
                for number, script in enumerate(["!wait", "!say two", "!say three"], 1):
                    stream = client.stream("crab", f"#user/{number}\n{script}")
                    streams.append(stream)
                    assert isinstance(await anext(stream), wire.StreamStart)
                    if number == 1:
                        await model.until_waiting()
                await client.steer_session("crab", "#user/1+1\nsteered")
                await process.kill()
                for stream in streams:
                    with suppress(ConnectionClosedError, ConnectionError):
                        await stream.aclose()
            assert [m.token for m in read_log(log_path(home, pair), pair).messages] == ["user/1"]
            for _ in range(2):  # the second start has nothing left to do
                await process.start()
                async with connect(home=home, reconnect_timeout=0) as client:
                    await wait_until_recovered(client)
                    log = read_log(log_path(home, pair), pair)
                    assert [m.token for m in log.messages] == [
                        *["user/1", "user/1+1", "user/2", "user/3"]
                    ]
                    assert len(log.interrupted) == 3
                    await check_wire(client, pair, log)
                await process.kill()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.req("accepted.kill9")
def test_five_hundred_kills_with_turns_in_line_and_steers_lose_nothing_acknowledged(
    home: Path,
) -> None:
    report = run_seeded_stress(home, 500, crowded=True)
    assert report.steered > 100
    assert report.closed > 100


@pytest.mark.timeout(120)
@pytest.mark.req("durability.kill9")
def test_without_flushing_a_kill_loses_nothing_either(home: Path) -> None:
    run_seeded_stress(home, 4, durability="os")


@pytest.mark.timeout(120)
@pytest.mark.req("durability.torn_line")
@pytest.mark.req("durability.no_dangling_calls")
def test_a_log_cut_at_any_byte_keeps_its_complete_lines_and_goes_on(home: Path) -> None:
    asyncio.run(check_cuts_anywhere(home))


async def check_cuts_anywhere(home: Path) -> None:
    """Cuts one log at many places; each cut becomes a conversation."""
    async with model_server(summary="Short. It was.") as model:
        prepare_home(home, model)
        async with run_process(home):
            whole = await make_log(home)
        cuts = {}
        for number, end in enumerate(list_cut_positions(whole)):
            pair = Pair("crab", f"cut{number:04}")
            data = whole.replace(
                b'"created_by":"whole123"', f'"created_by":"{pair.sender}"'.encode()
            )
            cuts[pair] = data[:end]
            log_path(home, pair).write_bytes(data[:end])
        model.reset()
        async with run_process(home), connect(home=home, reconnect_timeout=0) as client:
            await asyncio.gather(
                *(check_goes_on(home, client, model, *cut) for cut in cuts.items())
            )


async def make_log(home: Path) -> bytes:
    """The log of a conversation with every kind of record."""
    pair = Pair("crab", "whole123")
    calls = '!tool slow {"ms": 0, "say": "ä"}\n!tool slow {"ms": 0, "say": "b"}'
    async with connect(home=home, reconnect_timeout=0) as client:
        for number in (1, 2):
            await run_turn(client, pair, ClientTurn(f"#whole/{number}1\n!say größtenteils"))
            await run_turn(client, pair, ClientTurn(f"#whole/{number}2\n{calls}"))
            await run_turn(client, pair, ClientTurn(f"#whole/{number}3\n!say hello", guest="owl"))
            if number == 1:
                await client.compact(pair.agent, sender=pair.sender)
    # Without checksums, as earlier versions wrote it: the caller replaces the sender's name.
    lines = log_path(home, pair).read_bytes().splitlines()
    return b"".join(remove_seal(line) + b"\n" for line in lines)


def list_cut_positions(data: bytes) -> list[int]:
    """Positions around every line end, and some between."""
    ends = [offset for offset, byte in enumerate(data) if byte == ord("\n")]
    near = {end + step for end in ends for step in (-1, 0, 1, 2)}
    return sorted(near.union(range(0, len(data), 41)) & set(range(len(data) + 1)))


async def check_goes_on(
    home: Path, client: Client, model: ModelServer, pair: Pair, cut: bytes
) -> None:
    turn = await run_turn(client, pair, ClientTurn(f"#{pair.sender}/1\n!say and on"))
    assert not turn.error
    log = read_log(log_path(home, pair), pair)
    assert not log.torn
    lines = cut.split(b"\n")
    is_whole = bool(lines[-1]) and is_json(lines[-1])  # it only lacks its line feed
    complete = lines if is_whole else lines[:-1]
    assert log.data.split(b"\n")[: len(complete)] == complete
    count = sum(line.startswith(b'{"kind":"message"') for line in complete)
    assert len(log.messages) == count + 2
    check_turn(turn, log.messages[count:])
    assert await list_wire_messages(client, pair) == log.messages
    (request,) = [r for r in model.requests if r["messages"][-1]["content"] == turn.content]
    check_request(request, log)


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


@pytest.mark.timeout(120)
@pytest.mark.req("durability.kill9")
@pytest.mark.req("durability.torn_line")
@pytest.mark.slow
def test_a_kill_while_a_line_is_written_keeps_the_lines_before_it(home: Path) -> None:
    asyncio.run(kill_while_writing(home, 4))


async def kill_while_writing(home: Path, rounds: int) -> None:
    """A message of megabytes takes a moment to write; the kill comes in that moment."""
    torn = 0
    async with model_server() as model:
        prepare_home(home, model)
        async with run_process(home) as process:
            for number in range(rounds):
                pair = Pair("crab", f"s{number}")
                path = log_path(home, pair)
                turn = ClientTurn(f"#s{number}/2\n!say a lot\n{'größer ' * 2**18}")
                async with connect(home=home, reconnect_timeout=0) as client:
                    if number % 2:  # otherwise it is the first line of all
                        await run_turn(client, pair, ClientTurn(f"#s{number}/1\n!say well"))
                    before = path.read_bytes() if path.exists() else b""
                    killing = kill_when_changed(process, partial(read_size, path))
                    await asyncio.gather(
                        killing, run_turn(client, pair, turn), return_exceptions=True
                    )
                    assert await process.wait_for_exit() == -signal.SIGKILL
                log = read_log(path, pair)
                torn += bool(log.torn)
                assert log.data.startswith(before)
                check_turn(turn, log.messages[2 * (number % 2) :])
                await process.start()
                async with connect(home=home, reconnect_timeout=0) as client:
                    await check_wire(client, pair, log)
                    turn = await run_turn(client, pair, ClientTurn(f"#s{number}/3\n!say and on"))
                    assert not turn.error
                    after = read_log(path, pair)
                    assert not after.torn
                    assert after.data.startswith(log.data)
                    check_turn(turn, after.split_turns()[-1])
                    await check_wire(client, pair, after)
                check_request(model.requests[-1], after)
    print(f"{torn} of {rounds} kills tore a line")  # noqa: T201 - depends on the file system


def read_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def kill_when_changed(process: LaunchedDaemon, read_state: Callable[[], object]) -> None:
    """Kills the process as soon as `read_state` returns something else."""
    before = read_state()

    def poll_and_kill() -> None:
        deadline = time.monotonic() + 20
        while read_state() == before and time.monotonic() < deadline:
            pass
        process.send_signal(signal.SIGKILL)

    await asyncio.to_thread(poll_and_kill)


@pytest.mark.timeout(120)
@pytest.mark.req("durability.kill9")
@pytest.mark.req("durability.atomic_files")
def test_a_kill_while_a_file_is_replaced_leaves_the_old_or_the_new_one(home: Path) -> None:
    asyncio.run(kill_while_replacing(home, 4))


async def kill_while_replacing(home: Path, rounds: int) -> None:
    """Kills when the temporary file appears, and when the file is replaced, in turns."""
    path = home / "agents" / "owl.toml"

    def directory_state() -> tuple[int, int]:
        return path.parent.stat().st_mtime_ns, path.stat().st_size

    def file_state() -> tuple[int, int]:
        return path.stat().st_ino, path.stat().st_size

    async with model_server() as model:
        prepare_home(home, model)
        async with run_process(home) as process:
            for number in range(rounds):
                before = tomllib.loads(path.read_text())["prompt"]
                after = f"You are owl number {number}. {'Größe. ' * 2**14}"
                async with connect(home=home, reconnect_timeout=0) as client:
                    killing = kill_when_changed(
                        process, file_state if number % 2 else directory_state
                    )
                    update = client.update_agent("owl", {"description": after[:20]}, prompt=after)
                    _, outcome = await asyncio.gather(killing, update, return_exceptions=True)
                    assert await process.wait_for_exit() == -signal.SIGKILL
                is_acknowledged = not isinstance(outcome, BaseException)
                prompt = tomllib.loads(path.read_text())["prompt"]
                assert prompt in ([after] if is_acknowledged else [before, after])
                await process.start()
                async with connect(home=home, reconnect_timeout=0) as client:
                    assert not (await client.get_stats()).problems
                    names = [agent.name for agent in (await client.list_agents()).agents]
                    assert names == ["crab", "owl"]
                    turn = await run_turn(
                        client, Pair("owl", "user"), ClientTurn("#user/1\n!say hoo")
                    )
                    assert not turn.error
                assert model.requests[-1]["messages"][0]["content"].startswith(prompt)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.req("durability.kill9")
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_hundreds_of_kills_lose_nothing_and_double_nothing(home: Path, durability: str) -> None:
    report = run_seeded_stress(home, 250, durability)
    assert report.open_calls > 0
    assert report.compactions > 0
    assert len(report.kills) > len(KILL_POINTS) // 2
