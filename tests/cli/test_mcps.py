"""crabtalk mcp with real servers: add, watch, import and export."""

import asyncio
import json
import sys
import tomllib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from crabtalk.protocol import Server, wire
from tests.cli.canned_daemon import serve_daemon
from tests.cli.cli_process import INTERRUPT, WARM, run_at_terminal, run_crabtalk
from tests.daemon.in_process_daemon import PATIENCE, InProcessDaemon, run_daemon
from tests.forked_programs import PIPE
from tests.mcp.world import TINY_SERVER

COMMAND = (sys.executable, "-S", str(TINY_SERVER), "--tools", "dig,rake")


def read_declared_servers(daemon: InProcessDaemon, agent: str = "crab") -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = tomllib.loads(daemon.agent_file(agent).read_text())["mcps"]
    return servers


async def wait_for_status(daemon: InProcessDaemon, status: int) -> None:
    """Wait until all servers have this status."""
    async with asyncio.timeout(PATIENCE), daemon.client() as client:
        while any(server.status != status for server in (await client.list_mcps()).mcps):
            await asyncio.sleep(0.01)


@pytest.mark.req("cli.mcp.add")
@pytest.mark.req("cli.mcp.show")
async def test_a_server_is_added_and_its_state_shown(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        where = ("--home", daemon.home)
        words = ("mcp", "add", "crab", "beach", *where, "--env", "A=b=c", "--env", "TOKEN")
        outcome = await run_crabtalk(*words, "--", *COMMAND, TOKEN="sekrit")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == "crab has beach; `crabtalk mcp list` says how it is\n"
        assert read_declared_servers(daemon) == [
            {
                "name": "beach",
                "command": COMMAND[0],
                "args": list(COMMAND[1:]),
                "env": {"A": "b=c", "TOKEN": "sekrit"},
            }
        ]
        await wait_for_status(daemon, wire.CONNECTED)
        row = (await run_crabtalk("mcp", "list", *where)).output.split()
        assert row[:5] == ["crab", "beach", "connected", "2", "tools"]
        shown = (await run_crabtalk("mcp", "show", "crab", "beach", *where)).output
        assert "state    connected\n" in shown
        assert "env      A=******** TOKEN=********\n" in shown
        assert "tools    dig, rake\n" in shown
        assert "sekrit" not in shown
        found = json.loads(
            (await run_crabtalk("mcp", "show", "crab", "beach", *where, "--json")).output
        )
        assert (found["status"], found["tools"]) == ("connected", ["dig", "rake"])
        listed = json.loads(
            (await run_crabtalk("mcp", "list", "--agent", "twin", *where, "--json")).output
        )
        assert listed == {"mcps": []}


@pytest.mark.req("cli.mcp.add")
async def test_a_remote_server_has_a_url_and_a_header(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon:
        words = ("mcp", "add", "crab", "web", "--home", daemon.home, "--no-restart", "--json")
        reached = ("--url", "http://127.0.0.1:9/mcp", "--auth", "-")
        outcome = await run_crabtalk(*words, *reached, typed=b"Bearer sesame\n")
        assert json.loads(outcome.output)["auth"] == "********"
        (server,) = read_declared_servers(daemon)
        assert (server["auth"], server["auto_restart"]) == ("Bearer sesame", False)
        code, screen = await run_at_terminal(
            *words, *reached, typed="Bearer open\n", when="Authorization: "
        )
        assert code == 0
        assert "Bearer open" not in screen.partition("Authorization: ")[2].partition("\n")[0]
        assert read_declared_servers(daemon)[0]["auth"] == "Bearer open"
        await wait_for_status(daemon, wire.FAILED)
        listed = await run_crabtalk("mcp", "list", "--home", daemon.home)
        assert listed.output.startswith("crab  web  failed    http://127.0.0.1:9/mcp: ")


@pytest.mark.parametrize(
    "options",
    [(), ("--url", "http://b", "--", "b"), ("--auth", "x", "--", "b")],
    ids=["nothing", "both", "auth"],
)
@pytest.mark.req("cli.exit_codes")
async def test_missing_or_conflicting_options_are_a_usage_error(
    options: tuple[str, ...], home: Path
) -> None:
    outcome = await run_crabtalk("mcp", "add", "crab", "beach", "--home", home, *options)
    assert (outcome.code, outcome.out) == (2, "")


@pytest.mark.req("cli.mcp.add")
async def test_an_invalid_server_gives_one_error(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        words = ("mcp", "add", "--home", daemon.home)
        outcome = await run_crabtalk(*words, "crab", "beach", "--env", "NO_SUCH_THING", "--", "b")
        assert outcome.error.startswith("NO_SUCH_THING is not in your environment; ")
        outcome = await run_crabtalk(*words, "crab", "beach", "--url", "ftp://b")
        assert "must be an address that starts with http" in outcome.error
        outcome = await run_crabtalk(*words, "owl", "beach", "--", "b")
        assert outcome.error == "no agent is called 'owl'; `crabtalk agents list` has the names"
        outcome = await run_crabtalk("mcp", "show", "crab", "beach", "--home", daemon.home)
        assert outcome.error.startswith("crab has no MCP server called 'beach'; ")


@pytest.mark.req("cli.mcp.rm")
@pytest.mark.req("cli.no_prompt")
async def test_a_server_is_removed_after_a_confirmation(tmp_path: Path) -> None:
    async with run_daemon(tmp_path) as daemon:
        where = ("crab", "beach", "--home", daemon.home)
        await run_crabtalk("mcp", "add", *where, "--", *COMMAND)
        assert (await run_crabtalk("mcp", "rm", *where)).error.endswith("say --yes")
        assert len(read_declared_servers(daemon)) == 1
        code, screen = await run_at_terminal("mcp", "rm", *where, typed="y\n", when="[y/N]")
        assert (code, "Take beach from crab? [y/N]" in screen) == (0, True)
        outcome = await run_crabtalk("mcp", "rm", *where, "--yes")
        assert outcome.error.startswith("crab has no MCP server called 'beach'; ")


@pytest.mark.req("cli.mcp.exchange")
async def test_servers_are_imported_and_exported(
    tmp_path: Path,
) -> None:
    file = tmp_path / "claude_desktop_config.json"
    beach = {"command": COMMAND[0], "args": list(COMMAND[1:]), "env": {"TOKEN": "${SECRET}"}}
    web = {
        "type": "http",
        "url": "http://127.0.0.1:9/mcp",
        "headers": {"Authorization": "Bearer x"},
    }
    off = {"command": "off", "disabled": True}
    file.write_text(json.dumps({"mcpServers": {"beach": beach, "web": web, "off": off}}))
    async with run_daemon(tmp_path) as daemon:
        where = ("--home", daemon.home)
        outcome = await run_crabtalk("mcp", "import", "crab", file, *where, SECRET="sekrit")
        assert (outcome.code, outcome.out) == (0, "")
        assert outcome.err == (
            "added beach\nadded web\noff is switched off there, and was left out\n"
        )
        assert read_declared_servers(daemon)[0]["env"] == {"TOKEN": "sekrit"}
        assert read_declared_servers(daemon)[1]["auth"] == "Bearer x"

        exported = await run_crabtalk("mcp", "export", "crab", *where)
        assert exported.err == (
            "secrets are masked as ********; write them in before another program uses this\n"
        )
        servers = json.loads(exported.out)["mcpServers"]
        assert servers == {
            "beach": {**beach, "env": {"TOKEN": "********"}},
            "web": {**web, "headers": {"Authorization": "********"}},
        }
        # The agent that has the secrets accepts masked ones; another agent does not know them.
        again = await run_crabtalk(
            "mcp", "import", "crab", "-", *where, typed=exported.out.encode()
        )
        assert again.err == "replaced beach\nreplaced web\n"
        assert read_declared_servers(daemon)[0]["env"] == {"TOKEN": "sekrit"}
        outcome = await run_crabtalk(
            "mcp", "import", "twin", "-", *where, typed=exported.out.encode()
        )
        assert "is masked, but none is stored" in outcome.error

        document = json.loads(
            (await run_crabtalk("mcp", "export", "twin", *where, "--json")).output
        )
        assert document == {"mcpServers": {}}


@pytest.mark.req("cli.mcp.exchange")
async def test_a_file_with_one_invalid_server_imports_none(tmp_path: Path) -> None:
    document = {"mcpServers": {"a": {"command": "a"}, "b": {"url": "u", "type": "sse"}}}
    async with run_daemon(tmp_path) as daemon:
        words = ("mcp", "import", "crab", "-", "--home", daemon.home)
        outcome = await run_crabtalk(*words, typed=json.dumps(document).encode())
        assert outcome.error.startswith("the server 'b' speaks SSE")
        assert "mcps" not in tomllib.loads(daemon.agent_file("crab").read_text())
        outcome = await run_crabtalk(*words, typed=b"\xff")
        assert outcome.error == "<stdin> is not UTF-8; convert it first"
        outcome = await run_crabtalk(*words, typed=b" " * (2 << 20))
        assert outcome.error.startswith("<stdin> is larger than 1 MiB; ")


@pytest.mark.req("cli.mcp.watch")
async def test_events_of_servers_are_watched(tmp_path: Path) -> None:
    async with run_daemon(tmp_path, hooks={}) as daemon, daemon.client() as client:
        await client.upsert_mcp(
            "twin", {"name": "other", "command": COMMAND[0], "args": ["-c", "1"]}
        )
        words = ("mcp", "watch", "--agent", "crab", "--home", daemon.home, "--json")
        watch = WARM.start(*words, stdout=PIPE)
        assert watch.stdout is not None
        try:
            server = {"name": "beach", "command": COMMAND[0], "args": COMMAND[1:]}
            await client.upsert_mcp("crab", server)
            async with asyncio.timeout(PATIENCE):
                event: dict[str, Any] = {}
                while event.get("kind") != "connected":
                    event = json.loads(await watch.stdout.readline())
                    assert (event["agent"], event["name"]) == ("crab", "beach")
            assert event["tools"] == ["dig", "rake"]
        finally:
            watch.kill()
            await watch.wait()
        code, screen = await run_at_terminal(
            *words[:-1], typed=INTERRUPT, when="crab beach: connected dig, rake\n"[:-1]
        )
        assert code == 0
        assert screen[8:].startswith(" crab beach: connected dig, rake\n")


class DiscoveredMcpDaemon(Server):
    """Has two servers found by port files; the feed reports only the first."""

    async def list_mcps(self, request: wire.ListMcpsMsg) -> wire.McpList:
        names = ("dice", "mute") if not request.agent else ()
        return wire.McpList(
            mcps=[
                wire.McpInfo(name=name, url="http://b", status=wire.CONNECTED, tool_count=1)
                for name in names
            ]
        )

    async def subscribe_mcp_events(
        self, request: wire.SubscribeMcpEventsMsg
    ) -> AsyncGenerator[wire.McpEventMsg, None]:
        kind = wire.MCP_EVENT_KIND_CONNECTED
        yield wire.McpEventMsg(kind=kind, agent="crab", name="dice", tools=["wrong"])
        yield wire.McpEventMsg(kind=kind, name="dice", tools=["ro\x1b[2Jll"])
        await asyncio.sleep(1000)


@pytest.mark.req("cli.mcp.show")
async def test_a_server_of_all_agents_is_shown_without_waiting(home: Path) -> None:
    async with serve_daemon(DiscoveredMcpDaemon(), home):
        where = ("--home", home)
        assert (await run_crabtalk("mcp", "list", *where)).output.startswith(
            "(all)  dice  connected"
        )
        shown = (await run_crabtalk("mcp", "show", "", "dice", *where)).output
        assert "agent    (all)\n" in shown
        assert "tools    ro\\x1b[2Jll\n" in shown
        shown = (await run_crabtalk("mcp", "show", "", "mute", *where)).output
        assert "tools    1\n" in shown
        outcome = await run_crabtalk("mcp", "show", "crab", "dice", *where)
        assert outcome.error.startswith("crab has no MCP server called 'dice'; ")
        outcome = await run_crabtalk("mcp", "show", "", "coin", *where)
        assert outcome.error.startswith("no MCP server for all agents is called 'coin'; ")
