"""MCP servers of agents and components: through the socket, with real server processes."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from crabtalk.client import Client, connect
from crabtalk.daemon.events.feed import FeedLimits
from crabtalk.daemon.events.mcp_feed import McpFeed
from crabtalk.mcp import PeerStateChanged, PeerStatus
from crabtalk.protocol import wire
from crabtalk.runtime import Clock, ToolDispatch
from tests.daemon.in_process_daemon import (
    CONFIG,
    PATIENCE,
    FunctionTools,
    InProcessDaemon,
    collect_events,
    expect_error_code,
    follow_feed,
    run_daemon,
    run_tool_calls,
    script_tool_calls,
    wait_for_event,
)
from tests.daemon.test_images import extract_images
from tests.daemon.test_process import spawn_daemon as process
from tests.mcp.http_server_process import run_http_server
from tests.mcp.tiny_server import build_png
from tests.mcp.world import TINY_SERVER, is_alive, list_children
from tests.service.test_mcp_runner import run_component

pytestmark = [pytest.mark.one_loop, pytest.mark.asyncio(loop_scope="module")]

PROMPT = 'prompt = "You are crab."\n'
ENDED = (wire.MCP_EVENT_KIND_CONNECTED, wire.MCP_EVENT_KIND_FAILED)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessDaemon]:
    """A shared daemon, because its host process takes a second to start."""

    async def watch(call: ToolDispatch) -> str:
        """A tool that waits until a server has the tool `extra`."""
        peers = [peer for _, peer in shared.daemon.mcp.list_states()]
        await poll_until(lambda: any(tool.name == "extra" for peer in peers for tool in peer.tools))
        return "it has changed"

    hooks = {"test": FunctionTools(watch=watch)}
    async with run_daemon(tmp_path_factory.mktemp("shared"), agents={}, hooks=hooks) as shared:
        yield shared


@asynccontextmanager
async def run_with_agents(
    daemon: InProcessDaemon, agents: Mapping[str, str]
) -> AsyncIterator[Client]:
    """A client of the daemon with these agents. Removes them and their conversations afterwards."""
    daemon.model.reset()
    for name, text in agents.items():
        daemon.agent_file(name).write_text(text)
    try:
        async with daemon.client() as client:
            await client.reload()
            yield client
    finally:
        async with daemon.client() as client:
            for row in (await client.list_conversations()).conversations:
                await client.delete_conversation(row.file_path)
            for file in [*daemon.home.glob("agents/*.toml"), *daemon.home.glob("run/*.port")]:
                file.unlink()
            await client.reload()
        mcp = daemon.daemon.mcp
        await poll_until(lambda: not mcp.host.server_pids and not list(mcp.list_states()))


def format_declaration(name: str, *options: str, **settings: Any) -> str:
    """The TOML of a server in an agent's file."""
    lines = ["[[mcps]]", f'name = "{name}"']
    for key, value in (make_server(name, *options) | settings).items():
        if key != "name":
            lines.append(f"{key} = {format_inline(value)}")
    return "\n".join(lines) + "\n"


def make_server(name: str, *options: str) -> dict[str, Any]:
    """A server as a client sends it."""
    return {"name": name, "command": sys.executable, "args": ["-S", str(TINY_SERVER), *options]}


def format_inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(v)}" for key, v in value.items()) + " }"
    return json.dumps(value)


def list_offered_tools(daemon: InProcessDaemon, number: int = -1) -> list[str]:
    """The tools that a model was offered."""
    return [tool["function"]["name"] for tool in daemon.model.requests[number]["tools"]]


async def call_text_tool(client: Client, agent: str, tool: str, text: str = "") -> str:
    (result,) = await run_tool_calls(client, agent, [(tool, {"text": text})])
    assert not result.is_error, result.output
    return result.output


async def collect_mcp_events(
    client: Client, *wanted: tuple[str, str, int]
) -> list[wire.McpEventMsg]:
    """The events up to the last of the wanted ones: agent, name and kind of each."""
    received: list[wire.McpEventMsg] = []
    missing = set(wanted)
    async with asyncio.timeout(PATIENCE), aclosing(client.subscribe_mcp_events()) as events:
        while missing:
            event = await anext(events)
            received.append(event)
            missing.discard((event.agent, event.name, event.kind))
    return received


