"""Peers that are processes: connecting, calling, dying, coming back; the host and its death."""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from crabtalk.mcp import McpCallError, Progress
from crabtalk.storage import McpServer
from tests.mcp.tiny import png
from tests.mcp.world import World, children, is_alive, tiny, world

pytestmark = [pytest.mark.one_loop, pytest.mark.asyncio(loop_scope="module")]


# ── Connecting ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.tools")
@pytest.mark.req("mcp.annotations")
async def test_a_declared_server_is_connected_and_what_it_offers_is_known(there: World) -> None:
    await there.connected(tiny())
    assert there.told() == ["connecting", "connected"]
    assert there.events[-1].tools == tuple(there.offered())
    echo = there.find("echo").tool
    assert echo.description == "Does echo."
    assert echo.parameters["properties"] == {"text": {"type": "string"}}
    assert (echo.read_only, there.find("crash").tool.read_only) == (True, False)
    assert await there.text("echo", text="größer") == "größer"


@pytest.mark.req("mcp.garbage")
async def test_a_banner_before_the_first_word_is_overlooked(there: World) -> None:
    await there.connected(tiny("--banner"))
    assert await there.text("echo", text="hello") == "hello"


@pytest.mark.req("mcp.garbage")
@pytest.mark.req("mcp.connect.timeout")
@pytest.mark.req("mcp.failed.reason")
async def test_servers_that_cannot_be_connected_fail_with_the_reason(hurried: World) -> None:
    hurried.declare(tiny("--die"), agent="dies")
    hurried.declare(tiny("--silent"), agent="silent")
    hurried.declare(tiny("--noise"), agent="noisy")
    hurried.declare(tiny("--line"), agent="endless")
    hurried.declare(McpServer("beach", "/no/such/server"), agent="absent")
    agents = ["dies", "silent", "noisy", "endless", "absent"]
    await hurried.until(lambda: all("failed" in hurried.told(agent) for agent in agents))
    why = {
        agent: next(e.error for e in hurried.events if e.agent == agent and e.error)
        for agent in agents
    }
    assert why["dies"] == ("its process ended with status 7 (stderr: first words | no beach here)")
    assert why["silent"] == "no answer within 3 s"
    assert why["noisy"].startswith("it prints what is no MCP (it printed: waves | waves")
    assert why["endless"] == "it sent a line of more than 16777216 bytes"
    assert why["absent"].startswith("cannot start '/no/such/server': it is not there; ")


@pytest.mark.req("mcp.concurrent")
async def test_a_server_that_hangs_holds_up_no_other(there: World) -> None:
    there.declare(tiny("--silent"), agent="twin")
    await there.connected(tiny())
    waiting = asyncio.ensure_future(there.call("wait"))
    assert await there.text("echo", text="still here") == "still here"
    assert there.statuses("twin") == ["connecting"]
    waiting.cancel()


@pytest.mark.req("mcp.env")
async def test_a_server_sees_the_environment_what_is_added_for_all_and_its_own(
    there: World,
) -> None:
    await there.connected(tiny(env={"TIDE": "high", "VERBATIM": "${HOME}"}))
    found = [
        await there.text("variable", text=name) for name in ("PATH", "BEACH", "TIDE", "VERBATIM")
    ]
    assert found == [os.environ["PATH"], "north", "high", "${HOME}"]


# ── Calling ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.results")
async def test_answers_keep_text_images_and_structure_and_describe_the_rest(
    there: World,
) -> None:
    await there.connected(tiny())
    seen = await there.call("picture")
    assert seen.text == "look:"
    ((kind, data),) = [(one.media_type, one.data) for one in seen.pictures]
    assert (kind, data) == ("image/png", png(2, 1))
    assert (await there.text("kinds")).splitlines() == [
        '{"tide": "low"}',
        "[audio: audio/wav, 3 bytes]",
        "[resource: map, beach://map]",
        "[resource: beach://log]",
        "low tide",
        "[resource: beach://shell, model/shell, 6 bytes]",
        "[image: image/png, damaged]",
    ]
    failed = await there.call("fail")
    assert (failed.text, failed.is_error) == ("no shells left", True)
    with pytest.raises(McpCallError, match=r"^that is no beach$"):
        await there.call("refuse")


