"""McpServerManager with real processes: connecting, calls, crashes, restarts, the host."""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from crabtalk.mcp import McpCallError, McpProgress
from crabtalk.storage import McpServerConfig
from tests.mcp.tiny_server import build_png
from tests.mcp.world import McpWorld, build_tiny_server, is_alive, list_children, open_world

pytestmark = [pytest.mark.one_loop, pytest.mark.asyncio(loop_scope="module")]


# ── Connecting ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.tools")
@pytest.mark.req("mcp.annotations")
async def test_a_declared_server_is_connected_and_its_tools_are_listed(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server())
    assert mcp_world.list_event_statuses() == ["connecting", "connected"]
    assert mcp_world.events[-1].tools == tuple(mcp_world.list_offered())
    echo = mcp_world.find_tool("echo").tool
    assert echo.description == "Does echo."
    assert echo.parameters["properties"] == {"text": {"type": "string"}}
    assert (echo.read_only, mcp_world.find_tool("crash").tool.read_only) == (True, False)
    assert await mcp_world.call_for_text("echo", text="größer") == "größer"


@pytest.mark.req("mcp.garbage")
async def test_a_banner_before_the_first_message_is_ignored(mcp_world: McpWorld) -> None:
    await mcp_world.connect(build_tiny_server("--banner"))
    assert await mcp_world.call_for_text("echo", text="hello") == "hello"


@pytest.mark.req("mcp.garbage")
@pytest.mark.req("mcp.connect.timeout")
@pytest.mark.req("mcp.failed.reason")
async def test_servers_that_cannot_be_connected_fail_with_the_reason(
    hurried_world: McpWorld,
) -> None:
    hurried_world.declare(build_tiny_server("--die"), agent="dies")
    hurried_world.declare(build_tiny_server("--silent"), agent="silent")
    hurried_world.declare(build_tiny_server("--noise"), agent="noisy")
    hurried_world.declare(build_tiny_server("--line"), agent="endless")
    hurried_world.declare(McpServerConfig("beach", "/no/such/server"), agent="absent")
    agents = ["dies", "silent", "noisy", "endless", "absent"]
    await hurried_world.wait_until(
        lambda: all("failed" in hurried_world.list_event_statuses(agent) for agent in agents)
    )
    why = {
        agent: next(e.error for e in hurried_world.events if e.agent == agent and e.error)
        for agent in agents
    }
    assert why["dies"] == ("its process ended with status 7 (stderr: first words | no beach here)")
    assert why["silent"] == "no answer within 3 s"
    assert why["noisy"].startswith("it prints what is no MCP (it printed: waves | waves")
    assert why["endless"] == "it sent a line of more than 16777216 bytes"
    assert why["absent"].startswith("cannot start '/no/such/server': it is not there; ")


@pytest.mark.req("mcp.concurrent")
async def test_a_hanging_server_does_not_delay_others(mcp_world: McpWorld) -> None:
    mcp_world.declare(build_tiny_server("--silent"), agent="twin")
    await mcp_world.connect(build_tiny_server())
    waiting = asyncio.ensure_future(mcp_world.call("wait"))
    assert await mcp_world.call_for_text("echo", text="still here") == "still here"
    assert mcp_world.list_statuses("twin") == ["connecting"]
    waiting.cancel()


@pytest.mark.req("mcp.env")
async def test_a_server_gets_the_base_shared_and_own_environment(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server(env={"TIDE": "high", "VERBATIM": "${HOME}"}))
    found = [
        await mcp_world.call_for_text("variable", text=name)
        for name in ("PATH", "BEACH", "TIDE", "VERBATIM")
    ]
    assert found == [os.environ["PATH"], "north", "high", "${HOME}"]


# ── Calling ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.results")
async def test_answers_keep_text_images_and_structure_and_describe_the_rest(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server())
    seen = await mcp_world.call("picture")
    assert seen.text == "look:"
    ((kind, data),) = [(one.media_type, one.data) for one in seen.pictures]
    assert (kind, data) == ("image/png", build_png(2, 1))
    assert (await mcp_world.call_for_text("kinds")).splitlines() == [
        '{"tide": "low"}',
        "[audio: audio/wav, 3 bytes]",
        "[resource: map, beach://map]",
        "[resource: beach://log]",
        "low tide",
        "[resource: beach://shell, model/shell, 6 bytes]",
        "[image: image/png, damaged]",
    ]
    failed = await mcp_world.call("fail")
    assert (failed.text, failed.is_error) == ("no shells left", True)
    with pytest.raises(McpCallError, match=r"^that is no beach$"):
        await mcp_world.call("refuse")