async def poll_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition in another process, without using all the CPU time."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


# ── Tools ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.tools")
@pytest.mark.req("mcp.wait")
async def test_a_tool_of_a_server_is_a_tool_of_the_agent_that_declares_it(
    daemon: InProcessDaemon,
) -> None:
    """Also in its first turn, which waits for starting servers."""
    agents = {"crab": PROMPT + format_declaration("beach"), "twin": PROMPT}
    async with run_with_agents(daemon, agents) as client:
        assert await call_text_tool(client, "crab", "echo", "hello") == "hello"
        (tool,) = [
            tool["function"]
            for tool in daemon.model.requests[0]["tools"]
            if tool["function"]["name"] == "echo"
        ]
        assert tool["description"] == "Does echo."
        assert tool["parameters"]["properties"] == {"text": {"type": "string"}}
        (result,) = await run_tool_calls(client, "twin", [("echo", {})])
        assert "echo" not in list_offered_tools(daemon)
        assert (result.output, result.is_error) == ("tool not registered: echo", True)


@pytest.mark.req("mcp.delegated")
async def test_a_worker_has_its_callers_servers_and_no_second_process(
    daemon: InProcessDaemon,
) -> None:
    task = {"tasks": [{"message": '!tool echo {"text": "ebb"}\n!then\n!say done'}]}
    agents = {"crab": PROMPT + format_declaration("tides")}
    async with run_with_agents(daemon, agents) as client:
        assert await call_text_tool(client, "crab", "echo", "first") == "first"
        before = list(daemon.daemon.mcp.host.server_pids)
        await client.send("crab", f"!tool delegate {json.dumps(task)}\n!then\n!say done")
        rows = (await client.list_conversations()).conversations
        (worker,) = [row for row in rows if row.sender.startswith("delegate:")]
        page = await client.list_messages(worker.agent, sender=worker.sender)
        assert [m.content for m in page.messages if m.role == "tool"] == ["ebb"]
        assert daemon.daemon.mcp.host.server_pids == before


@pytest.mark.req("mcp.results")
@pytest.mark.req("mcp.errors")
async def test_answers_of_servers_reach_the_agent_and_failures_have_prefixes(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT + format_declaration("beach")}
    async with run_with_agents(daemon, agents) as client:
        results = await run_tool_calls(
            client,
            "crab",
            [
                ("fail", {}),
                ("refuse", {}),
                ("echo", "[1]"),
                ("echo", '{"text": "\\ud800"}'),
                ("picture", {"text": "9000"}),
                ("mcp", {"name": "echo", "args": '{"text": "by way of mcp"}'}),
                ("mcp", {"name": "swim"}),
                ("beach__echo", {"text": "in full"}),
            ],
        )
        assert [(result.output, result.is_error) for result in results[:3]] == [
            ("mcp tool error: no shells left", True),
            ("mcp call failed: that is no beach", True),
            ("invalid arguments: they must be a JSON object", True),
        ]
        assert results[3].output.startswith("invalid arguments: ")
        assert results[4].output == "look:\n[image: png, 9000x1 pixels, too large to be shown]"
        assert [(result.output, result.is_error) for result in results[5:]] == [
            ("by way of mcp", False),
            ("tool not available: swim", True),
            ("in full", False),
        ]
        assert "mcp" not in list_offered_tools(daemon)
        (listed,) = await run_tool_calls(client, "crab", [("mcp", {"name": ""})])
        assert "echo: Does echo.\n" in listed.output
        await client.send("crab", script_tool_calls([("picture", {})]), sender="viewer")
        assert extract_images(daemon.model.requests[-1]) == [build_png(2, 1)]


@pytest.mark.req("mcp.crash")
async def test_a_server_that_crashes_in_a_call_fails_the_call_and_not_the_turn(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT + format_declaration("beach")}
    async with run_with_agents(daemon, agents) as client:
        crashed, echoed = await run_tool_calls(
            client, "crab", [("crash", {})], [("bash", {"command": ":"})]
        )
        assert crashed.output.startswith("mcp call failed: its process ended with status 3")
        assert not echoed.is_error
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        assert await call_text_tool(client, "crab", "echo", "back") == "back"


