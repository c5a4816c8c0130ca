"""Format MCP servers and their events, as lines for people and JSON for programs."""

import shlex
from typing import TYPE_CHECKING, Any

from crabtalk.service.command_line import apply_style, format_count, get_line_width, to_one_line

if TYPE_CHECKING:
    from crabtalk.protocol import wire

COLOURS = {"connected": "green", "failed": "red", "connecting": "yellow"}


def get_status(info: "wire.McpInfo") -> str:
    from crabtalk.protocol import wire

    return wire.McpStatus.Name(info.status).lower().removeprefix("mcp_status_")


def mcp_to_json(info: "wire.McpInfo") -> dict[str, Any]:
    return {
        "agent": info.source,
        "name": info.name,
        "status": get_status(info),
        "error": info.error,
        "tool_count": info.tool_count,
        "command": info.command,
        "args": list(info.args),
        "env": dict(info.env),
        "url": info.url,
        "auth": info.auth,
        "auto_restart": info.auto_restart,
    }


def describe_target(info: "wire.McpInfo") -> str:
    return info.url or shlex.join([info.command, *info.args])


def format_row(info: "wire.McpInfo") -> tuple[str, ...]:
    status = get_status(info)
    tools = format_count(info.tool_count, "tool") if status == "connected" else ""
    description = f"{describe_target(info)}: {info.error}" if info.error else describe_target(info)
    return (
        to_one_line(info.source) or "(all)",
        to_one_line(info.name),
        status,
        tools,
        to_one_line(description, max(40, get_line_width() - 40)),
    )


def format_details(info: "wire.McpInfo", tools: list[str]) -> list[str]:
    status = get_status(info)
    colour = COLOURS.get(status)
    rows = [
        ("agent", to_one_line(info.source) or "(all)"),
        ("server", to_one_line(info.name)),
        ("state", apply_style(status, fg=colour) if colour else status),
        ("reason", to_one_line(info.error)),
        ("is", to_one_line(describe_target(info))),
        ("env", to_one_line(" ".join(f"{key}={value}" for key, value in sorted(info.env.items())))),
        ("auth", to_one_line(info.auth)),
        ("restart", "" if info.auto_restart else "never"),
        (
            "tools",
            to_one_line(", ".join(tools)) or (str(info.tool_count) if info.tool_count else ""),
        ),
    ]
    return [f"{label:<8} {text}" for label, text in rows if text]


def get_event_kind(event: "wire.McpEventMsg") -> str:
    from crabtalk.protocol import wire

    return wire.McpEventKind.Name(event.kind).lower().removeprefix("mcp_event_kind_")


def event_to_json(event: "wire.McpEventMsg") -> dict[str, Any]:
    return {
        "agent": event.agent,
        "name": event.name,
        "kind": get_event_kind(event),
        "tools": list(event.tools),
        "error": event.error,
        "timestamp": event.timestamp,
    }


def format_event(event: "wire.McpEventMsg") -> str:
    description = event.error or ", ".join(event.tools)
    head = (
        f"{event.timestamp[11:19]} {to_one_line(event.agent) or '(all)'} {to_one_line(event.name)}"
    )
    return f"{head}: {get_event_kind(event)} {to_one_line(description)}".rstrip()