@pytest.mark.req("mcp.results.bounded")
async def test_long_answers_are_truncated_and_one_above_the_limit_ends_its_server(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server())
    cut = await mcp_world.call_for_text("long", text=str(10_000_000))
    assert 1_000_000 < len(cut) < 1_100_000
    assert " characters left out …" in cut
    with pytest.raises(McpCallError, match="a line of more than 16777216 bytes"):
        await mcp_world.call_for_text("long", text=str(20_000_000))
    await mcp_world.wait_until(lambda: mcp_world.list_event_statuses()[-1] == "connected")
    assert await mcp_world.call_for_text("echo", text="back") == "back"


@pytest.mark.req("mcp.call.timeout")
@pytest.mark.req("mcp.progress")
async def test_progress_extends_the_deadline_of_a_call(
    hurried_world: McpWorld,
) -> None:
    await hurried_world.connect(build_tiny_server())
    assert await hurried_world.call_for_text("progress", text="10") == "10 steps"
    with pytest.raises(McpCallError, match="no answer within 2 s; the call was cancelled"):
        await hurried_world.call("wait")
    assert await hurried_world.call_for_text("echo", text="and on") == "and on"


@pytest.mark.req("mcp.progress.feed")
@pytest.mark.req("mcp.secrets")
async def test_progress_arrives_before_the_answer(
    mcp_world: McpWorld,
) -> None:
    reports = [
        {"progress": 1, "total": 3, "message": "with a-secret-shell"},
        {"progress": 3, "total": 3, "message": "a-secret-shell " * 1000},
    ]
    received: list[McpProgress] = []
    await mcp_world.connect(build_tiny_server(env={"SECRET": "a-secret-shell"}))
    answer = await mcp_world.call_with_progress("report", received.append, text=json.dumps(reports))
    assert answer.text == "reported"
    assert [(one.progress, one.total) for one in received] == [(1, 3), (3, 3)]
    assert received[0].text == "with ********"
    assert received[1].text.startswith("******** ******** ")
    assert received[1].text.endswith("…")
    assert len(received[1].text) == 500
    count = len(received)
    assert await mcp_world.call_for_text("progress", text="1") == "1 steps"
    assert len(received) == count, "another call's is not heard"


@pytest.mark.req("mcp.progress.bounded")
async def test_a_flood_of_progress_is_limited_to_ten_messages_a_second(
    mcp_world: McpWorld,
) -> None:
    received: list[McpProgress] = []
    await mcp_world.connect(build_tiny_server())
    steps = int((await mcp_world.call_with_progress("flood", received.append, text="0.5")).text)
    assert steps > 500
    assert received[-1].text == f"step {steps}", "the last word is never lost"
    assert 2 <= len(received) <= 50
    assert [one.progress for one in received] == sorted({one.progress or 0 for one in received})


@pytest.mark.req("mcp.progress.values")
async def test_invalid_numbers_end_at_most_the_server_that_sent_them(
    mcp_world: McpWorld,
) -> None:
    numbers = ["NaN", "Infinity", "-Infinity", "-1", "1e999", "true", '"3"', "null", "[]"]
    reports = ",".join(f'{{"progress": {one}, "total": {one}}}' for one in numbers)
    received: list[McpProgress] = []
    await mcp_world.connect(build_tiny_server(), build_tiny_server("--any", "x", name="other"))
    assert (
        await mcp_world.call_with_progress("report", received.append, text=f"[{reports}]")
    ).text == "reported"
    assert received == []
    huge = f'[{{"progress": 1{"0" * 400}}}]'
    with suppress(McpCallError):
        await mcp_world.call_with_progress("report", received.append, text=huge)
    assert received == []
    assert await mcp_world.call_for_text("other__echo", text="still here") == "still here"
    await mcp_world.wait_until(lambda: mcp_world.list_statuses() == ["connected", "connected"])
    assert await mcp_world.call_for_text("echo", text="and on") == "and on"