@pytest.mark.req("mcp.cancel")
async def test_killing_a_run_cancels_its_call_at_the_server(
    tmp_path: Path, daemon: InProcessDaemon
) -> None:
    record = tmp_path / "record"
    agents = {"crab": PROMPT + format_declaration("beach", "--record", str(record))}
    async with run_with_agents(daemon, agents) as client:
        stream = client.stream("crab", script_tool_calls([("wait", {})]))
        await wait_for_event(stream, wire.ToolStartEvent)
        await poll_until(lambda: record.exists() and '"wait"' in record.read_text())
        async with daemon.client() as other:
            await other.kill("crab")
        await poll_until(lambda: "notifications/cancelled" in record.read_text())
        await collect_events(stream)
        assert await call_text_tool(client, "crab", "echo", "and on") == "and on"


@pytest.mark.req("mcp.progress.feed")
async def test_progress_reaches_subscribers_of_all_kinds_but_not_the_log(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT + format_declaration("beach")}
    async with (
        run_with_agents(daemon, agents) as client,
        follow_feed(daemon, all_kinds=True) as feed,
        follow_feed(daemon) as plain,
    ):
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        (result,) = await run_tool_calls(client, "crab", [("walk", {"text": "4"})], sender="bo")
        assert result.output == "walked 4 steps"
        events = await feed.wait_until_done()
        progress = [event for event in events if event.kind == wire.TOOL_PROGRESS]
        assert {(event.agent, event.sender, event.content) for event in progress} == {
            ("crab", "bo", "walking")
        }
        assert {event.call_id for event in progress} == {result.call_id}
        assert {event.run_id for event in progress} == {events[0].run_id}
        assert (progress[0].progress, progress[0].total) == (0, 4)
        assert progress[0].HasField("progress"), "zero progress is not unknown"
        assert progress[-1].progress == 3, "the last progress event arrives"
        kinds = [event.kind for event in events]
        assert kinds.index(wire.TOOL_START) < kinds.index(wire.TOOL_PROGRESS)
        assert max(i for i, kind in enumerate(kinds) if kind == wire.TOOL_PROGRESS) < kinds.index(
            wire.TOOL_RESULT
        )
        assert wire.TOOL_PROGRESS not in [event.kind for event in await plain.wait_until_done()]
        (log,) = (daemon.home / "sessions").glob("*.jsonl")
        assert "walked 4 steps" in log.read_text()
        assert "walking" not in log.read_text()


@pytest.mark.req("mcp.progress.feed")
async def test_progress_of_a_delegated_run_names_its_parent(
    daemon: InProcessDaemon,
) -> None:
    task = {"tasks": [{"message": '!tool progress {"text": "2"}\n!then\n!say done'}]}
    agents = {"crab": PROMPT + format_declaration("tides")}
    async with (
        run_with_agents(daemon, agents) as client,
        follow_feed(daemon, all_kinds=True) as feed,
    ):
        await collect_mcp_events(client, ("crab", "tides", wire.MCP_EVENT_KIND_CONNECTED))
        await client.send("crab", f"!tool delegate {json.dumps(task)}\n!then\n!say done")
        events = await feed.wait_until_done(runs=2)
        progress = [event for event in events if event.kind == wire.TOOL_PROGRESS]
        assert [(event.content, event.progress, event.total) for event in progress] == [
            ("1/2", 1, 2),
            ("2/2", 2, 2),
        ]
        assert {event.parent.agent for event in progress} == {"crab"}
        assert {event.parent.run_id for event in progress} == {events[0].run_id}


@pytest.mark.req("mcp.progress.feed")
async def test_a_killed_call_reports_no_more_progress(daemon: InProcessDaemon) -> None:
    agents = {"crab": PROMPT + format_declaration("beach")}
    async with (
        run_with_agents(daemon, agents) as client,
        daemon.client() as other,
        follow_feed(daemon, all_kinds=True) as feed,
    ):
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        stream = client.stream("crab", script_tool_calls([("flood", {"text": "0.8"})]))
        await wait_for_event(stream, wire.ToolStartEvent)
        await poll_until(lambda: any(event.kind == wire.TOOL_PROGRESS for event in feed.events))
        await other.kill("crab")
        await collect_events(stream)
        # The server answers in order, so this comes after all progress of the other call.
        assert await call_text_tool(client, "crab", "echo", "and on") == "and on"
        kinds = [event.kind for event in await feed.wait_until_done(runs=2)]
        assert wire.TOOL_PROGRESS not in kinds[kinds.index(wire.DONE) :]


