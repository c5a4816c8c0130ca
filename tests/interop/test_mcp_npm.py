"""Third-party MCP servers: those of the MCP project, from npm, under node.

`make test-interop` installs them; CRABTALK_NPM names the folder that has them.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crabtalk.mcp import McpCallError, McpLimits, McpProgress
from crabtalk.protocol import wire
from crabtalk.storage import McpServerConfig
from tests.daemon.in_process_daemon import follow_feed, run_daemon, run_tool_calls
from tests.mcp.world import McpWorld, is_alive, open_world

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("CRABTALK_NPM", ROOT / ".venv" / "npm")) / "node_modules" / ".bin"

pytestmark = pytest.mark.interop

LONG = "trigger-long-running-operation"
# All its callable tools with sample arguments. One more tool runs only as an MCP task
# and is not offered.
EVERYTHING: dict[str, dict[str, Any]] = {
    "echo": {"message": "hello"},
    "get-annotated-message": {"messageType": "error", "includeImage": True},
    "get-env": {},
    "get-resource-links": {"count": 3},
    "get-resource-reference": {"resourceType": "Blob", "resourceId": 2},
    "get-structured-content": {"location": "Chicago"},
    "get-sum": {"a": 20, "b": 22},
    "get-tiny-image": {},
    "gzip-file-as-resource": {"name": "a.gz", "data": "data:text/plain,beach"},
    "toggle-simulated-logging": {},
    "toggle-subscriber-updates": {},
    LONG: {"duration": 1, "steps": 4},
}


def build_everything_server(name: str = "everything") -> McpServerConfig:
    return McpServerConfig(name, str(BIN / "mcp-server-everything"), ("stdio",))


def build_memory_server(memory_file: Path, name: str = "graph") -> McpServerConfig:
    return McpServerConfig(
        name, str(BIN / "mcp-server-memory"), env={"MEMORY_FILE_PATH": str(memory_file)}
    )


@contextmanager
def serve_over_http(port: int) -> Iterator["subprocess.Popen[str]"]:
    command = [str(BIN / "mcp-server-everything"), "streamableHttp"]
    env = {**os.environ, "PORT": str(port)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stderr=pipe, stdout=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            while "listening" not in (line := process.stderr.readline()):
                assert line, "it did not start"
            yield process
        finally:
            process.kill()


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


async def try_everything(there: McpWorld) -> None:
    """Every listed tool is called and returns the expected answer."""
    assert set(there.list_offered()) == set(EVERYTHING)
    answers = {name: await there.call(name, **given) for name, given in EVERYTHING.items()}
    assert not [name for name, answer in answers.items() if answer.is_error]
    assert answers["echo"].text == "Echo: hello"
    assert "42" in answers["get-sum"].text
    for name in ("get-tiny-image", "get-annotated-message"):
        (picture,) = answers[name].pictures
        assert picture.media_type == "image/png"
        assert picture.data.startswith(b"\x89PNG")
    assert set(json.loads(answers["get-structured-content"].text)) == {
        "temperature",
        "conditions",
        "humidity",
    }
    assert answers["get-resource-links"].text.count("[resource: ") == 3
    assert "[resource: demo://resource/dynamic/blob/2" in answers["get-resource-reference"].text
    assert "completed" in answers[LONG].text
    assert await there.call_for_text("echo", message="größer 🦀") == "Echo: größer 🦀"


async def check_progress(there: McpWorld) -> None:
    received: list[McpProgress] = []
    answer = await there.call_with_progress(LONG, received.append, duration=2, steps=4)
    assert "completed" in answer.text
    assert [(one.progress, one.total) for one in received] == [(step, 4) for step in (1, 2, 3, 4)]
    assert all(one.text for one in received)


async def cancel_and_call_again(there: McpWorld) -> None:
    long = asyncio.ensure_future(there.call(LONG, duration=600, steps=600))
    assert "42" in await there.call_for_text("get-sum", a=40, b=2)
    long.cancel()
    assert "3" in await there.call_for_text("get-sum", a=1, b=2)


@pytest.mark.req("mcp.interop.stdio")
async def test_every_tool_of_server_everything_over_stdio(tmp_path: Path) -> None:
    async with open_world(tmp_path) as there:
        await there.connect(build_everything_server())
        await try_everything(there)
        await check_progress(there)
        await cancel_and_call_again(there)


@pytest.mark.req("mcp.interop.http")
async def test_every_tool_of_server_everything_over_streamable_http(tmp_path: Path) -> None:
    port = find_free_port()
    async with open_world(tmp_path) as there:
        with serve_over_http(port):
            await there.connect(McpServerConfig("everything", url=f"http://127.0.0.1:{port}/mcp"))
            await try_everything(there)
            await check_progress(there)
            await cancel_and_call_again(there)
        with serve_over_http(port):
            # A new process does not know our session, so it never received the call.
            assert "42" in await there.call_for_text("get-sum", a=20, b=22)


@pytest.mark.req("mcp.interop.stdio")
@pytest.mark.req("mcp.progress.feed")
async def test_the_progress_of_server_everything_reaches_a_feed(tmp_path: Path) -> None:
    """Through the whole daemon, to another client than the one that started the turn."""
    command = BIN / "mcp-server-everything"
    agent = f'prompt = "You are crab."\n[[mcps]]\nname = "e"\ncommand = "{command}"\n'
    async with (
        run_daemon(tmp_path, agents={"crab": agent}, hooks={}) as daemon,
        daemon.client() as client,
        follow_feed(daemon, all_kinds=True) as feed,
    ):
        (result,) = await run_tool_calls(client, "crab", [(LONG, {"duration": 2, "steps": 4})])
        events = await feed.wait_until_done()
    words = [event for event in events if event.kind == wire.TOOL_PROGRESS]
    assert [(event.progress, event.total) for event in words] == [(n, 4) for n in (1, 2, 3, 4)]
    assert {event.call_id for event in words} == {result.call_id}
    assert "completed" in result.output


@pytest.mark.req("mcp.interop.stdio")
@pytest.mark.req("mcp.crash")
async def test_server_everything_killed_in_a_call_fails_it_and_comes_back(tmp_path: Path) -> None:
    async with open_world(tmp_path) as there:
        await there.connect(build_everything_server())
        long = asyncio.ensure_future(there.call(LONG, duration=600, steps=600))
        await there.call_for_text("get-sum", a=1, b=2)
        (pid,) = there.mcp.host.server_pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(McpCallError, match="killed by SIGKILL"):
            await long
        await there.wait_until(lambda: there.list_event_statuses()[-1] == "connected")
        assert "3" in await there.call_for_text("get-sum", a=1, b=2)
        (again,) = there.mcp.host.server_pids
    assert not is_alive(pid)
    assert not is_alive(again)


@pytest.mark.req("mcp.interop.stdio")
async def test_server_filesystem_reads_writes_and_stays_where_it_is(tmp_path: Path) -> None:
    beach = tmp_path / "beach"
    beach.mkdir()
    (beach / "shell.txt").write_text("spiral\n")
    server = McpServerConfig("files", str(BIN / "mcp-server-filesystem"), (str(beach),))
    async with open_world(tmp_path) as there:
        await there.connect(server)
        assert len(there.list_offered()) >= 13
        path = str(beach / "sand.txt")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("list_allowed_directories", {}),
            ("read_text_file", {"path": str(beach / "shell.txt")}),
            ("read_file", {"path": str(beach / "shell.txt")}),
            ("read_media_file", {"path": str(beach / "shell.txt")}),
            ("read_multiple_files", {"paths": [str(beach / "shell.txt")]}),
            ("write_file", {"path": path, "content": "dry"}),
            ("edit_file", {"path": path, "edits": [{"oldText": "dry", "newText": "wet"}]}),
            ("create_directory", {"path": str(beach / "pool")}),
            ("list_directory", {"path": str(beach)}),
            ("list_directory_with_sizes", {"path": str(beach)}),
            ("directory_tree", {"path": str(beach)}),
            ("move_file", {"source": path, "destination": str(beach / "pool" / "sand.txt")}),
            ("search_files", {"path": str(beach), "pattern": "**/*.txt"}),
            ("get_file_info", {"path": str(beach / "shell.txt")}),
        ]
        assert {name for name, _ in calls} == set(there.list_offered())
        answers = {name: await there.call(name, **given) for name, given in calls}
        assert not {name: one.text for name, one in answers.items() if one.is_error}
        assert answers["read_text_file"].text == "spiral\n"
        assert (beach / "pool" / "sand.txt").read_text() == "wet"
        denied = await there.call("read_text_file", path="/etc/hostname")
        assert denied.is_error


@pytest.mark.req("mcp.interop.stdio")
async def test_server_memory_remembers_through_an_agent(tmp_path: Path) -> None:
    """Through the whole daemon: a model's call, the socket, the host, node and back."""
    memory_file = tmp_path / "memory.jsonl"
    agent = (
        'prompt = "You are crab."\n[[mcps]]\nname = "graph"\n'
        f'command = "{BIN / "mcp-server-memory"}"\nenv = {{ MEMORY_FILE_PATH = "{memory_file}" }}\n'
    )
    entity = {"name": "crab", "entityType": "animal", "observations": ["walks sideways"]}
    async with (
        run_daemon(tmp_path, agents={"crab": agent}, hooks={}) as daemon,
        daemon.client() as client,
    ):
        outcome, found = await run_tool_calls(
            client,
            "crab",
            [("create_entities", {"entities": [entity]})],
            [("search_nodes", {"query": "sideways"})],
        )
        offered = {tool["function"]["name"] for tool in daemon.model.requests[0]["tools"]}
    assert not outcome.is_error
    assert "walks sideways" in found.output
    assert "walks sideways" in memory_file.read_text()
    assert {"create_entities", "create_relations", "add_observations", "read_graph"} <= offered


