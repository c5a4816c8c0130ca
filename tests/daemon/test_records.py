"""list_records: a program that follows a conversation by positions gets exactly the log."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crabtalk.client import Client
from crabtalk.protocol import wire
from crabtalk.runtime import ToolDispatch
from crabtalk.storage import Pair, make_log_name
from tests.daemon.in_process_daemon import (
    AGENTS,
    CONFIG,
    InProcessDaemon,
    collect_events,
    expect_error_code,
    prepare_home,
    read_conversation,
    run_daemon,
    script_tool_calls,
    wait_for_event,
    wait_until,
    wait_with_timeout,
)
from tests.model_server import model_server

USER = Pair("crab", "user")
SeenRecord = tuple[int, str, str]  # position, kind, and a detail to tell records apart


class RecordMirror:
    """Follows a conversation's records, and collects them."""

    def __init__(self, client: Client, random_source: random.Random) -> None:
        self._client = client
        self._random = random_source
        self.seen: list[SeenRecord] = []
        self.position: int | None = None
        self.log_id: str | None = None
        self.restarts = 0

    async def read_page(self) -> bool:
        """False if there are no more records for now."""
        page = await self._client.list_records(
            "crab",
            position=self.position,
            log_id=self.log_id,
            limit=self._random.choice([1, 2, 3, 7, 100, None]),
        )
        if page.restarted:
            self.seen.clear()
            self.restarts += 1
        self.seen += map(describe_record, page.records)
        positions = [record.position for record in page.records]
        assert all(at < page.next_position for at in positions)
        self.position, self.log_id = page.next_position, page.log_id
        return page.has_more

    async def catch_up(self) -> list[SeenRecord]:
        while await self.read_page():
            pass
        return self.seen


def describe_record(record: wire.ConversationRecord) -> SeenRecord:
    kind = record.WhichOneof("record")
    match kind:
        case "message":
            detail = f"{record.message.role}: {record.message.content}"
        case "run_end":
            detail = record.run_end.run_id
        case "compaction":
            detail = record.compaction.archive.name
        case "change":
            detail = record.change.title
        case _:
            raise AssertionError(record)
    return record.position, kind, detail


def read_log_file(path: Path) -> list[SeenRecord]:
    """The records that a mirror must get, read from the file itself."""
    records: list[SeenRecord] = []
    position = 0
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            records += [(position, *shown) for shown in select_visible(json.loads(line))]
        position += len(line)
    return records


def select_visible(record: dict[str, Any]) -> list[tuple[str, str]]:
    match record["kind"]:
        case "message":
            message = record["message"]
            return [("message", f"{message['role']}: {message.get('text', '')}")]
        case "compact":
            return [("compaction", record["archive_name"])]
        case "event" if record["event"] == "done":
            return [("run_end", record["run"])]
        case "meta" if "title" in record or "mode" in record:
            return [("change", record.get("title", ""))]
    return []


async def list_run_ends(client: Client, sender: str = "") -> list[wire.RunEndRecord]:
    page = await client.list_records("crab", sender=sender, limit=500)
    return [record.run_end for record in page.records if record.HasField("run_end")]


async def look_around(call: ToolDispatch) -> str:
    return "waves"


def get_log_path(home: Path) -> Path:
    return home / "sessions" / f"{make_log_name(USER)}.jsonl"


@pytest.mark.req("delivery.records.ends")
async def test_every_way_a_run_ends_is_a_record(tmp_path: Path) -> None:
    agents = {**AGENTS, "crab": 'prompt = "You are crab."\nmax_iterations = 1\n'}
    async with (
        run_daemon(tmp_path, agents=agents, tools={"look": look_around}) as daemon,
        daemon.client() as client,
    ):
        scripts = {
            "!say hello": wire.STOP_REASON_COMPLETED,
            "!say hello\n!length": wire.STOP_REASON_LENGTH,
            "!status 400 no": wire.STOP_REASON_ERROR,
            "!nothing": wire.STOP_REASON_NO_ACTION,
            script_tool_calls([("look", {})]): wire.STOP_REASON_MAX_ITERATIONS,
        }
        runs: list[str] = []
        for number, script in enumerate(scripts):
            start, *_ = await collect_events(client.stream("crab", script, key=f"k{number}"))
            assert isinstance(start, wire.StreamStart)
            runs.append(start.run_id)
        stream = client.stream("crab", "!say one\n!wait", key="killed")
        runs.append((await wait_for_event(stream, wire.StreamStart)).run_id)
        await daemon.model.until_waiting()
        await client.kill("crab")
        await collect_events(stream)
        ends = await list_run_ends(client)
        assert [end.run_id for end in ends] == runs
        assert [end.stop_reason for end in ends] == [
            *scripts.values(),
            wire.STOP_REASON_CANCELLED,
        ]
        assert not any(end.interrupted for end in ends)
        assert ends[2].error
        assert all(end.agent == "crab" and end.timestamp for end in ends)
        assert ends[0].model == "scripted"
        assert ends[0].usage.total_tokens