@pytest.mark.req("mcp.tools.turn")
@pytest.mark.req("mcp.tools.changed")
async def test_a_turn_keeps_its_tools_and_the_next_turn_has_the_new_ones(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT + format_declaration("beach")}
    async with run_with_agents(daemon, agents) as client:
        _, watched = await run_tool_calls(client, "crab", [("more", {})], [("watch", {})])
        assert watched.output == "it has changed"
        assert (
            list_offered_tools(daemon, 0)
            == list_offered_tools(daemon, 1)
            == list_offered_tools(daemon, 2)
        )
        assert "extra" not in list_offered_tools(daemon)
        await client.send("crab", "!say and now?")
        assert "extra" in list_offered_tools(daemon)


# ── Bounds ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.scope")
async def test_a_whitelist_applies_to_tools_of_servers_by_either_name(
    daemon: InProcessDaemon,
) -> None:
    agents = {
        "crab": PROMPT
        + 'tools = ["echo", "sand__pid"]\n'
        + format_declaration("beach")
        + format_declaration("sand"),
        "twin": PROMPT + 'skills = ["swim"]\n' + format_declaration("beach"),
    }
    async with run_with_agents(daemon, agents) as client:
        calls = [("echo", {"text": "yes"}), ("sand__pid", {}), ("pid", {}), ("beach__pid", {})]
        results = await run_tool_calls(client, "crab", calls)
        assert list_offered_tools(daemon) == ["echo", "sand__pid"]
        assert [result.is_error for result in results] == [False, False, True, True]
        assert results[2].output == "tool not available: pid"
        prompt = daemon.model.requests[0]["messages"][0]["content"]
        assert "mcp servers: beach, sand" in prompt
        # A declared server is allowed even if the agent's skills are restricted.
        assert await call_text_tool(client, "twin", "echo", "yes") == "yes"


@pytest.mark.req("mcp.approval")
async def test_a_pattern_can_ask_before_every_tool_of_every_server(daemon: InProcessDaemon) -> None:
    agents = {
        "crab": PROMPT + 'approve = ["mcp:*"]\n' + format_declaration("beach"),
        "twin": PROMPT + 'approve = ["beach__p*"]\n' + format_declaration("beach"),
    }
    async with run_with_agents(daemon, agents) as client:
        script = script_tool_calls([("echo", {"text": "one"}), ("bash", {"command": ":"})])
        stream = client.stream("crab", script)
        approval = await wait_for_event(stream, wire.AskUserEvent)
        assert [question.header for question in approval.questions] == ["echo"]
        async with daemon.client() as other:
            await other.reply_to_ask("crab", "always here")
        results = [e for e in await collect_events(stream) if isinstance(e, wire.ToolResultEvent)]
        assert not any(result.is_error for result in results)
        again = await run_tool_calls(client, "crab", [("beach__echo", {"text": "two"})])
        assert [result.output for result in again] == ["two"], "it is the same tool"
        stream = client.stream("twin", script_tool_calls([("pid", {})]))
        await wait_for_event(stream, wire.AskUserEvent)
        async with daemon.client() as other:
            await other.reply_to_ask("twin", "no")
        (result,) = [e for e in await collect_events(stream) if isinstance(e, wire.ToolResultEvent)]
        assert result.output == "permission denied: the user said no"


@pytest.mark.req("mcp.names.built_in")
async def test_a_server_cannot_replace_a_built_in_tool(daemon: InProcessDaemon) -> None:
    agents = {"crab": PROMPT + format_declaration("beach", "--tools", "bash,swim")}
    async with run_with_agents(daemon, agents) as client:
        ours, theirs, swim = await run_tool_calls(
            client, "crab", [("bash", {"command": "echo ours"}), ("beach__bash", {}), ("swim", {})]
        )
        assert "ours" in ours.output
        assert (theirs.output, swim.output) == ("bash", "swim")
        assert {"bash", "beach__bash", "swim"} <= set(list_offered_tools(daemon))


