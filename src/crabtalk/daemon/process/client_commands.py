"""`crabtalkd reload`, `status` and `events`: requests to the running daemon."""

import json
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict

from crabtalk.client import connect
from crabtalk.protocol import wire
from crabtalk.service.command_line import escape_controls, format_count

CLIENT_NAME = "crabtalkd"
KNOWN_KINDS = frozenset(wire.AgentEventKind.values())
# Deltas are pieces of a text; the bound kinds mark its start and end.
DELTA_KINDS = (wire.TEXT_DELTA, wire.THINKING_DELTA)
TEXT_BOUND_KINDS = (wire.TEXT_START, wire.TEXT_END, wire.THINKING_START, wire.THINKING_END)
# The daemon looks for models when the first message comes.
NO_MODEL = "not known yet; `crabtalkd models` says which would answer"
HIDDEN_KINDS = (wire.TEXT_START, wire.THINKING_START, wire.TOOLS_COMPLETE, wire.CONTEXT_USAGE)


async def reload_daemon(home: Path) -> list[str]:
    """Returns the problems with the setup after the reload."""
    async with connect(home=home, client=CLIENT_NAME) as client:
        await client.reload()
        return [escape_controls(problem) for problem in (await client.get_stats()).problems]


async def describe_status(home: Path, in_json: bool) -> str:
    async with connect(home=home, client=CLIENT_NAME) as client:
        welcome = await client.hello()
        stats = await client.get_stats()
    status: dict[str, Any] = {
        "home": str(home),
        "version": welcome.server_version,
        "uptime_secs": stats.uptime_secs,
        "agents": stats.registered_agents,
        "active_conversations": stats.active_conversations,
        "runs": stats.runs,
        "model": stats.active_model,
        "problems": list(stats.problems),
    }
    return json.dumps(status) if in_json else "\n".join(map(escape_controls, format_status(status)))


def format_status(status: dict[str, Any]) -> list[str]:
    runs = format_count(status["runs"], "turn")
    uptime = format_duration(status["uptime_secs"])
    lines = [
        f"crabtalkd {status['version']} runs in {status['home']}, since {uptime}",
        f"model          {status['model'] or NO_MODEL}",
        f"agents         {status['agents']}",
        f"conversations  {status['active_conversations']} in memory, {runs} running",
    ]
    return [*lines, *(f"problem        {problem}" for problem in status["problems"])]


def format_duration(seconds: int) -> str:
    """For example `3 h 12 min`: the two largest units."""
    for size, name, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // smaller} {part}"
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


async def print_events(home: Path, agent: str, sender: str, in_json: bool) -> None:
    """Print one line per event, until cancelled."""
    async with connect(home=home, client=CLIENT_NAME) as client:
        deltas_by_run: dict[str, list[str]] = {}
        async for event in client.subscribe_events(agent=agent, sender=sender, all_kinds=True):
            if event.kind not in KNOWN_KINDS:
                continue  # the daemon is newer than this command
            line = format_event_json(event) if in_json else format_event_line(event, deltas_by_run)
            if line:
                click.echo(line)


def format_event_json(event: wire.AgentEventMsg) -> str:
    """With its kind in any case: 0 is a kind, and protobuf leaves zeros out."""
    fields = MessageToDict(event, preserving_proto_field_name=True)
    kind = wire.AgentEventKind.Name(event.kind)
    return json.dumps({**fields, "kind": kind}, ensure_ascii=False)


def format_event_line(event: wire.AgentEventMsg, deltas_by_run: dict[str, list[str]]) -> str:
    """A line for the event. Deltas are collected by run and shown at the end of the text."""
    deltas = deltas_by_run.setdefault(event.run_id, [])
    if event.kind in DELTA_KINDS:
        deltas.append(event.content)
        return ""
    if event.kind in HIDDEN_KINDS:
        return ""
    action = wire.AgentEventKind.Name(event.kind).lower().replace("_", " ")
    content = event.content
    if event.kind in TEXT_BOUND_KINDS:
        action = "says" if event.kind == wire.TEXT_END else "thinks"
        content = " ".join("".join(deltas).split())
        deltas.clear()
    elif event.kind == wire.TOOL_RESULT:
        first = next(iter(event.tool_output.splitlines()), "")
        content = f"{content} {'failed: ' if event.tool_is_error else ''}{first}".rstrip()
    elif event.kind in (wire.TURN_START, wire.USER_STEERED):
        action, content = "hears", " ".join(content.split())
    elif event.kind == wire.DONE:
        deltas_by_run.pop(event.run_id, None)
        content = f"{content} {event.error}".strip()
    clock = event.timestamp[11:19]
    missed = f" (after {event.missed} missed)" if event.missed else ""
    speakers = f"{event.guest or event.agent} with {event.sender}"
    return escape_controls(f"{clock} {speakers}: {action} {content}{missed}".rstrip())
