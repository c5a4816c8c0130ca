"""crabtalk mcp: list, add, remove, import and export the MCP servers of agents."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .confirmation import require_confirmation, yes_option
from .errors import CommandError
from .mcp_formatting import event_to_json, format_details, format_event, format_row, mcp_to_json
from .mcp_json import export_servers, has_masked_secrets, parse_servers
from .memory_sources import explain_not_found
from .name_completion import AgentName
from .options import connect_daemon, home_option

if TYPE_CHECKING:
    from crabtalk.protocol import wire

LIST_HINT = "`crabtalk mcp list` has the names"
AGENTS_HINT = "`crabtalk agents list` has the names"
MAX_FILE_SIZE = 1 << 20  # bytes of a file with servers
# Seconds to wait for the names of tools: a daemon that has them sends them at once.
TOOLS_TIMEOUT = 3.0

agent_argument = click.argument("agent", type=AgentName())


@click.group()
def mcp() -> None:
    """The MCP servers of agents, and how they are.

    \b
    Examples:
      crabtalk mcp list
      crabtalk mcp add crab github --env TOKEN -- github-mcp --read-only
      crabtalk mcp add crab weather --url https://weather.example/mcp
      crabtalk mcp import crab ~/claude_desktop_config.json
      crabtalk mcp watch
    """


@mcp.command("list")
@click.option("--agent", type=AgentName(), default="", help="Only those of this agent.")
@home_option
@json_option
def mcp_list(agent: str, home: Path | None, in_json: bool) -> None:
    """List servers: whose, how they are, and what they are.

    \b
    Examples:
      crabtalk mcp list
      crabtalk mcp list --agent crab --json
    """
    with connect_daemon(home) as client, explain_not_found(AGENTS_HINT):
        servers = client.list_mcps(agent).mcps
    if in_json:
        print_json({"mcps": [mcp_to_json(server) for server in servers]})
    elif servers:
        print_output(format_table([format_row(server) for server in servers]))
    else:
        print_to_stderr("there are no MCP servers; `crabtalk mcp add` makes one")


@mcp.command("show")
@agent_argument
@click.argument("name")
@home_option
@json_option
def mcp_show(agent: str, name: str, home: Path | None, in_json: bool) -> None:
    """Print all there is to know about a server, its tools by name.

    AGENT is '' for a server that was found by its port file.

    \b
    Examples:
      crabtalk mcp show crab github
      crabtalk mcp show crab github --json
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        servers = client.list_mcps(agent).mcps
    info = next((s for s in servers if (s.name, s.source) == (name, agent)), None)
    if info is None:
        raise make_missing_server_error(agent, name)
    tools = load_tool_names(home, info) if info.tool_count else []
    if in_json:
        print_json({**mcp_to_json(info), "tools": tools})
    else:
        print_output("\n".join(format_details(info, tools)))


@mcp.command("add")
@agent_argument
@click.argument("name")
@click.argument("command", nargs=-1, metavar="[-- COMMAND [ARG]...]")
@click.option("--url", help="Reach it over HTTP instead.")
@click.option("--auth", metavar="HEADER", help="Its Authorization header; - is standard input.")
@click.option(
    "--env",
    multiple=True,
    metavar="KEY[=VALUE]",
    help="For its environment; without a value, as it is in yours.",
)
@click.option("--no-restart", is_flag=True, help="Leave it down when it dies.")
@home_option
@json_option
def mcp_add(
    agent: str,
    name: str,
    command: tuple[str, ...],
    url: str | None,
    auth: str | None,
    env: tuple[str, ...],
    no_restart: bool,
    home: Path | None,
    in_json: bool,
) -> None:
    """Give AGENT a server, in the place of one it has by that name.

    \b
    Examples:
      crabtalk mcp add crab github --env TOKEN -- github-mcp --read-only
      crabtalk mcp add crab weather --url https://weather.example/mcp
      pass weather | crabtalk mcp add crab weather --url https://… --auth -
    """
    if bool(command) == bool(url):
        raise click.UsageError("say what to start (-- COMMAND), or where it is (--url)")
    if auth is not None and not url:
        raise click.UsageError("--auth is for servers with --url; use --env")
    config: dict[str, Any] = {
        "name": name,
        "command": command[0] if command else "",
        "args": command[1:],
        "env": dict(map(parse_env_option, env)),
        "url": url,
        "auth": read_auth_header() if auth == "-" else auth,
        "auto_restart": not no_restart,
    }
    with connect_daemon(home) as client, explain_not_found(AGENTS_HINT):
        info = client.upsert_mcp(agent, config)
    if in_json:
        print_json(mcp_to_json(info))
    else:
        print_to_stderr(
            f"{to_one_line(agent)} has {to_one_line(name)}; `crabtalk mcp list` says how it is"
        )