@pytest.mark.req("mcp.env")
@pytest.mark.req("mcp.wait")
async def test_environment_from_the_config_reaches_servers_started_later(
    tmp_path: Path,
) -> None:
    """Servers that start with the daemon have it too; its first turn waits for them."""
    config = CONFIG + '[env]\nBEACH = "north"\n'
    agents = {
        "crab": PROMPT + format_declaration("beach"),
        "twin": PROMPT + format_declaration("b", "--any", "x"),
    }
    async with (
        run_daemon(tmp_path, agents=agents, config=config, hooks={}) as daemon,
        daemon.client() as client,
    ):
        assert await call_text_tool(client, "crab", "variable", "BEACH") == "north"
        daemon.write_config((daemon.home / "config.toml").read_text().replace("north", "south"))
        await client.reload()
        await client.upsert_mcp("crab", make_server("sand", "--any", "y"))
        assert await call_text_tool(client, "crab", "beach__variable", "BEACH") == "north"
        assert await call_text_tool(client, "crab", "sand__variable", "BEACH") == "south"
        daemon.write_config((daemon.home / "config.toml").read_text().replace('"south"', "7"))
        assert await expect_error_code(client.reload()) == 500


# ── Requests ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.list")
@pytest.mark.req("mcp.secrets")
async def test_servers_are_listed_with_their_state_and_without_their_secrets(
    daemon: InProcessDaemon,
) -> None:
    agents = {
        "crab": PROMPT + format_declaration("beach", env={"SECRET": "a-secret-shell"}),
        "twin": PROMPT + format_declaration("dead", "--die", auto_restart=False),
    }
    async with run_with_agents(daemon, agents) as client:
        await collect_mcp_events(client, ("crab", "beach", ENDED[0]), ("twin", "dead", ENDED[1]))
        beach, dead = (await client.list_mcps()).mcps
        assert (beach.name, beach.source, beach.status) == ("beach", "crab", wire.CONNECTED)
        assert (beach.command, list(beach.args)) == (sys.executable, ["-S", str(TINY_SERVER)])
        assert (dict(beach.env), beach.auth) == ({"SECRET": "********"}, "")
        assert beach.tool_count > 5
        assert (dead.status, dead.auto_restart, dead.tool_count) == (wire.FAILED, False, 0)
        assert dead.error.startswith("its process ended with status 7 (stderr: ")
        assert [server.name for server in (await client.list_mcps("twin")).mcps] == ["dead"]
        (problem,) = (await client.get_stats()).problems
        assert problem == f"the MCP server dead of twin failed: {dead.error}"
        assert await expect_error_code(client.list_mcps("squid")) == 404


@pytest.mark.req("mcp.upsert")
@pytest.mark.req("mcp.secrets")
async def test_servers_are_added_changed_and_removed_in_the_agents_file(
    daemon: InProcessDaemon,
) -> None:
    file = "# My crab.\n" + PROMPT + "\n# Knows the beach.\n" + format_declaration("beach")
    async with (
        run_with_agents(daemon, {"crab": file}) as client,
    ):
        path = daemon.home / "agents" / "crab.toml"
        added = await client.upsert_mcp(
            "crab", make_server("sand", "--any", "1") | {"env": {"TOKEN": "s3cret-token"}}
        )
        assert (added.name, added.source, dict(added.env)) == (
            "sand",
            "crab",
            {"TOKEN": "********"},
        )
        assert path.read_text().startswith(file)
        assert "s3cret-token" in path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        assert await call_text_tool(client, "crab", "sand__variable", "TOKEN") == "s3cret-token"
        # As a client sends it: unchanged secrets are masked.
        masked = {"name": "sand", "command": added.command, "args": [*added.args, "--banner"]}
        await client.upsert_mcp("crab", masked | {"env": dict(added.env)})
        await collect_mcp_events(client, ("crab", "sand", wire.MCP_EVENT_KIND_CONNECTED))
        assert await call_text_tool(client, "crab", "sand__variable", "TOKEN") == "s3cret-token"
        await client.delete_mcp("crab", "sand")
        assert path.read_text().strip() == file.strip()
        assert [server.name for server in (await client.list_mcps()).mcps] == ["beach"]
        refusals = [
            (client.upsert_mcp("squid", make_server("x")), 404),
            (client.upsert_mcp("crab", {"name": "x"}), 400),
            (client.upsert_mcp("crab", "not JSON"), 400),
            (client.upsert_mcp("crab", make_server("x") | {"env": {"T": "********"}}), 400),
            (client.delete_mcp("crab", "sand"), 404),
            (client.delete_mcp("squid", "beach"), 404),
        ]
        assert [await expect_error_code(request) for request, _ in refusals] == [
            c for _, c in refusals
        ]
        assert path.read_text().strip() == file.strip()