@pytest.mark.req("mcp.interop.stdio")
async def test_every_tool_of_server_memory(tmp_path: Path) -> None:
    crab = {"name": "crab", "entityType": "animal", "observations": ["walks sideways"]}
    tide = {"name": "tide", "entityType": "water", "observations": []}
    relation = {"from": "crab", "to": "tide", "relationType": "waits for"}
    more = {"entityName": "crab", "contents": ["has ten legs"]}
    less = {"entityName": "crab", "observations": ["walks sideways"]}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("create_entities", {"entities": [crab, tide]}),
        ("create_relations", {"relations": [relation]}),
        ("add_observations", {"observations": [more]}),
        ("delete_observations", {"deletions": [less]}),
        ("search_nodes", {"query": "legs"}),
        ("open_nodes", {"names": ["tide"]}),
        ("delete_relations", {"relations": [relation]}),
        ("delete_entities", {"entityNames": ["tide"]}),
        ("read_graph", {}),
    ]
    async with open_world(tmp_path) as there:
        await there.connect(build_memory_server(tmp_path / "memory.jsonl"))
        assert {name for name, _ in calls} == set(there.list_offered())
        answers = {name: await there.call(name, **given) for name, given in calls}
    assert not {name: one.text for name, one in answers.items() if one.is_error}
    assert "has ten legs" in answers["search_nodes"].text
    assert "tide" in answers["open_nodes"].text
    left = json.loads(answers["read_graph"].text)
    (entity,) = left["entities"]
    assert (entity["name"], entity["observations"]) == ("crab", ["has ten legs"])
    assert left["relations"] == []