@pytest.mark.req("mcp.results.bounded")
async def test_an_answer_of_any_length_reaches_us_cut_and_one_past_all_bounds_ends_its_server(
    there: World,
) -> None:
    await there.connected(tiny())
    cut = await there.text("long", text=str(10_000_000))
    assert 1_000_000 < len(cut) < 1_100_000
    assert " characters left out …" in cut
    with pytest.raises(McpCallError, match="a line of more than 16777216 bytes"):
        await there.text("long", text=str(20_000_000))
    await there.until(lambda: there.told()[-1] == "connected")
    assert await there.text("echo", text="back") == "back"


@pytest.mark.req("mcp.call.timeout")
@pytest.mark.req("mcp.progress")
async def test_a_call_has_a_deadline_that_moves_as_long_as_it_makes_progress(
    hurried: World,
) -> None:
    await hurried.connected(tiny())
    assert await hurried.text("progress", text="10") == "10 steps"
    with pytest.raises(McpCallError, match="no answer within 2 s; the call was cancelled"):
        await hurried.call("wait")
    assert await hurried.text("echo", text="and on") == "and on"


@pytest.mark.req("mcp.progress.feed")
@pytest.mark.req("mcp.secrets")
async def test_what_a_server_says_about_its_progress_is_heard_before_the_answer(
    there: World,
) -> None:
    said = [
        {"progress": 1, "total": 3, "message": "with a-secret-shell"},
        {"progress": 3, "total": 3, "message": "a-secret-shell " * 1000},
    ]
    heard: list[Progress] = []
    await there.connected(tiny(env={"SECRET": "a-secret-shell"}))
    answer = await there.watched("report", heard.append, text=json.dumps(said))
    assert answer.text == "reported"
    assert [(one.progress, one.total) for one in heard] == [(1, 3), (3, 3)]
    assert heard[0].text == "with ********"
    assert heard[1].text.startswith("******** ******** ")
    assert heard[1].text.endswith("…")
    assert len(heard[1].text) == 500
    count = len(heard)
    assert await there.text("progress", text="1") == "1 steps"
    assert len(heard) == count, "another call's is not heard"


@pytest.mark.req("mcp.progress.bounded")
async def test_a_server_that_floods_us_with_progress_is_heard_ten_times_a_second(
    there: World,
) -> None:
    heard: list[Progress] = []
    await there.connected(tiny())
    steps = int((await there.watched("flood", heard.append, text="0.5")).text)
    assert steps > 500
    assert heard[-1].text == f"step {steps}", "the last word is never lost"
    assert 2 <= len(heard) <= 50
    assert [one.progress for one in heard] == sorted({one.progress or 0 for one in heard})


@pytest.mark.req("mcp.progress.values")
async def test_no_number_a_server_can_write_does_more_than_end_that_server(
    there: World,
) -> None:
    numbers = ["NaN", "Infinity", "-Infinity", "-1", "1e999", "true", '"3"', "null", "[]"]
    said = ",".join(f'{{"progress": {one}, "total": {one}}}' for one in numbers)
    heard: list[Progress] = []
    await there.connected(tiny(), tiny("--any", "x", name="other"))
    assert (await there.watched("report", heard.append, text=f"[{said}]")).text == "reported"
    assert heard == []
    huge = f'[{{"progress": 1{"0" * 400}}}]'
    with suppress(McpCallError):
        await there.watched("report", heard.append, text=huge)
    assert heard == []
    assert await there.text("other__echo", text="still here") == "still here"
    await there.until(lambda: there.statuses() == ["connected", "connected"])
    assert await there.text("echo", text="and on") == "and on"


