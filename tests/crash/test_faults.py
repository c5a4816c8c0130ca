"""Full disks, unwritable files, stopped processes: the client gets an error, nothing is stored
incompletely, and the conversation goes on when the fault is over."""

import asyncio
import json
import os
import resource
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import pytest

from crabtalk.client import Client, ServerError, connect
from crabtalk.model import Request, ToolCall
from crabtalk.protocol import wire
from crabtalk.runtime import Env, Runtime, StopReason
from crabtalk.storage import Agent, FileStorage, Pair, make_log_name
from tests.crash.checks import (
    ClientTurn,
    SeenMessage,
    check_request,
    check_turn,
    collect_seen_messages,
    list_wire_messages,
    log_path,
    read_log,
)
from tests.crash.launched_daemon import (
    LaunchedDaemon,
    prepare_home,
    record_event,
    run_process,
    run_turn,
)
from tests.crash.launcher import SlowToolHook
from tests.model_server import ModelServer, model_server
from tests.runtime.runtime_world import WatchedStorage
from tests.runtime.scripted_provider import Gate, ScriptedProvider, answer_with_calls

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])

CALLS = '!tool slow {"ms": 1, "say": "a"}\n!tool slow {"ms": 0, "say": "b"}'


@dataclass
class DiskFaultHarness:
    """A daemon, its model and a client."""

    home: Path
    model: ModelServer
    process: LaunchedDaemon
    client: Client

    def log_path(self, pair: Pair) -> Path:
        return log_path(self.home, pair)

    async def run_turn(self, pair: Pair, content: str) -> ClientTurn:
        return await run_turn(self.client, pair, ClientTurn(content))

    async def check_goes_on(self, pair: Pair, token: str) -> list[SeenMessage]:
        """Runs one more turn, and checks that log, wire and model request agree."""
        turn = await self.run_turn(pair, f"#{token}\n!say so it goes on")
        assert not turn.error
        log = read_log(self.log_path(pair), pair)
        assert not log.torn
        check_turn(turn, log.split_turns()[-1])
        check_request(self.model.requests[-1], log)
        assert await list_wire_messages(self.client, pair) == log.messages
        return log.messages


@pytest.fixture
async def harness(home: Path) -> AsyncIterator[DiskFaultHarness]:
    async with model_server(summary="Short. It was.") as model:
        prepare_home(home, model)
        async with run_process(home) as process, connect(home=home, reconnect_timeout=0) as client:
            yield DiskFaultHarness(home, model, process, client)


PAIR = Pair("crab", "user")
OTHER = Pair("crab", "other")

# ── A full disk ────────────────────────────────────────────────────────────────────────────────


class LimitedDisk:
    """Limits the size of the process's files. That looks like a full disk to it: one write is
    incomplete, and later ones fail."""

    def __init__(self, process: LaunchedDaemon) -> None:
        self._pid = process.pid
        self._hard = resource.prlimit(self._pid, resource.RLIMIT_FSIZE)[1]

    def limit_file_size(self, size: int) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (size, self._hard))

    def remove_limit(self) -> None:
        self.limit_file_size(self._hard)


@pytest.fixture
def disk(harness: DiskFaultHarness) -> LimitedDisk:
    if not hasattr(resource, "prlimit"):
        pytest.skip("only Linux can limit the file size of another process")
    return LimitedDisk(harness.process)


