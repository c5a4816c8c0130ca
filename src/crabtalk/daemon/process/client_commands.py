"""What `crabtalkd reload`, `status` and `events` ask of the daemon that runs."""

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
# Deltas come in pieces; these end what is being said.
DELTA_KINDS = (wire.TEXT_DELTA, wire.THINKING_DELTA)
TEXT_BOUND_KINDS = (wire.TEXT_START, wire.TEXT_END, wire.THINKING_START, wire.THINKING_END)
# Before the first question nobody has looked for one.
NO_MODEL = "not known yet; `crabtalkd models` says which would answer"
HIDDEN_KINDS = (wire.TEXT_START, wire.THINKING_START, wire.TOOLS_COMPLETE, wire.CONTEXT_USAGE)


async def reload_daemon(home: Path) -> list[str]:
    """Returns what is wrong with the set-up now."""
    async with connect(home=home, client=CLIENT_NAME) as client:
        await client.reload()
        return [escape_controls(problem) for problem in (await client.get_stats()).problems]


async def describe_status(home: Path, in_json: bool) -> str:
    async with connect(home=home, client=CLIENT_NAME) as client:
        welcome = await client.hello()
        stats = await client.get_stats()
    known: dict[str, Any] = {
        "home": str(home),
        "version": welcome.server_version,
        "uptime_secs": stats.uptime_secs,
        "agents": stats.registered_agents,
        "active_conversations": stats.active_conversations,
        "runs": stats.runs,
        "model": stats.active_model,
        "problems": list(stats.problems),
    }
    return json.dumps(known) if in_json else "\n".join(map(escape_controls, format_status(known)))


def format_status(known: dict[str, Any]) -> list[str]:
    runs = format_count(known["runs"], "turn")
    uptime = format_duration(known["uptime_secs"])
    lines = [
        f"crabtalkd {known['version']} runs in {known['home']}, since {uptime}",
        f"model          {known['model'] or NO_MODEL}",
        f"agents         {known['agents']}",
        f"conversations  {known['active_conversations']} in memory, {runs} running",
    ]
    return [*lines, *(f"problem        {problem}" for problem in known["problems"])]


def format_duration(seconds: int) -> str:
    """`3 h 12 min`, in the two largest units that matter."""
    for size, name, smaller, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if seconds >= size:
            return f"{seconds // size} {name} {seconds % size // smaller} {part}"
    return f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"


async def print_events(home: Path, agent: str, sender: str, in_json: bool) -> None:
    """Prints what happens, one line a thing, until cancelled."""
    async with connect(home=home, client=CLIENT_NAME) as client:
        saying: dict[str, list[str]] = {}
        async for event in client.subscribe_events(agent=agent, sender=sender, all_kinds=True):
            if event.kind not in KNOWN_KINDS:
                continue  # the daemon is newer than this command
            line = format_event_json(event) if in_json else format_event_line(event, saying)
            if line:
                click.echo(line)


def format_event_json(event: wire.AgentEventMsg) -> str:
    """With its kind always there: its zero means something, and protobuf leaves zeros out."""
    known = MessageToDict(event, preserving_proto_field_name=True)
    kind = wire.AgentEventKind.Name(event.kind)
    return json.dumps({**known, "kind": kind}, ensure_ascii=False)


def format_event_line(event: wire.AgentEventMsg, saying: dict[str, list[str]]) -> str:
    """Pieces of text are shown together, when they are complete."""
    said = saying.setdefault(event.run_id, [])
    if event.kind in DELTA_KINDS:
        said.append(event.content)
        return ""
    if event.kind in HIDDEN_KINDS:
        return ""
    what = wire.AgentEventKind.Name(event.kind).lower().replace("_", " ")
    content = event.content
    if event.kind in TEXT_BOUND_KINDS:
        what = "says" if event.kind == wire.TEXT_END else "thinks"
        content = " ".join("".join(said).split())
        said.clear()
    elif event.kind == wire.TOOL_RESULT:
        first = next(iter(event.tool_output.splitlines()), "")
        content = f"{content} {'failed: ' if event.tool_is_error else ''}{first}".rstrip()
    elif event.kind in (wire.TURN_START, wire.USER_STEERED):
        what, content = "hears", " ".join(content.split())
    elif event.kind == wire.DONE:
        saying.pop(event.run_id, None)
        content = f"{content} {event.error}".strip()
    clock = event.timestamp[11:19]
    missed = f" (after {event.missed} missed)" if event.missed else ""
    who = f"{event.guest or event.agent} with {event.sender}"
    return escape_controls(f"{clock} {who}: {what} {content}{missed}".rstrip())