@pytest.mark.req("mcp.events")
async def test_a_subscriber_gets_the_states_of_servers_and_then_their_changes(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT + format_declaration("beach"), "twin": PROMPT}
    async with run_with_agents(daemon, agents) as client:
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        async with daemon.client() as other, aclosing(other.subscribe_mcp_events()) as events:
            first = await read_next_event(events)
            assert (first.kind, first.agent, first.name) == (
                wire.MCP_EVENT_KIND_CONNECTED,
                "crab",
                "beach",
            )
            assert "echo" in first.tools
            assert first.timestamp.endswith("Z")
            await client.upsert_mcp("twin", make_server("dead", "--die") | {"auto_restart": False})
            later = [await read_next_event(events) for _ in range(2)]
            await client.delete_mcp("crab", "beach")
            later.append(await read_next_event(events))
        assert [(e.agent, e.name, e.kind) for e in later] == [
            ("twin", "dead", wire.MCP_EVENT_KIND_CONNECTING),
            ("twin", "dead", wire.MCP_EVENT_KIND_FAILED),
            ("crab", "beach", wire.MCP_EVENT_KIND_DISCONNECTED),
        ]
        assert "status 7" in later[1].error
        await poll_until(lambda: len(daemon.daemon.mcp_feed) == 0)


async def read_next_event(events: AsyncGenerator[wire.McpEventMsg, None]) -> wire.McpEventMsg:
    async with asyncio.timeout(PATIENCE):
        return await anext(events)


@pytest.mark.req("mcp.events.bounded")
async def test_a_subscriber_that_falls_behind_gets_the_latest_events(tmp_path: Path) -> None:
    feed = McpFeed(FeedLimits(feeds=1, feed_events=2), Clock())
    events = feed.subscribe([PeerStateChanged(PeerStatus.CONNECTING, "crab", "first")])
    assert (await anext(events)).name == "first"
    for number in range(100):
        feed.publish(PeerStateChanged(PeerStatus.CONNECTED, "crab", str(number)))
    assert [(await anext(events)).name for _ in range(2)] == ["98", "99"]
    with pytest.raises(Exception, match="1 feeds are open already; close one"):
        await anext(feed.subscribe([]))
    await events.aclose()
    assert len(feed) == 0


@pytest.mark.req("mcp.rename")
@pytest.mark.req("mcp.reload")
async def test_neither_a_rename_nor_a_reload_restarts_a_server(daemon: InProcessDaemon) -> None:
    agents = {"crab": PROMPT, "twin": PROMPT + format_declaration("beach")}
    async with run_with_agents(daemon, agents) as client:
        pid = await call_text_tool(client, "twin", "pid")
        await client.rename_agent("twin", "hermit")
        assert await call_text_tool(client, "hermit", "pid") == pid
        await client.reload()
        assert await call_text_tool(client, "hermit", "pid") == pid
        file = daemon.agent_file("hermit")
        file.write_text(file.read_text() + format_declaration("sand", "--tools", "dig"))
        await client.reload()
        await collect_mcp_events(client, ("hermit", "sand", wire.MCP_EVENT_KIND_CONNECTED))
        assert await call_text_tool(client, "hermit", "dig") == "dig"
        assert await call_text_tool(client, "hermit", "pid") == pid
        await client.delete_agent("hermit")
        await poll_until(lambda: not is_alive(int(pid)))


@pytest.mark.req("mcp.reload")
async def test_a_reload_tries_failed_servers_again(tmp_path: Path, daemon: InProcessDaemon) -> None:
    go = tmp_path / "bin"
    agents = {"crab": PROMPT + f'[[mcps]]\nname = "b"\ncommand = "{go}"\nauto_restart = false\n'}
    async with run_with_agents(daemon, agents) as client:
        await collect_mcp_events(client, ("crab", "b", wire.MCP_EVENT_KIND_FAILED))
        go.write_text(f'#!/bin/sh\nexec {sys.executable} -S {TINY_SERVER} "$@"\n')
        go.chmod(0o700)
        await client.reload()
        await collect_mcp_events(client, ("crab", "b", wire.MCP_EVENT_KIND_CONNECTED))