@pytest.mark.req("durability.storage_failure_told")
@pytest.mark.req("durability.no_dangling_calls")
async def test_wherever_the_disk_fills_up_the_stream_reports_it_and_nothing_incomplete_remains(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    await harness.run_turn(PAIR, f"#user/1\n!say well\n{'a long beginning ' * 500}")
    counts: set[int] = set()
    for number, room in enumerate(range(0, 3000, 60), 2):
        request_count = harness.model.request_count
        disk.limit_file_size(harness.log_path(PAIR).stat().st_size + room)
        turn = await harness.run_turn(PAIR, f"#user/{number}\n{CALLS}\n!then\n!say that was all")
        disk.remove_limit()
        log = read_log(harness.log_path(PAIR), PAIR)
        assert not log.torn
        turns = [messages for messages in log.split_turns() if messages[0].text == turn.content]
        assert len(turns) <= 1
        stored = turns[0] if turns else []
        seen, _, text = collect_seen_messages(turn)
        assert stored == (seen + [SeenMessage("assistant", text)] * bool(text))[: len(stored)]
        assert turn.is_over
        if len(stored) < 5:
            assert "File too large" in turn.error
        if not stored:
            assert harness.model.request_count == request_count
        counts.add(len(stored))
        await harness.check_goes_on(PAIR, f"user/{number}0")
    # The user's message, the calls, their results, the answer: each was once the first that did
    # not fit.
    assert counts == {0, 1, 2, 4, 5}


@pytest.mark.req("durability.storage_failure_told")
async def test_on_a_full_disk_a_message_that_is_sent_is_answered_with_500(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    await harness.run_turn(PAIR, "#user/1\n!say well")
    before = harness.log_path(PAIR).read_bytes()
    disk.limit_file_size(len(before) + 10)
    with pytest.raises(ServerError, match=r"File too large; nothing of it was kept") as caught:
        await harness.client.send("crab", "#user/2\n!say never")
    assert caught.value.code == 500
    assert harness.log_path(PAIR).read_bytes() == before
    await harness.client.ping()
    disk.remove_limit()
    assert len(await harness.check_goes_on(PAIR, "user/3")) == 4


@pytest.mark.req("durability.storage_failure_told")
async def test_a_conversation_that_cannot_begin_leaves_nothing(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    disk.limit_file_size(40)
    turn = await harness.run_turn(PAIR, "#user/1\n!say never")
    assert "File too large" in turn.error
    assert not harness.log_path(PAIR).exists()
    assert harness.model.request_count == 0
    disk.remove_limit()
    assert len(await harness.check_goes_on(PAIR, "user/2")) == 2


@pytest.mark.req("durability.storage_failure_told")
async def test_a_compaction_that_cannot_be_stored_changes_nothing(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    await harness.run_turn(PAIR, f"#user/1\n{CALLS}")
    before = harness.log_path(PAIR).read_bytes()
    disk.limit_file_size(len(before) + 50)
    with pytest.raises(ServerError, match="File too large") as caught:
        await harness.client.compact("crab")
    assert caught.value.code == 500
    assert harness.log_path(PAIR).read_bytes() == before
    assert not (await harness.client.list_archives("crab")).archives
    disk.remove_limit()
    await harness.check_goes_on(PAIR, "user/2")
    assert await harness.client.compact("crab") == "Short. It was."
    await harness.check_goes_on(PAIR, "user/3")


@pytest.mark.req("durability.storage_failure_told")
@pytest.mark.req("durability.atomic_files")
async def test_an_agent_that_cannot_be_saved_stays_as_it_was(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    path = harness.home / "agents" / "owl.toml"
    before = path.read_bytes()
    disk.limit_file_size(10)
    with pytest.raises(ServerError, match="File too large") as caught:
        await harness.client.update_agent("owl", {"description": "new"}, prompt="You are another.")
    assert caught.value.code == 500
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"crab.toml", "owl.toml"}
    assert (await harness.client.get_agent("owl")).description == ""
    disk.remove_limit()
    await harness.client.update_agent("owl", {"description": "new"}, prompt="You are another.")
    assert (await harness.client.get_agent("owl")).description == "new"


@pytest.mark.req("accepted.waiting_turn")
@pytest.mark.req("accepted.steer")
async def test_on_a_full_disk_waiting_turns_and_steers_are_refused_and_never_run(
    harness: DiskFaultHarness, disk: LimitedDisk
) -> None:
    running = await start_streaming(harness, "#user/1\n!say one \n!wait\n!say two")
    disk.limit_file_size(0)
    turn = await harness.run_turn(PAIR, "#user/2\n!say never")
    assert "File too large" in turn.error
    assert not turn.events
    with pytest.raises(ServerError, match="File too large") as caught:
        await harness.client.send("crab", "#user/3\n!say never")
    assert caught.value.code == 500
    with pytest.raises(ServerError, match="File too large") as caught:
        await harness.client.steer_session("crab", "#user/1+1\n!say never")
    assert caught.value.code == 500
    disk.remove_limit()
    await harness.client.steer_session("crab", "#user/1+2\n!say steered")
    harness.model.release()
    assert not (await running).error
    await harness.check_goes_on(PAIR, "user/4")
    tokens = [m.token for m in read_log(harness.log_path(PAIR), PAIR).messages if m.token]
    assert tokens == ["user/1", "user/1+2", "user/4"]


# ── Unusable files and directories ─────────────────────────────────────────────────────────────


@pytest.mark.req("durability.storage_failure_told")
async def test_an_unwritable_directory_is_reported_and_other_conversations_go_on(
    harness: DiskFaultHarness,
) -> None:
    await harness.run_turn(PAIR, "#user/1\n!say well")
    sessions = harness.home / "sessions"
    if os.geteuid() == 0:  # permissions do not apply to root
        sessions.rename(harness.home / "away")
        sessions.touch()
        reason = "File exists"
    else:
        sessions.chmod(0o500)
        reason = "Permission denied"
    turn = await harness.run_turn(OTHER, "#other/1\n!say never")
    assert reason in turn.error
    with pytest.raises(ServerError, match=reason) as caught:
        await harness.client.send("crab", "#other/2\n!say never", sender="other")
    assert caught.value.code == 500
    await harness.client.ping()
    assert len((await harness.client.list_agents()).agents) == 2
    if os.geteuid() == 0:
        sessions.unlink()
        (harness.home / "away").rename(sessions)
    else:
        sessions.chmod(0o700)
    assert len(await harness.check_goes_on(OTHER, "other/3")) == 2
    assert len(await harness.check_goes_on(PAIR, "user/2")) == 4


@pytest.mark.req("durability.storage_failure_told")
async def test_a_directory_in_the_place_of_a_log_stops_that_conversation_only(
    harness: DiskFaultHarness,
) -> None:
    await harness.run_turn(PAIR, "#user/1\n!say well")
    path = harness.log_path(PAIR)
    path.rename(path.with_suffix(".away"))
    path.mkdir()
    for number in (2, 3):  # with the conversation in memory, and without
        turn = await harness.run_turn(PAIR, f"#user/{number}\n!say never")
        assert f"the log {make_log_name(PAIR)}" in turn.error
    await harness.client.ping()
    assert len(await harness.check_goes_on(OTHER, "other/1")) == 2
    path.rmdir()
    path.with_suffix(".away").rename(path)
    assert len(await harness.check_goes_on(PAIR, "user/4")) == 4


@pytest.mark.req("durability.storage_failure_told")
async def test_a_log_that_became_a_link_is_refused(
    harness: DiskFaultHarness, tmp_path: Path
) -> None:
    await harness.run_turn(PAIR, "#user/1\n!say well")
    path = harness.log_path(PAIR)
    elsewhere = tmp_path / "elsewhere.jsonl"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    for number in (2, 3):  # with the conversation in memory, and without
        turn = await harness.run_turn(PAIR, f"#user/{number}\n!say never")
        assert "symbolic link" in turn.error
    with pytest.raises(ServerError, match="symbolic link") as caught:
        await harness.client.list_messages("crab")
    assert caught.value.code == 500
    assert elsewhere.read_bytes() == before
    assert len(await harness.check_goes_on(OTHER, "other/1")) == 2
    path.unlink()
    shutil.move(elsewhere, path)
    assert len(await harness.check_goes_on(PAIR, "user/4")) == 4


# ── Signals ────────────────────────────────────────────────────────────────────────────────────


async def start_streaming(harness: DiskFaultHarness, content: str) -> asyncio.Task[ClientTurn]:
    """Starts a turn in a task; returns when the client has read the first text."""
    has_text = asyncio.Event()
    turn = ClientTurn(content)

    async def read_stream() -> ClientTurn:
        async with aclosing(harness.client.stream(PAIR.agent, content)) as events:
            async for event in events:
                record_event(turn, event)
                if isinstance(event, wire.StreamChunk):
                    has_text.set()
        return turn

    task = asyncio.ensure_future(read_stream())
    async with asyncio.timeout(10):
        await has_text.wait()
    return task


@pytest.mark.req("durability.turn_before_end")
async def test_a_daemon_that_is_stopped_for_a_while_loses_nothing(
    harness: DiskFaultHarness,
) -> None:
    task = await start_streaming(harness, "#user/1\n!say one \n!wait\n!chunks 2000 0")
    harness.process.send_signal(signal.SIGSTOP)
    await harness.process.wait_until_stopped()
    harness.model.release()
    # Until the model has sent everything, or as much as fits into the buffers.
    while (answers := harness.model.connections) and not any(c.is_write_paused for c in answers):
        if not harness.model.statistics()["answering"]:
            break
        await asyncio.sleep(0)
    harness.process.send_signal(signal.SIGCONT)
    turn = await task
    assert turn.is_over
    assert not turn.error
    log = read_log(harness.log_path(PAIR), PAIR)
    check_turn(turn, log.messages)
    assert len(log.messages[-1].text.split()) == 2001
    await harness.check_goes_on(PAIR, "user/2")


@pytest.mark.req("durability.turn_before_end")
async def test_a_daemon_told_to_stop_lets_a_stream_end(harness: DiskFaultHarness) -> None:
    task = await start_streaming(harness, "#user/1\n!say one \n!wait\n!say two")
    harness.process.send_signal(signal.SIGTERM)
    while (harness.home / "run" / "crabtalk.sock").exists():
        await asyncio.sleep(0.001)
    harness.model.release()
    turn = await task
    assert turn.is_over
    assert not turn.error
    assert await harness.process.wait_for_exit() == 0
    log = read_log(harness.log_path(PAIR), PAIR)
    check_turn(turn, log.messages)
    assert log.messages[-1].text == "one two"


@pytest.mark.req("durability.before_model")
async def test_a_daemon_told_to_stop_does_not_wait_forever_and_keeps_the_users_message(
    home: Path,
) -> None:
    async with model_server() as model:
        prepare_home(home, model)
        with (home / "config.toml").open("a") as config:
            config.write("[limits]\ndrain_timeout = 0.2\n")
        async with run_process(home) as process, connect(home=home, reconnect_timeout=0) as client:
            harness = DiskFaultHarness(home, model, process, client)
            task = await start_streaming(harness, "#user/1\n!say one \n!hang")
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ServerError) as caught:
                await task
            assert caught.value.code == 503
            assert await process.wait_for_exit() == 0
            assert read_log(harness.log_path(PAIR), PAIR).messages == [
                SeenMessage("user", "#user/1\n!say one \n!hang")
            ]
            await process.start()
            await harness.check_goes_on(PAIR, "user/2")


@pytest.mark.req("durability.no_dangling_calls")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_run_killed_while_its_calls_are_stored_leaves_none_open(fails: bool) -> None:
    storage = WatchedStorage()
    gate = storage.append_gates[1] = Gate()
    storage.failing_appends = {1} if fails else set()
    call = ToolCall("c", "slow", '{"ms": 0, "say": "a"}')
    provider = ScriptedProvider(answer_with_calls(call), "well")
    runtime = Runtime(storage, provider, Env(SlowToolHook()))
    runtime.register(Agent("crab", "You are crab.", model="m"))
    run = runtime.start("crab", "good day")
    await gate.wait_until_reached()
    assert await runtime.kill("crab")
    gate.open()
    assert (await run.wait()).reason is StopReason.CANCELLED
    done = await runtime.send("crab", "and now?")  # refused, if a call has no result
    assert (done.text, done.error) == ("well", "")
    roles = [message.role for message in provider.last_messages]
    assert roles == ["user", *([] if fails else ["assistant", "tool"]), "user"]
    await runtime.close()


# ── Flushing ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("durability.before_model")
async def test_all_that_is_written_is_flushed_before_the_model_is_asked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records the size of each file at its last flush, by the real system calls."""
    flushed: dict[int, int] = {}

    def record_flushes(name: str) -> None:
        real_flush = getattr(os, name)

        def flush(descriptor: int) -> None:
            real_flush(descriptor)
            status = os.fstat(descriptor)
            flushed[status.st_ino] = status.st_size

        monkeypatch.setattr(os, name, flush)

    record_flushes("fsync")
    record_flushes("fdatasync")
    home.mkdir()
    path = log_path(home, PAIR)
    sizes: list[int] = []

    async def check_flushed(request: Request) -> None:
        status = path.stat()
        assert json.dumps(request.messages[-1].text).encode() in path.read_bytes()
        assert flushed[status.st_ino] == status.st_size
        assert home.stat().st_ino in flushed
        assert path.parent.stat().st_ino in flushed
        sizes.append(status.st_size)

    call = ToolCall("c", "slow", '{"ms": 0, "say": "a"}')
    provider = ScriptedProvider(answer_with_calls(call), "one", "two")
    provider.on_request = check_flushed
    storage = FileStorage(home)
    runtime = Runtime(storage, provider, Env(SlowToolHook()))
    runtime.register(Agent("crab", "You are crab.", model="m"))
    for _ in range(2):
        done = await runtime.send("crab", "good day")
        assert not done.error
        assert flushed[path.stat().st_ino] == path.stat().st_size
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))
    await runtime.close()
    await storage.close()


@pytest.mark.req("durability.before_model")
async def test_many_conversations_share_a_flush_and_none_goes_without(home: Path) -> None:
    home.mkdir()
    storage = FileStorage(home)
    before: list[int] = []

    async def count_flushes(request: Request) -> None:
        before.append(storage.log_writer.flushes)

    provider = ScriptedProvider(respond=lambda request: "well")
    provider.on_request = count_flushes
    runtime = Runtime(storage, provider)
    runtime.register(Agent("crab", "You are crab.", model="m"))
    await asyncio.gather(*(runtime.send("crab", "hi", sender=f"s{n}") for n in range(64)))
    assert min(before) > 0
    assert storage.log_writer.appends == 128
    # How many depends on how fast the disk is; that some are shared does not.
    assert storage.log_writer.flushes < storage.log_writer.appends
    await runtime.close()
    await storage.close()