@pytest.mark.req("mcp.cancel")
async def test_a_cancelled_call_is_cancelled_at_the_server(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    record = tmp_path / "record"
    await mcp_world.connect(build_tiny_server("--record", str(record)))
    call = asyncio.ensure_future(mcp_world.call("wait"))
    await mcp_world.wait_until(lambda: '"wait"' in record.read_text())
    call.cancel()
    await mcp_world.wait_until(lambda: "notifications/cancelled" in record.read_text())
    received = [json.loads(line) for line in record.read_text().splitlines()]
    (made,) = [one["id"] for one in received if one.get("params", {}).get("name") == "wait"]
    (cancelled,) = [one for one in received if one["method"] == "notifications/cancelled"]
    assert cancelled["params"]["requestId"] == made


@pytest.mark.req("mcp.tools.changed")
async def test_changed_tools_are_listed_again(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server())
    assert "extra" not in mcp_world.list_offered()
    await mcp_world.call("more")
    await mcp_world.wait_until(lambda: "extra" in mcp_world.list_offered())
    assert "extra" in mcp_world.events[-1].tools


@pytest.mark.req("mcp.calls.bounded")
async def test_a_call_above_the_limit_is_refused(hurried_world: McpWorld) -> None:
    await hurried_world.connect(build_tiny_server())
    waiting = asyncio.ensure_future(hurried_world.call("wait"))
    await asyncio.sleep(0)
    with pytest.raises(McpCallError, match="1 calls are under way; try again later"):
        await hurried_world.call("echo")
    waiting.cancel()


# ── Loss ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.crash")
@pytest.mark.req("mcp.restart")
@pytest.mark.req("mcp.secrets")
async def test_a_server_that_crashes_fails_its_calls_at_once_and_is_started_again(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server(env={"SECRET": "a-secret-shell"}))
    before = await mcp_world.call_for_text("pid")
    other = asyncio.ensure_future(mcp_world.call("wait"))
    await asyncio.sleep(0)
    with pytest.raises(McpCallError) as caught:
        await mcp_world.call("crash")
    reason = "its process ended with status 3 (stderr: out of sand, with ********)"
    assert str(caught.value) == reason
    with pytest.raises(McpCallError, match="status 3"):
        await other
    assert await mcp_world.wait_for_failure() == reason
    await mcp_world.wait_until(lambda: mcp_world.list_event_statuses()[-1] == "connected")
    assert mcp_world.list_event_statuses() == [
        "connecting",
        "connected",
        "failed",
        "connecting",
        "connected",
    ]
    assert await mcp_world.call_for_text("pid") != before


@pytest.mark.req("mcp.crash")
async def test_a_server_killed_between_calls_is_noticed_without_a_call(mcp_world: McpWorld) -> None:
    await mcp_world.connect(build_tiny_server(auto_restart=False))
    os.kill(int(await mcp_world.call_for_text("pid")), signal.SIGKILL)
    assert await mcp_world.wait_for_failure() == "its process was killed by SIGKILL"
    assert mcp_world.list_offered() == []
    with pytest.raises(McpCallError, match="killed by SIGKILL"):
        await mcp_world.call("echo")


@pytest.mark.req("mcp.teardown")
async def test_releasing_a_server_ends_it_and_its_children(mcp_world: McpWorld) -> None:
    await mcp_world.connect(build_tiny_server("--stubborn"))
    pids = [int(await mcp_world.call_for_text("pid")), int(await mcp_world.call_for_text("child"))]
    host = mcp_world.mcp.host.pid
    assert host is not None
    assert all(is_alive(pid) for pid in pids)
    mcp_world.mcp.release("crab")
    await mcp_world.wait_until(lambda: not any(is_alive(pid) for pid in pids))
    await mcp_world.wait_until(lambda: list_children(host) == [])
    await mcp_world.wait_until(lambda: mcp_world.mcp.host.server_pids == [])
    assert mcp_world.list_event_statuses()[-1] == "disconnected"


@pytest.mark.req("mcp.teardown")
async def test_close_ends_the_host_and_all_servers(tmp_path: Path) -> None:
    async with open_world(tmp_path) as mcp_world:
        await mcp_world.connect(
            build_tiny_server("--stubborn"), build_tiny_server("--any", "other", name="other")
        )
        pids = [
            int(await mcp_world.call_for_text("pid")),
            int(await mcp_world.call_for_text("other__pid")),
        ]
        pids.append(int(await mcp_world.call_for_text("child")))
        host = mcp_world.mcp.host.pid
        assert host is not None
    assert not any(is_alive(pid) for pid in [host, *pids])
    assert host not in list_children(os.getpid())


# ── The host ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.host.death")
async def test_all_servers_end_with_the_host_and_are_restarted(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server("--stubborn"))
    pids = [int(await mcp_world.call_for_text("pid")), int(await mcp_world.call_for_text("child"))]
    waiting = asyncio.ensure_future(mcp_world.call("wait"))
    await asyncio.sleep(0)
    host = mcp_world.mcp.host.pid
    assert host is not None
    os.kill(host, signal.SIGKILL)
    with pytest.raises(McpCallError, match="the host process of MCP servers is gone: it was k"):
        await waiting
    assert "signal 9" in await mcp_world.wait_for_failure()
    await mcp_world.wait_until(lambda: not any(is_alive(pid) for pid in pids))
    await mcp_world.wait_until(lambda: mcp_world.list_event_statuses()[-1] == "connected")
    assert await mcp_world.call_for_text("echo", text="back") == "back"
    assert mcp_world.mcp.host.pid != host


@pytest.mark.req("mcp.host.hangs")
async def test_a_host_that_does_not_answer_is_replaced(
    hurried_world: McpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crabtalk.mcp.server_manager.GRACE", 0.5)
    await hurried_world.connect(build_tiny_server())
    host = hurried_world.mcp.host.pid
    assert host is not None
    os.kill(host, signal.SIGSTOP)
    with pytest.raises(McpCallError, match="does not answer"):
        await hurried_world.call("echo")
    await hurried_world.wait_for_failure()
    await hurried_world.wait_until(lambda: hurried_world.list_event_statuses()[-1] == "connected")
    assert await hurried_world.call_for_text("echo", text="back") == "back"


@pytest.mark.req("mcp.host.late")
async def test_the_host_starts_with_the_first_declared_server(tmp_path: Path) -> None:
    async with open_world(tmp_path) as mcp_world:
        mcp_world.declare()
        await mcp_world.mcp.wait_until_settled("crab")
        assert mcp_world.mcp.host.pid is None


# ── Idle servers and waiting ────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.idle")
async def test_an_unused_server_is_stopped_and_comes_back_on_its_next_call(
    mcp_world: McpWorld,
) -> None:
    await mcp_world.connect(build_tiny_server(idle_timeout=0.2))
    pid = int(await mcp_world.call_for_text("pid"))
    await mcp_world.wait_until(lambda: mcp_world.list_event_statuses()[-1] == "disconnected")
    await mcp_world.wait_until(lambda: not is_alive(pid))
    assert "echo" in mcp_world.list_offered()
    assert int(await mcp_world.call_for_text("pid")) != pid


@pytest.mark.req("mcp.wait")
async def test_the_first_turn_waits_for_servers_that_connect(
    tmp_path: Path, mcp_world: McpWorld
) -> None:
    go = tmp_path / "go"
    mcp_world.declare(build_tiny_server("--until", str(go)))
    first = asyncio.ensure_future(mcp_world.mcp.wait_until_settled("crab"))
    await asyncio.sleep(0)
    assert not first.done()
    go.touch()
    await first
    assert mcp_world.list_statuses() == ["connected"]


@pytest.mark.req("mcp.wait")
@pytest.mark.clock
async def test_the_first_turn_does_not_wait_for_a_server_that_never_connects(
    hurried_world: McpWorld,
) -> None:
    hurried_world.declare(build_tiny_server("--silent"))
    started = time.monotonic()
    await hurried_world.mcp.wait_until_settled("crab")
    assert 0.99 <= time.monotonic() - started < 10  # a timer counts in whole milliseconds
    # After one timeout it does not wait again.
    again = asyncio.ensure_future(hurried_world.mcp.wait_until_settled("crab"))
    await asyncio.sleep(0)
    assert again.done()


# ── Many ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.shared")
async def test_fifty_agents_that_declare_the_same_share_one_process(mcp_world: McpWorld) -> None:
    agents = [f"crab{number}" for number in range(50)]
    for agent in agents:
        mcp_world.declare(build_tiny_server(name=f"beach of {agent}"), agent=agent)
    await mcp_world.wait_until(
        lambda: all(mcp_world.list_statuses(agent) == ["connected"] for agent in agents)
    )
    pids = await asyncio.gather(*(mcp_world.call_for_text("pid", agent) for agent in agents))
    assert len(set(pids)) == 1
    assert mcp_world.mcp.host.server_pids == [int(pids[0])]


@pytest.mark.req("mcp.concurrent")
async def test_twenty_servers_are_connected_and_called_in_parallel(mcp_world: McpWorld) -> None:
    servers = [build_tiny_server("--any", str(number), name=f"b{number}") for number in range(20)]
    await mcp_world.connect(*servers)
    pids = await asyncio.gather(
        *(mcp_world.call_for_text(f"b{number}__pid") for number in range(20))
    )
    assert len(set(pids)) == 20
    assert sorted(map(int, pids)) == sorted(mcp_world.mcp.host.server_pids)