# ── Components ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.ports")
@pytest.mark.req("mcp.ports.scope")
@pytest.mark.timeout(120)
async def test_a_component_restarted_on_another_port_is_usable_again(
    daemon: InProcessDaemon,
) -> None:
    agents = {"crab": PROMPT, "twin": PROMPT + 'tools = ["bash"]\n'}
    async with run_with_agents(daemon, agents) as client:
        file = daemon.home / "run" / "beach.port"
        async with run_http_server() as first, run_http_server() as second:
            file.write_text(f"{first.port}\n")
            await collect_mcp_events(client, ("", "beach", wire.MCP_EVENT_KIND_CONNECTED))
            (sum_,) = await run_tool_calls(client, "crab", [("add", {"a": 1, "b": 2})])
            assert sum_.output == "3"
            (server,) = (await client.list_mcps()).mcps
            assert (server.name, server.source, server.source_kind) == ("beach", "", wire.EXTERNAL)
            (denied,) = await run_tool_calls(client, "twin", [("add", {"a": 1, "b": 2})])
            assert (denied.output, denied.is_error) == ("tool not registered: add", True)
            async with aclosing(client.subscribe_mcp_events()) as events:
                assert (await read_next_event(events)).kind == wire.MCP_EVENT_KIND_CONNECTED
                await first.kill()
                file.write_text(f"{second.port}\n")
                while (await read_next_event(events)).kind != wire.MCP_EVENT_KIND_CONNECTED:
                    pass
            (sum_,) = await run_tool_calls(client, "crab", [("add", {"a": 2, "b": 2})])
            assert sum_.output == "4"


@pytest.mark.req("mcp.ports")
@pytest.mark.req("component.killed")
@pytest.mark.timeout(120)
async def test_the_component_of_the_docs_can_restart_without_a_change_to_the_daemon(
    daemon: InProcessDaemon,
) -> None:
    rolls = [("roll", {"sides": 1, "times": 2})]
    agents = {"crab": PROMPT}
    async with run_with_agents(daemon, agents) as client:
        async with run_component(daemon.home) as dice:
            await collect_mcp_events(client, ("", "dice", wire.MCP_EVENT_KIND_CONNECTED))
            (rolled,) = await run_tool_calls(client, "crab", rolls)
            assert not rolled.is_error, rolled.output
            dice.kill()
            await dice.wait()
            # Its port file is still there, but no process listens on the port.
            async with asyncio.timeout(PATIENCE):
                while (await client.list_mcps()).mcps:
                    await asyncio.sleep(0.01)
        async with run_component(daemon.home):
            await collect_mcp_events(client, ("", "dice", wire.MCP_EVENT_KIND_CONNECTED))
            (again,) = await run_tool_calls(client, "crab", rolls)
            assert again.output == rolled.output


# ── Older files ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.req("mcp.migration")
async def test_servers_of_a_shared_table_are_moved_to_the_agents_that_name_them(
    tmp_path: Path,
) -> None:
    line = make_server("beach")
    table = f'[mcps.beach]\ncommand = "{line["command"]}"\nargs = {json.dumps(line["args"])}\n'
    config = f'# Mine.\n{CONFIG}\n{table}\n[mcps.unused]\ncommand = "x"\n'
    agents = {
        "crab": f'# A crab.\n{PROMPT}mcps = ["beach"]  # the usual\nthinking = false\n',
        "twin": f'{PROMPT}mcps = ["gone"]\n',
        "owl": PROMPT,
    }
    async with (
        run_daemon(tmp_path, agents=agents, config=config, hooks={}) as daemon,
        daemon.client() as client,
    ):
        assert await call_text_tool(client, "crab", "echo", "moved") == "moved"
        assert "# A crab.\n" in daemon.agent_file("crab").read_text()
        problems = (await client.get_stats()).problems
        assert any("names the MCP servers gone" in problem for problem in problems)
        assert "[mcps.beach]" in (daemon.home / "config.toml").read_text(), "twin needs help first"
        daemon.agent_file("twin").write_text(PROMPT + 'mcps = ["beach", "unused"]\n')
    async with run_daemon(tmp_path, agents=agents, hooks={}) as daemon, daemon.client() as client:
        names = [(server.source, server.name) for server in (await client.list_mcps()).mcps]
        assert names == [("crab", "beach"), ("twin", "beach"), ("twin", "unused")]
        left = (daemon.home / "config.toml").read_text()
        assert left.startswith("# Mine.\n")
        assert "\n# [mcps.beach]\n" in left
        assert "mcps" not in await daemon.daemon.storage.read_config()
        problems = (await client.get_stats()).problems
        assert not any("names the MCP servers" in problem for problem in problems)