@pytest.mark.req("mcp.cancel")
async def test_a_call_nobody_waits_for_is_cancelled_at_the_server(
    tmp_path: Path, there: World
) -> None:
    record = tmp_path / "record"
    await there.connected(tiny("--record", str(record)))
    call = asyncio.ensure_future(there.call("wait"))
    await there.until(lambda: '"wait"' in record.read_text())
    call.cancel()
    await there.until(lambda: "notifications/cancelled" in record.read_text())
    heard = [json.loads(line) for line in record.read_text().splitlines()]
    (made,) = [one["id"] for one in heard if one.get("params", {}).get("name") == "wait"]
    (cancelled,) = [one for one in heard if one["method"] == "notifications/cancelled"]
    assert cancelled["params"]["requestId"] == made


@pytest.mark.req("mcp.tools.changed")
async def test_a_server_that_says_its_tools_have_changed_is_asked_for_them(there: World) -> None:
    await there.connected(tiny())
    assert "extra" not in there.offered()
    await there.call("more")
    await there.until(lambda: "extra" in there.offered())
    assert "extra" in there.events[-1].tools


@pytest.mark.req("mcp.calls.bounded")
async def test_past_the_bound_a_call_is_refused(hurried: World) -> None:
    await hurried.connected(tiny())
    waiting = asyncio.ensure_future(hurried.call("wait"))
    await asyncio.sleep(0)
    with pytest.raises(McpCallError, match="1 calls are under way; try again later"):
        await hurried.call("echo")
    waiting.cancel()


# ── Dying ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.crash")
@pytest.mark.req("mcp.restart")
@pytest.mark.req("mcp.secrets")
async def test_a_server_that_crashes_fails_its_calls_at_once_and_is_started_again(
    there: World,
) -> None:
    await there.connected(tiny(env={"SECRET": "a-secret-shell"}))
    before = await there.text("pid")
    other = asyncio.ensure_future(there.call("wait"))
    await asyncio.sleep(0)
    with pytest.raises(McpCallError) as caught:
        await there.call("crash")
    reason = "its process ended with status 3 (stderr: out of sand, with ********)"
    assert str(caught.value) == reason
    with pytest.raises(McpCallError, match="status 3"):
        await other
    assert await there.failed() == reason
    await there.until(lambda: there.told()[-1] == "connected")
    assert there.told() == ["connecting", "connected", "failed", "connecting", "connected"]
    assert await there.text("pid") != before


@pytest.mark.req("mcp.crash")
async def test_a_server_killed_between_calls_is_noticed_without_one(there: World) -> None:
    await there.connected(tiny(auto_restart=False))
    os.kill(int(await there.text("pid")), signal.SIGKILL)
    assert await there.failed() == "its process was killed by SIGKILL"
    assert there.offered() == []
    with pytest.raises(McpCallError, match="killed by SIGKILL"):
        await there.call("echo")


@pytest.mark.req("mcp.teardown")
async def test_letting_go_of_a_server_ends_it_and_all_that_it_started(there: World) -> None:
    await there.connected(tiny("--stubborn"))
    pids = [int(await there.text("pid")), int(await there.text("child"))]
    host = there.mcp.link.pid
    assert host is not None
    assert all(is_alive(pid) for pid in pids)
    there.mcp.release("crab")
    await there.until(lambda: not any(is_alive(pid) for pid in pids))
    await there.until(lambda: children(host) == [])
    await there.until(lambda: there.mcp.link.servers == [])
    assert there.told()[-1] == "disconnected"


