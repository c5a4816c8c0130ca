"""Daemon checks: what a daemon says about itself, its models and its MCP servers, as findings.

It is asked, and never started.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from crabtalk.component.command import counted, one_line

from .checks import Finding, here, missing_variables
from .complaints import CommandError, complaint
from .fleet import about_fleet
from .moments import age

if TYPE_CHECKING:
    from crabtalk.client import SyncClient
    from crabtalk.protocol import wire

# Seconds: for what a daemon knows by itself, and for what it asks its providers first.
AT_ONCE = 5.0
ASKING = 20.0


def questioned(home: Path, before: Sequence[Finding]) -> Iterator[Finding]:
    """`before` is what the files told; the daemon may know it too, and it is not said twice."""
    from crabtalk.client import DaemonNotRunningError, connect_sync

    from .starting import program

    try:
        program()
    except CommandError as error:
        yield Finding("fail", "daemon", str(error), "uv tool install crabtalk")
    try:
        with connect_sync(home=home, client="crabtalk doctor", timeout=AT_ONCE) as client:
            yield from about_itself(client, home)
            stats = client.get_stats()
            if stats.HasField("fleet"):
                yield from about_fleet(stats.fleet)
            mcps = list(client.list_mcps().mcps)
            yield from about_problems(home, stats.problems, mcps, before)
            yield from about_servers(home, mcps)
        with connect_sync(home=home, client="crabtalk doctor", timeout=ASKING) as client:
            yield from about_models(home, client, stats.active_model)
    except DaemonNotRunningError:
        yield not_running(home)
        if missing := missing_variables(home):
            text = (
                f"config.toml takes {', '.join(missing)} from the environment, and yours has none"
            )
            yield Finding("warn", "models", text, f"export {missing[0]}=…")
    except Exception as error:
        sentence = complaint(error)
        if sentence is None:
            raise
        yield Finding("fail", "daemon", one_line(sentence), stopping(home))


def not_running(home: Path) -> Finding:
    from crabtalk.transport import RunFiles

    run = RunFiles.of(home)
    if (pid := run.holder()) is not None:
        text = f"process {pid} holds {home} and does not answer; the next command starts another"
        return Finding("fail", "daemon", text, f"kill {pid}")
    left = "; one was killed, and the next clears up after it" if run.socket.exists() else ""
    return Finding("warn", "daemon", f"none runs in {home}{left}", here("crabtalkd run", home))


def stopping(home: Path) -> str:
    from crabtalk.transport import RunFiles

    pid = RunFiles.of(home).holder()
    return here("crabtalkd status", home) if pid is None else f"kill {pid}"


def about_itself(client: "SyncClient", home: Path) -> Iterator[Finding]:
    from crabtalk import __version__
    from crabtalk.protocol import PROTOCOL_VERSION

    welcome = client.hello()
    uptime = client.get_stats().uptime_secs
    version = one_line(welcome.server_version)
    yield Finding("ok", "daemon", f"crabtalkd {version} answers, started {age(uptime)} ago")
    if welcome.protocol_version != PROTOCOL_VERSION:
        text = (
            f"it speaks version {welcome.protocol_version} of the protocol, not {PROTOCOL_VERSION}"
        )
        yield Finding("fail", "version", text, stopping(home))
    elif version != __version__:
        text = f"it is {version}, and this is {__version__}; stopped, it is started anew as that"
        yield Finding("warn", "version", text, stopping(home))


def about_problems(
    home: Path,
    problems: Sequence[str],
    mcps: "Sequence[wire.McpInfo]",
    before: Sequence[Finding],
) -> Iterator[Finding]:
    failed = {f"the MCP server {each.name} of {each.source} failed: {each.error}" for each in mcps}
    texts = tuple(finding.text for finding in before if finding.level != "ok")
    for problem in problems:
        if problem not in failed and not problem.startswith(texts):
            yield Finding("fail", "problem", one_line(problem), here("crabtalk reload", home))


def about_servers(home: Path, mcps: "Sequence[wire.McpInfo]") -> Iterator[Finding]:
    from crabtalk.protocol import wire

    connected = [each for each in mcps if each.status == wire.CONNECTED]
    for each in mcps:
        whose = f"{one_line(each.name)} of {one_line(each.source)}" if each.source else each.name
        if each.status == wire.FAILED:
            text = f"{whose} failed: {one_line(each.error)}"
            yield Finding("fail", "mcp", text, here("crabtalk reload", home))
        elif each.status == wire.CONNECTING and each.error:
            yield Finding("warn", "mcp", f"{whose} waits for you: {one_line(each.error)}")
    if connected:
        tools = sum(each.tool_count for each in connected)
        yield Finding("ok", "mcp", f"{len(connected)} connected, with {counted(tools, 'tool')}")


def about_models(home: Path, client: "SyncClient", active: str) -> Iterator[Finding]:
    from crabtalk.client import ServerError

    try:
        models = client.list_models().models
    except ServerError as error:
        yield Finding("fail", "models", one_line(error.message), here("crabtalkd models", home))
        return
    names = {each.name for each in models}
    answering = next((each.name for each in models if each.active), active)
    if not names:
        yield Finding(
            "fail", "models", "none can be used, so nobody answers", here("crabtalkd setup", home)
        )
        return
    if answering not in names:
        text = f"{one_line(answering) or 'no model'} is to answer, and no provider offers it"
        yield Finding(
            "fail", "models", text, here(f"crabtalk models use {quote(min(names))}", home)
        )
    else:
        text = f"{one_line(answering)} answers, of {len(names)} there are"
        yield Finding("ok", "models", text)
    for agent in client.list_agents().agents:
        if agent.model and agent.model not in names:
            text = (
                f"{one_line(agent.name)} wants {one_line(agent.model)}, and no provider offers it"
            )
            yield Finding(
                "warn", "models", text, here(f"crabtalk agents edit {quote(agent.name)}", home)
            )