# ── The process ─────────────────────────────────────────────────────────────────────────────────


def prepare_agents(home: Path, **agents: str) -> None:
    (home / "agents").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    for name, text in agents.items():
        (home / "agents" / f"{name}.toml").write_text(text)


@pytest.mark.req("mcp.host.late")
async def test_a_daemon_without_servers_has_no_host_and_no_sdk(home: Path) -> None:
    prepare_agents(home, crab=PROMPT)
    async with (
        process(home, "--tcp", "off") as daemon,
        connect(home=home, timeout=PATIENCE) as client,
    ):
        assert list((await client.list_mcps()).mcps) == []
        assert list_children(daemon.process.pid) == []
        try:
            mapped = Path(f"/proc/{daemon.process.pid}/maps").read_text()
        except PermissionError:
            pytest.skip("the daemon hides its memory from other processes; run this as root")
        assert "pydantic_core" not in mapped


@pytest.mark.req("mcp.start")
async def test_twenty_slow_servers_do_not_delay_the_first_pong(home: Path) -> None:
    servers = "".join(format_declaration(f"b{n}", "--until", f"/nowhere/{n}") for n in range(20))
    prepare_agents(home, crab=PROMPT + servers)
    async with (
        process(home, "--tcp", "off") as daemon,
        connect(home=home, timeout=PATIENCE) as client,
    ):
        await client.ping()
        states = [server.status for server in (await client.list_mcps()).mcps]
        assert states == [wire.CONNECTING] * 20
        (host,) = list_children(daemon.process.pid)
        async with asyncio.timeout(PATIENCE):
            while len(list_children(host)) < 20:
                await client.ping()
        left = [host, *list_children(host)]
        assert await daemon.stop() == 0
        assert not any(is_alive(pid) for pid in left)


@pytest.mark.req("mcp.host.death")
@pytest.mark.req("mcp.teardown")
async def test_a_daemon_that_is_killed_leaves_neither_host_nor_servers(home: Path) -> None:
    prepare_agents(home, crab=PROMPT + format_declaration("beach", "--stubborn"))
    async with (
        process(home, "--tcp", "off") as daemon,
        connect(home=home, timeout=PATIENCE) as client,
    ):
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        (host,) = list_children(daemon.process.pid)
        left = [host, *list_children(host)]
        assert len(left) == 2
        daemon.process.kill()
        async with asyncio.timeout(PATIENCE):
            while any(is_alive(pid) for pid in left):
                await asyncio.sleep(0.01)


@pytest.mark.req("mcp.host.death")
@pytest.mark.slow
async def test_the_death_of_the_host_only_affects_the_servers(
    home: Path,
) -> None:
    prepare_agents(home, crab=PROMPT + format_declaration("beach"))
    async with (
        process(home, "--tcp", "off") as daemon,
        connect(home=home, timeout=PATIENCE) as client,
    ):
        await collect_mcp_events(client, ("crab", "beach", wire.MCP_EVENT_KIND_CONNECTED))
        (host,) = list_children(daemon.process.pid)
        async with aclosing(client.subscribe_mcp_events()) as events:
            await read_next_event(events)
            os.kill(host, 9)
            failed = await read_next_event(events)
            assert failed.kind == wire.MCP_EVENT_KIND_FAILED
            assert "the host process of MCP servers is gone" in failed.error
            kinds = [(await read_next_event(events)).kind for _ in range(2)]
        assert kinds == [wire.MCP_EVENT_KIND_CONNECTING, wire.MCP_EVENT_KIND_CONNECTED]
        await client.ping()