@pytest.mark.req("mcp.interop.stdio")
@pytest.mark.req("mcp.shared")
async def test_fifty_agents_share_one_process_of_server_everything(tmp_path: Path) -> None:
    agents = [f"crab{number}" for number in range(50)]
    async with open_world(tmp_path) as there:
        for agent in agents:
            there.declare(build_everything_server(f"of {agent}"), agent=agent)
        await there.wait_until(
            lambda: all(there.list_statuses(agent) == ["connected"] for agent in agents)
        )
        calls = [there.call_for_text("get-sum", agent, a=n, b=n) for n, agent in enumerate(agents)]
        answers = await asyncio.gather(*calls)
        assert all(f" {2 * n}." in answer for n, answer in enumerate(answers))
        assert len(there.mcp.host.server_pids) == 1


@pytest.mark.req("mcp.interop.stdio")
@pytest.mark.req("mcp.concurrent")
async def test_twenty_processes_of_server_memory_at_once(tmp_path: Path) -> None:
    servers = [
        build_memory_server(tmp_path / f"{number}.jsonl", f"g{number}") for number in range(20)
    ]
    async with open_world(tmp_path, McpLimits(mcp_connect_seconds=120)) as there:
        there.declare(*servers)
        async with asyncio.timeout(120):
            while there.list_statuses() != ["connected"] * 20:
                await asyncio.sleep(0.05)
        assert len(set(there.mcp.host.server_pids)) == 20

        async def create(number: int) -> bool:
            entity = {"name": f"crab {number}", "entityType": "animal", "observations": []}
            outcome = await there.call(f"g{number}__create_entities", entities=[entity])
            return outcome.is_error

        assert not any(await asyncio.gather(*map(create, range(20))))
        pids = there.mcp.host.server_pids
    for number in range(20):
        assert f"crab {number}" in (tmp_path / f"{number}.jsonl").read_text()
    assert not any(is_alive(pid) for pid in pids)


@pytest.mark.req("mcp.interop.stdio")
async def test_all_servers_run_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "beach").mkdir()
    async with open_world(tmp_path) as there:
        await there.connect(
            build_everything_server(),
            McpServerConfig(
                "files", str(BIN / "mcp-server-filesystem"), (str(tmp_path / "beach"),)
            ),
            McpServerConfig("graph", str(BIN / "mcp-server-memory"), env={"MEMORY_FILE_PATH": "m"}),
        )
        sums = [there.call_for_text("get-sum", a=number, b=number) for number in range(20)]
        lists = [there.call_for_text("list_allowed_directories") for _ in range(20)]
        answers = await asyncio.gather(*sums, *lists)
        assert all(f" {2 * number}." in answers[number] for number in range(20))
        assert all("beach" in answer for answer in answers[20:])