@mcp.command("rm")
@agent_argument
@click.argument("name")
@yes_option
@home_option
@json_option
def mcp_rm(agent: str, name: str, yes: bool, home: Path | None, in_json: bool) -> None:
    """Take a server from AGENT.

    \b
    Examples:
      crabtalk mcp rm crab github
      crabtalk mcp rm crab github --yes
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        if name not in [server.name for server in client.list_mcps(agent).mcps]:
            raise make_missing_server_error(agent, name)
        require_confirmation(f"Take {to_one_line(name)} from {to_one_line(agent)}?", yes)
        client.delete_mcp(agent, name)
    if in_json:
        print_json({"removed": {"agent": agent, "name": name}})
    else:
        print_to_stderr(f"{to_one_line(agent)} no longer has {to_one_line(name)}")


@mcp.command("import")
@agent_argument
@click.argument("file", type=click.File("rb"))
@home_option
@json_option
def mcp_import(agent: str, file: Any, home: Path | None, in_json: bool) -> None:
    """Give AGENT the servers of another program's file (mcpServers); - is stdin.

    ${VAR} is looked up here and now. Servers it has by these names are replaced.

    \b
    Examples:
      crabtalk mcp import crab ~/.config/Claude/claude_desktop_config.json
      crabtalk mcp export crab | crabtalk mcp import twin -
    """
    imported = parse_servers(read_servers_file(file), os.environ)
    outcomes: dict[str, str] = {}
    with connect_daemon(home) as client, explain_not_found(AGENTS_HINT):
        before = {server.name for server in client.list_mcps(agent).mcps}
        try:
            for server in imported.servers:
                client.upsert_mcp(agent, server)
                outcomes[server["name"]] = "replaced" if server["name"] in before else "added"
        finally:
            if not in_json:
                for name, outcome in outcomes.items():
                    print_to_stderr(f"{outcome} {to_one_line(name)}")
    for remark in imported.remarks:
        print_to_stderr(to_one_line(remark))
    if in_json:
        print_json({"agent": agent, "servers": outcomes, "remarks": imported.remarks})


@mcp.command("export")
@agent_argument
@home_option
@json_option
def mcp_export(agent: str, home: Path | None, in_json: bool) -> None:
    """Print AGENT's servers as other programs have them (mcpServers). Secrets are masked.

    \b
    Examples:
      crabtalk mcp export crab > servers.json
      crabtalk mcp export crab --json
    """
    with connect_daemon(home) as client, explain_not_found(AGENTS_HINT):
        servers = json.loads(client.get_agent(agent).config)["mcps"]
    exported = export_servers(servers)
    if in_json:
        print_json(exported)
    else:
        click.echo(json.dumps(exported, indent=2, ensure_ascii=False))
    if has_masked_secrets(servers):
        print_to_stderr(
            "secrets are masked as ********; write them in before another program uses this"
        )


@mcp.command("watch")
@click.option("--agent", type=AgentName(), help="Only servers of this agent.")
@home_option
@click.option("--json", "in_json", is_flag=True, help="One JSON object a line.")
def mcp_watch(agent: str | None, home: Path | None, in_json: bool) -> None:
    """Show how servers are, and what happens to them, until Ctrl+C.

    \b
    Examples:
      crabtalk mcp watch
      crabtalk mcp watch --agent crab --json
    """
    with suppress(KeyboardInterrupt), connect_daemon(home) as client:
        for event in client.subscribe_mcp_events():
            if agent is not None and event.agent != agent:
                continue
            if in_json:
                print_json(event_to_json(event))
            else:
                print_output(format_event(event))


# ── Values from the command line and from files ────────────────────────────────────────────────


def parse_env_option(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE, or KEY with the value from our environment.

    The second form keeps secrets off the command line, which every user of the machine can see.
    """
    key, separator, value = text.partition("=")
    if separator:
        return key, value
    if key not in os.environ:
        raise CommandError(
            f"{to_one_line(key)} is not in your environment; write {to_one_line(key)}=VALUE"
        )
    return key, os.environ[key]


def read_auth_header() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Authorization", hide_input=True, err=True))
    return sys.stdin.read(MAX_FILE_SIZE).strip()


def read_servers_file(file: Any) -> str:
    data: bytes = file.read(MAX_FILE_SIZE + 1)
    if len(data) > MAX_FILE_SIZE:
        raise CommandError(f"{file.name} is larger than 1 MiB; name a file with servers only")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{file.name} is not UTF-8; convert it first") from None


def load_tool_names(home: Path | None, info: "wire.McpInfo") -> list[str]:
    """Read the names of a server's tools from the feed, which begins with every server's state."""
    import asyncio

    from crabtalk.client import ServerError, connect
    from crabtalk.protocol import wire

    async def read_names() -> list[str]:
        async with connect(home=home, client="crabtalk") as client:
            async for event in client.subscribe_mcp_events():
                if (event.agent, event.name) == (info.source, info.name):
                    is_connected = event.kind == wire.MCP_EVENT_KIND_CONNECTED
                    return list(event.tools) if is_connected else []
        return []

    async def in_time() -> list[str]:
        return await asyncio.wait_for(read_names(), TOOLS_TIMEOUT)

    with suppress(TimeoutError, ServerError):
        return asyncio.run(in_time())
    return []


def make_missing_server_error(agent: str, name: str) -> CommandError:
    subject = (
        f"{to_one_line(agent)} has no MCP server" if agent else "no MCP server for all agents is"
    )
    return CommandError(f"{subject} called {name!r}; {LIST_HINT}")