@pytest.mark.req("delivery.records.failed")
async def test_failed_tool_calls_are_marked(tmp_path: Path) -> None:
    async with (
        run_daemon(tmp_path, tools={"look": look_around}) as daemon,
        daemon.client() as client,
    ):
        await collect_events(
            client.stream("crab", script_tool_calls([("look", {}), ("fly", {})]), key="k")
        )
        page = await client.list_records("crab")
        tools = [r.message for r in page.records if r.message.role == "tool"]
        assert [tool.is_error for tool in tools] == [False, True]
        by_key = [r.message for r in page.records if r.message.key == "k"]
        assert [m.role for m in by_key] == ["user"]
        assert {r.message.run_id for r in page.records if r.HasField("message")} == {
            by_key[0].run_id
        }
        listed = await client.list_messages("crab")
        assert [m.is_error for m in listed.messages if m.role == "tool"] == [False, True]


@pytest.mark.req("delivery.records.order")
@pytest.mark.on_files
@settings(max_examples=15)
@given(st.lists(st.sampled_from(["turn", "tool", "compact", "fresh", "title", "fail"]), max_size=8))
def test_a_mirror_that_follows_by_positions_gets_exactly_the_log(acts: list[str]) -> None:
    asyncio.run(mirror_acts(acts))


async def mirror_acts(acts: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        async with (
            run_daemon(Path(scratch), tools={"look": look_around}, summary="So. It was.") as daemon,
            daemon.client() as client,
            daemon.client() as reading,
        ):
            await client.send("crab", "!say hello")
            mirror = RecordMirror(reading, random.Random(len(acts)))
            is_over = asyncio.Event()

            async def follow() -> None:
                while not is_over.is_set():
                    await mirror.read_page()

            following = asyncio.ensure_future(follow())
            for number, act in enumerate(acts):
                await perform_act(client, number, act)
            is_over.set()
            await wait_with_timeout(following)
            assert await mirror.catch_up() == read_log_file(get_log_path(daemon.home))
            assert mirror.restarts == 0


async def perform_act(client: Client, number: int, act: str) -> None:
    match act:
        case "turn":
            await client.send("crab", f"!say hello {number}", key=f"k{number}")
        case "tool":
            await collect_events(
                client.stream("crab", script_tool_calls([("look", {})], [("look", {})]))
            )
        case "title":
            await client.set_title("crab", f"Title {number}")
        case "fail":
            await collect_events(client.stream("crab", "!status 400 no", key=f"k{number}"))
        case _:
            await client.send("crab", "!say before")
            await client.compact("crab", fresh=act == "fresh")


@pytest.mark.req("delivery.records.restart")
async def test_a_mirror_restarts_after_the_conversation_was_deleted(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        assert await expect_error_code(client.list_records("crab")) == 404
        await client.send("crab", "!say one")
        mirror = RecordMirror(client, random.Random(1))
        before = list(await mirror.catch_up())
        position = mirror.position
        (row,) = (await client.list_conversations()).conversations
        await client.delete_conversation(row.file_path)
        assert await expect_error_code(client.list_records("crab")) == 404
        await asyncio.sleep(0.002)  # a log is identified by its start time in milliseconds
        await client.send("crab", "!say two, and a little more than that")
        after = await mirror.catch_up()
        assert mirror.restarts == 1
        assert after == read_log_file(get_log_path(daemon.home))
        assert after != before
        # A position that is not in this log, without the log's id.
        page = await client.list_records("crab", position=(position or 0) + 1)
        assert page.restarted
        assert [describe_record(record) for record in page.records] == after
        page = await client.list_records("crab", position=10**12)
        assert page.restarted


@pytest.mark.req("delivery.records.order")
@pytest.mark.on_files
async def test_half_a_line_at_the_end_is_not_a_record_until_it_is_whole(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client:
        await client.send("crab", "!say one")
        mirror = RecordMirror(client, random.Random(1))
        seen = list(await mirror.catch_up())
        path = get_log_path(daemon.home)
        whole = path.read_bytes()
        with path.open("ab") as file:
            file.write(b'{"kind":"message","id":2,"at":"2026')
        assert await mirror.catch_up() == seen
        path.write_bytes(whole)
        await client.send("crab", "!say two")
        assert await mirror.catch_up() == read_log_file(path)
        assert mirror.restarts == 0


# ── Interrupted runs ───────────────────────────────────────────────────────────────────────────


def remove_last_lines(path: Path, *, lines: int) -> None:
    """Remove the last lines, as if the daemon was killed before writing them."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.on_files
@pytest.mark.parametrize("how", ["records", "messages", "attach", "turn", "steer"])
async def test_a_run_interrupted_by_a_crash_is_closed_by_the_first_request(
    tmp_path: Path, how: str
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await client.send("crab", "!say zero", key="k0")
            start, *_ = await collect_events(client.stream("crab", "!say one", key="k"))
            assert isinstance(start, wire.StreamStart)
            mirror = RecordMirror(client, random.Random(1))
        path = get_log_path(daemon.home)
        remove_last_lines(path, lines=3)  # the answer, the end, and the snapshot of the meta
        before = path.read_bytes()
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            mirror = RecordMirror(client, random.Random(1))
            (row,) = (await client.list_conversations()).conversations
            history = await client.get_conversation_history(row.file_path)
            assert path.read_bytes() == before  # a start closes nothing by itself
            match how:
                case "messages":
                    await client.list_messages("crab")
                case "attach":
                    await collect_events(client.attach("crab", key="k"))
                case "turn":
                    await client.send("crab", "!say two", key="k2")
                case "steer":
                    assert (
                        await expect_error_code(client.steer_session("crab", "x", key="s")) == 404
                    )
            seen = await mirror.catch_up()
            assert path.read_bytes().startswith(before)
            assert seen == read_log_file(path)
            closed = [end for end in await list_run_ends(client) if end.run_id == start.run_id]
            assert [(e.interrupted, e.stop_reason) for e in closed] == [
                (True, wire.STOP_REASON_ERROR)
            ]
            assert "the daemon ended while the agent was answering" in closed[0].error
            if how != "turn":
                assert await client.get_conversation_history(row.file_path) == history
            events = await collect_events(client.stream("crab", "!say one", key="k"))
            assert isinstance(events[-1], wire.StreamEnd)
            assert "the daemon ended while" in events[-1].error
            assert await expect_error_code(client.send("crab", "!say one", key="k")) == 500
            size = path.stat().st_size
            await mirror.catch_up()
            assert path.stat().st_size == size  # once
            assert model.request_count == 2 + (how == "turn")


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.on_files
async def test_a_mirror_at_the_end_of_the_log_gets_the_end_of_an_interrupted_run(
    tmp_path: Path,
) -> None:
    async with model_server() as model:
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            await collect_events(client.stream("crab", "!say one", key="k"))
        path = get_log_path(daemon.home)
        remove_last_lines(path, lines=3)
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            page = await client.list_records("crab", position=path.stat().st_size, log_id=None)
            assert not page.restarted
            kinds = [record.WhichOneof("record") for record in page.records]
            assert kinds == ["run_end", "change"]
            assert page.records[0].run_end.interrupted


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.on_files
async def test_reading_does_not_close_a_running_run(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon, daemon.client() as client, daemon.client() as other:
        stream = client.stream("crab", "!say one\n!wait\n!say two", key="k")
        await wait_for_event(stream, wire.StreamStart)
        await daemon.model.until_waiting()
        mirror = RecordMirror(other, random.Random(1))
        for _ in range(5):
            await wait_with_timeout(mirror.catch_up())
            await wait_with_timeout(other.list_messages("crab"))
        assert not await list_run_ends(other)
        daemon.model.release()
        await collect_events(stream)
        assert [end.interrupted for end in await list_run_ends(other)] == [False]


@pytest.mark.req("delivery.interrupted.closed")
@pytest.mark.on_files
async def test_a_log_of_an_earlier_version_without_runs_is_not_changed(tmp_path: Path) -> None:
    async with model_server() as model:
        home = tmp_path / "home"
        prepare_home(home, AGENTS, CONFIG.replace("{url}", model.url))
        path = get_log_path(home)
        path.parent.mkdir()
        at = "2026-01-01T00:00:00.000Z"
        records = [
            {"kind": "meta", "agent": "crab", "created_by": "user", "created_at": at},
            {"kind": "message", "id": 0, "at": at, "message": {"role": "user", "text": "hi"}},
        ]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        before = path.read_bytes()
        async with run_daemon(tmp_path, model) as daemon, daemon.client() as client:
            assert await read_conversation(client, "crab") == [("user", "hi")]
            await client.list_records("crab")
            assert path.read_bytes() == before
            assert isinstance(daemon, InProcessDaemon)
            await wait_until(lambda: daemon.daemon.runtime.running_count == 0)