@pytest.mark.req("mcp.teardown")
async def test_at_the_end_neither_host_nor_server_is_left(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        await there.connected(tiny("--stubborn"), tiny("--any", "other", name="other"))
        pids = [int(await there.text("pid")), int(await there.text("other__pid"))]
        pids.append(int(await there.text("child")))
        host = there.mcp.link.pid
        assert host is not None
    assert not any(is_alive(pid) for pid in [host, *pids])
    assert host not in children(os.getpid())


# ── The host ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.host.death")
async def test_a_host_that_dies_takes_all_servers_along_and_all_come_back(there: World) -> None:
    await there.connected(tiny("--stubborn"))
    pids = [int(await there.text("pid")), int(await there.text("child"))]
    waiting = asyncio.ensure_future(there.call("wait"))
    await asyncio.sleep(0)
    host = there.mcp.link.pid
    assert host is not None
    os.kill(host, signal.SIGKILL)
    with pytest.raises(McpCallError, match="the host process of MCP servers is gone: it was k"):
        await waiting
    assert "signal 9" in await there.failed()
    await there.until(lambda: not any(is_alive(pid) for pid in pids))
    await there.until(lambda: there.told()[-1] == "connected")
    assert await there.text("echo", text="back") == "back"
    assert there.mcp.link.pid != host


@pytest.mark.req("mcp.host.hangs")
async def test_a_host_that_does_not_answer_is_replaced(
    hurried: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crabtalk.mcp.service.GRACE", 0.5)
    await hurried.connected(tiny())
    host = hurried.mcp.link.pid
    assert host is not None
    os.kill(host, signal.SIGSTOP)
    with pytest.raises(McpCallError, match="does not answer"):
        await hurried.call("echo")
    await hurried.failed()
    await hurried.until(lambda: hurried.told()[-1] == "connected")
    assert await hurried.text("echo", text="back") == "back"


@pytest.mark.req("mcp.host.late")
async def test_there_is_no_host_before_a_server_is_declared(tmp_path: Path) -> None:
    async with world(tmp_path) as there:
        there.declare()
        await there.mcp.settled("crab")
        assert there.mcp.link.pid is None


# ── Want of use, and patience ───────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.idle")
async def test_an_unused_server_is_stopped_and_comes_back_on_its_next_call(there: World) -> None:
    await there.connected(tiny(idle_timeout=0.2))
    pid = int(await there.text("pid"))
    await there.until(lambda: there.told()[-1] == "disconnected")
    await there.until(lambda: not is_alive(pid))
    assert "echo" in there.offered()
    assert int(await there.text("pid")) != pid


@pytest.mark.req("mcp.wait")
async def test_the_first_turn_waits_for_servers_that_connect(tmp_path: Path, there: World) -> None:
    go = tmp_path / "go"
    there.declare(tiny("--until", str(go)))
    first = asyncio.ensure_future(there.mcp.settled("crab"))
    await asyncio.sleep(0)
    assert not first.done()
    go.touch()
    await first
    assert there.statuses() == ["connected"]


@pytest.mark.req("mcp.wait")
@pytest.mark.clock
async def test_the_first_turn_waits_for_no_server_that_does_not_connect(hurried: World) -> None:
    hurried.declare(tiny("--silent"))
    started = time.monotonic()
    await hurried.mcp.settled("crab")
    assert 0.99 <= time.monotonic() - started < 10  # a timer counts in whole milliseconds
    # It has waited in vain once, and does not again.
    again = asyncio.ensure_future(hurried.mcp.settled("crab"))
    await asyncio.sleep(0)
    assert again.done()


# ── Many ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.shared")
async def test_fifty_agents_that_declare_the_same_share_one_process(there: World) -> None:
    agents = [f"crab{number}" for number in range(50)]
    for agent in agents:
        there.declare(tiny(name=f"beach of {agent}"), agent=agent)
    await there.until(lambda: all(there.statuses(agent) == ["connected"] for agent in agents))
    pids = await asyncio.gather(*(there.text("pid", agent) for agent in agents))
    assert len(set(pids)) == 1
    assert there.mcp.link.servers == [int(pids[0])]


@pytest.mark.req("mcp.concurrent")
async def test_twenty_servers_are_connected_and_called_side_by_side(there: World) -> None:
    servers = [tiny("--any", str(number), name=f"b{number}") for number in range(20)]
    await there.connected(*servers)
    pids = await asyncio.gather(*(there.text(f"b{number}__pid") for number in range(20)))
    assert len(set(pids)) == 20
    assert sorted(map(int, pids)) == sorted(there.mcp.link.servers)
