"""Checks of a running daemon, its models and its MCP servers, as findings for `crabtalk doctor`.

They never start a daemon.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from crabtalk.service.command_line import format_count, to_one_line

from .errors import CommandError, explain_error
from .fleet import check_fleet
from .home_checks import Finding, add_home_option, find_missing_variables
from .times import format_age

if TYPE_CHECKING:
    from crabtalk.client import SyncClient
    from crabtalk.protocol import wire

# Seconds: for requests a daemon answers by itself, and for those it passes on to providers.
QUICK_TIMEOUT = 5.0
PROVIDER_TIMEOUT = 20.0


def run_daemon_checks(home: Path, before: Sequence[Finding]) -> Iterator[Finding]:
    """Yield findings about the daemon in `home`.

    `before` are the findings of the home checks: a problem they report is not repeated.
    """
    from crabtalk.client import DaemonNotRunningError, connect_sync

    from .daemon_startup import find_daemon_program

    try:
        find_daemon_program()
    except CommandError as error:
        yield Finding("fail", "daemon", str(error), "uv tool install crabtalk")
    try:
        with connect_sync(home=home, client="crabtalk doctor", timeout=QUICK_TIMEOUT) as client:
            yield from check_version(client, home)
            stats = client.get_stats()
            if stats.HasField("fleet"):
                yield from check_fleet(stats.fleet)
            mcps = list(client.list_mcps().mcps)
            yield from check_problems(home, stats.problems, mcps, before)
            yield from check_mcp_servers(home, mcps)
        with connect_sync(home=home, client="crabtalk doctor", timeout=PROVIDER_TIMEOUT) as client:
            yield from check_models(home, client, stats.active_model)
    except DaemonNotRunningError:
        yield report_not_running(home)
        if missing := find_missing_variables(home):
            text = (
                f"config.toml takes {', '.join(missing)} from the environment, and yours has none"
            )
            yield Finding("warn", "models", text, f"export {missing[0]}=…")
    except Exception as error:
        sentence = explain_error(error)
        if sentence is None:
            raise
        yield Finding("fail", "daemon", to_one_line(sentence), suggest_stop_command(home))


def report_not_running(home: Path) -> Finding:
    from crabtalk.transport import RunFiles

    run = RunFiles.for_home(home)
    if (pid := run.read_daemon_pid()) is not None:
        text = f"process {pid} holds {home} and does not answer; the next command starts another"
        return Finding("fail", "daemon", text, f"kill {pid}")
    left = "; one was killed, and the next clears up after it" if run.socket_path.exists() else ""
    return Finding(
        "warn", "daemon", f"none runs in {home}{left}", add_home_option("crabtalkd run", home)
    )


def suggest_stop_command(home: Path) -> str:
    from crabtalk.transport import RunFiles

    pid = RunFiles.for_home(home).read_daemon_pid()
    return add_home_option("crabtalkd status", home) if pid is None else f"kill {pid}"


def check_version(client: "SyncClient", home: Path) -> Iterator[Finding]:
    from crabtalk import __version__
    from crabtalk.protocol import PROTOCOL_VERSION

    welcome = client.hello()
    uptime = client.get_stats().uptime_secs
    version = to_one_line(welcome.server_version)
    yield Finding("ok", "daemon", f"crabtalkd {version} answers, started {format_age(uptime)} ago")
    if welcome.protocol_version != PROTOCOL_VERSION:
        text = (
            f"it speaks version {welcome.protocol_version} of the protocol, not {PROTOCOL_VERSION}"
        )
        yield Finding("fail", "version", text, suggest_stop_command(home))
    elif version != __version__:
        text = f"it is {version}, and this is {__version__}; stopped, it is started anew as that"
        yield Finding("warn", "version", text, suggest_stop_command(home))


def check_problems(
    home: Path,
    problems: Sequence[str],
    mcps: "Sequence[wire.McpInfo]",
    before: Sequence[Finding],
) -> Iterator[Finding]:
    failed = {
        f"the MCP server {server.name} of {server.source} failed: {server.error}" for server in mcps
    }
    texts = tuple(finding.text for finding in before if finding.level != "ok")
    for problem in problems:
        if problem not in failed and not problem.startswith(texts):
            yield Finding(
                "fail", "problem", to_one_line(problem), add_home_option("crabtalk reload", home)
            )


def check_mcp_servers(home: Path, mcps: "Sequence[wire.McpInfo]") -> Iterator[Finding]:
    from crabtalk.protocol import wire

    connected = [server for server in mcps if server.status == wire.CONNECTED]
    for server in mcps:
        server_name = (
            f"{to_one_line(server.name)} of {to_one_line(server.source)}"
            if server.source
            else server.name
        )
        if server.status == wire.FAILED:
            text = f"{server_name} failed: {to_one_line(server.error)}"
            yield Finding("fail", "mcp", text, add_home_option("crabtalk reload", home))
        elif server.status == wire.CONNECTING and server.error:
            yield Finding(
                "warn", "mcp", f"{server_name} waits for you: {to_one_line(server.error)}"
            )
    if connected:
        tools = sum(server.tool_count for server in connected)
        yield Finding(
            "ok", "mcp", f"{len(connected)} connected, with {format_count(tools, 'tool')}"
        )


def check_models(home: Path, client: "SyncClient", active: str) -> Iterator[Finding]:
    from crabtalk.client import ServerError

    try:
        models = client.list_models().models
    except ServerError as error:
        yield Finding(
            "fail", "models", to_one_line(error.message), add_home_option("crabtalkd models", home)
        )
        return
    names = {model.name for model in models}
    active_model = next((model.name for model in models if model.active), active)
    if not names:
        yield Finding(
            "fail",
            "models",
            "none can be used, so no agent answers",
            add_home_option("crabtalkd setup", home),
        )
        return
    if active_model not in names:
        text = f"{to_one_line(active_model) or 'no model'} is to answer, and no provider offers it"
        yield Finding(
            "fail",
            "models",
            text,
            add_home_option(f"crabtalk models use {quote(min(names))}", home),
        )
    else:
        text = f"{to_one_line(active_model)} answers, of {len(names)} there are"
        yield Finding("ok", "models", text)
    for agent in client.list_agents().agents:
        if agent.model and agent.model not in names:
            text = (
                f"{to_one_line(agent.name)} wants {to_one_line(agent.model)}, "
                "and no provider offers it"
            )
            yield Finding(
                "warn",
                "models",
                text,
                add_home_option(f"crabtalk agents edit {quote(agent.name)}", home),
            )
