"""MCP lines: how servers and what happens to them are shown, to people and to programs."""

import shlex
from typing import TYPE_CHECKING, Any

from crabtalk.component.command import counted, line_width, one_line, styled

if TYPE_CHECKING:
    from crabtalk.protocol import wire

COLOURS = {"connected": "green", "failed": "red", "connecting": "yellow"}


def state(info: "wire.McpInfo") -> str:
    from crabtalk.protocol import wire

    return wire.McpStatus.Name(info.status).lower().removeprefix("mcp_status_")


def as_json(info: "wire.McpInfo") -> dict[str, Any]:
    return {
        "agent": info.source,
        "name": info.name,
        "status": state(info),
        "error": info.error,
        "tool_count": info.tool_count,
        "command": info.command,
        "args": list(info.args),
        "env": dict(info.env),
        "url": info.url,
        "auth": info.auth,
        "auto_restart": info.auto_restart,
    }


def what_it_is(info: "wire.McpInfo") -> str:
    return info.url or shlex.join([info.command, *info.args])


def row(info: "wire.McpInfo") -> tuple[str, ...]:
    how = state(info)
    tools = counted(info.tool_count, "tool") if how == "connected" else ""
    about = f"{what_it_is(info)}: {info.error}" if info.error else what_it_is(info)
    return (
        one_line(info.source) or "(all)",
        one_line(info.name),
        how,
        tools,
        one_line(about, max(40, line_width() - 40)),
    )


def details(info: "wire.McpInfo", tools: list[str]) -> list[str]:
    how = state(info)
    colour = COLOURS.get(how)
    known = [
        ("agent", one_line(info.source) or "(all)"),
        ("server", one_line(info.name)),
        ("state", styled(how, fg=colour) if colour else how),
        ("reason", one_line(info.error)),
        ("is", one_line(what_it_is(info))),
        ("env", one_line(" ".join(f"{key}={value}" for key, value in sorted(info.env.items())))),
        ("auth", one_line(info.auth)),
        ("restart", "" if info.auto_restart else "never"),
        ("tools", one_line(", ".join(tools)) or (str(info.tool_count) if info.tool_count else "")),
    ]
    return [f"{what:<8} {text}" for what, text in known if text]


def event_kind(event: "wire.McpEventMsg") -> str:
    from crabtalk.protocol import wire

    return wire.McpEventKind.Name(event.kind).lower().removeprefix("mcp_event_kind_")


def event_json(event: "wire.McpEventMsg") -> dict[str, Any]:
    return {
        "agent": event.agent,
        "name": event.name,
        "kind": event_kind(event),
        "tools": list(event.tools),
        "error": event.error,
        "timestamp": event.timestamp,
    }


def event_line(event: "wire.McpEventMsg") -> str:
    about = event.error or ", ".join(event.tools)
    head = f"{event.timestamp[11:19]} {one_line(event.agent) or '(all)'} {one_line(event.name)}"
    return f"{head}: {event_kind(event)} {one_line(about)}".rstrip()
