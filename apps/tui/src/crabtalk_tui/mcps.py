"""crabtalk mcp: the MCP servers of agents, how they are, and theirs in other programs' files."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import document, json_option, one_line, say, show, table

from .agreement import must_agree, yes_option
from .complaints import CommandError
from .mcp_exchange import is_masked, read_servers, write_servers
from .mcp_lines import as_json, details, event_json, event_line, row
from .names import AgentName
from .options import daemon, home_option
from .stores import known

if TYPE_CHECKING:
    from crabtalk.protocol import wire

NAMES = "`crabtalk mcp list` has the names"
AGENTS = "`crabtalk agents list` has the names"
LARGEST = 1 << 20  # bytes of a file with servers
# What asking for the names of tools may take: they are there, or not worth waiting for.
PATIENCE = 3.0

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
    with daemon(home) as client, known(AGENTS):
        found = client.list_mcps(agent).mcps
    if in_json:
        document({"mcps": [as_json(each) for each in found]})
    elif found:
        show(table([row(each) for each in found]))
    else:
        say("there are no MCP servers; `crabtalk mcp add` makes one")


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
    with daemon(home) as client, known(NAMES):
        found = [each for each in client.list_mcps(agent).mcps if each.name == name]
    info = next((each for each in found if each.source == agent), None)
    if info is None:
        raise no_server(agent, name)
    tools = tool_names(home, info) if info.tool_count else []
    if in_json:
        document({**as_json(info), "tools": tools})
    else:
        show("\n".join(details(info, tools)))


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
        "env": dict(map(variable, env)),
        "url": url,
        "auth": header() if auth == "-" else auth,
        "auto_restart": not no_restart,
    }
    with daemon(home) as client, known(AGENTS):
        made = client.upsert_mcp(agent, config)
    if in_json:
        document(as_json(made))
    else:
        say(f"{one_line(agent)} has {one_line(name)}; `crabtalk mcp list` says how it is")


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
    with daemon(home) as client, known(NAMES):
        if name not in [each.name for each in client.list_mcps(agent).mcps]:
            raise no_server(agent, name)
        must_agree(f"Take {one_line(name)} from {one_line(agent)}?", yes)
        client.delete_mcp(agent, name)
    if in_json:
        document({"removed": {"agent": agent, "name": name}})
    else:
        say(f"{one_line(agent)} no longer has {one_line(name)}")


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
    taken = read_servers(contents(file), os.environ)
    done: dict[str, str] = {}
    with daemon(home) as client, known(AGENTS):
        before = {each.name for each in client.list_mcps(agent).mcps}
        try:
            for server in taken.servers:
                client.upsert_mcp(agent, server)
                done[server["name"]] = "replaced" if server["name"] in before else "added"
        finally:
            if not in_json:
                for name, what in done.items():
                    say(f"{what} {one_line(name)}")
    for remark in taken.remarks:
        say(one_line(remark))
    if in_json:
        document({"agent": agent, "servers": done, "remarks": taken.remarks})


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
    with daemon(home) as client, known(AGENTS):
        servers = json.loads(client.get_agent(agent).config)["mcps"]
    made = write_servers(servers)
    if in_json:
        document(made)
    else:
        click.echo(json.dumps(made, indent=2, ensure_ascii=False))
    if is_masked(servers):
        say("secrets are masked as ********; write them in before another program uses this")


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
    with suppress(KeyboardInterrupt), daemon(home) as client:
        for event in client.subscribe_mcp_events():
            if agent is not None and event.agent != agent:
                continue
            if in_json:
                document(event_json(event))
            else:
                show(event_line(event))


# ── What was said on the command line ──────────────────────────────────────────────────────────


def variable(text: str) -> tuple[str, str]:
    """Secrets need not stand on the command line, where every user of the machine sees them."""
    key, separator, value = text.partition("=")
    if separator:
        return key, value
    if key not in os.environ:
        raise CommandError(
            f"{one_line(key)} is not in your environment; write {one_line(key)}=VALUE"
        )
    return key, os.environ[key]


def header() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Authorization", hide_input=True, err=True))
    return sys.stdin.read(LARGEST).strip()


def contents(file: Any) -> str:
    data: bytes = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise CommandError(f"{file.name} is larger than 1 MiB; name a file with servers only")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{file.name} is not UTF-8; convert it first") from None


def tool_names(home: Path | None, info: "wire.McpInfo") -> list[str]:
    """The feed begins with how every server is, and only it has the names."""
    import asyncio

    from crabtalk.client import ServerError, connect
    from crabtalk.protocol import wire

    async def ask() -> list[str]:
        async with connect(home=home, client="crabtalk") as client:
            async for event in client.subscribe_mcp_events():
                if (event.agent, event.name) == (info.source, info.name):
                    is_connected = event.kind == wire.MCP_EVENT_KIND_CONNECTED
                    return list(event.tools) if is_connected else []
        return []

    async def in_time() -> list[str]:
        return await asyncio.wait_for(ask(), PATIENCE)

    with suppress(TimeoutError, ServerError):
        return asyncio.run(in_time())
    return []


def no_server(agent: str, name: str) -> CommandError:
    whose = f"{one_line(agent)} has no MCP server" if agent else "no MCP server for all agents is"
    return CommandError(f"{whose} called {name!r}; {NAMES}")
