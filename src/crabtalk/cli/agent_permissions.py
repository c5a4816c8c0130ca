"""crabtalk agents explain: what a sender may do with an agent, and why, according to the daemon."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from crabtalk.service.command_line import (
    apply_style,
    escape_controls,
    format_table,
    get_line_width,
    json_option,
    measure_width,
    print_json,
    print_output,
    to_one_line,
)

from .errors import CommandError
from .memory_sources import explain_not_found
from .name_completion import AgentName
from .options import MODES, connect_daemon, home_option, inherit_from_root

if TYPE_CHECKING:
    from crabtalk.protocol import wire

LIST_HINT = "`crabtalk agents list` has the names"
COLOURS = {"allow": "green", "ask": "yellow", "deny": "red"}


@click.command("explain")
@click.argument("name", type=AgentName())
@click.option(
    "--sender",
    callback=inherit_from_root,
    metavar="NAME",
    help="Who asks the agent  [default: user]",
)
@click.option(
    "--mode",
    type=click.Choice([*MODES]),
    metavar="MODE",
    help="In this mode  [default: the conversation's]",
)
@home_option
@json_option
def agents_explain(
    name: str, sender: str | None, mode: str | None, home: Path | None, in_json: bool
) -> None:
    """Show what a sender may do with an agent, tool by tool, and why.

    \b
    Examples:
      crabtalk agents explain crab
      crabtalk agents explain crab --sender tg:1
      crabtalk agents explain crab --sender tg:1 --mode plan --json
    """
    from crabtalk.client import ServerError

    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        try:
            permissions = client.explain_agent(name, sender=sender, mode=mode)
        except ServerError as error:
            if error.code != 501:
                raise
            raise CommandError(
                "this daemon cannot explain permissions; start a newer crabtalkd"
            ) from None
    if in_json:
        from .wire_json import message_to_dict

        print_json(message_to_dict(permissions))
    else:
        print_output(format_permissions(permissions))


def format_permissions(permissions: "wire.AgentPermissions") -> str:
    """Render who the sender is, one row per tool, and notes about all tools."""
    reason = f": {to_one_line(permissions.origin_reason)}" if permissions.origin_reason else ""
    head = f"{to_one_line(permissions.sender)} is {describe_origin(permissions.origin)}{reason}"
    parts = [head, f"mode: {to_one_line(permissions.mode)}"]
    if permissions.tools:
        parts.append(format_tools(permissions.tools))
    if permissions.notes:
        parts.append(
            "\n".join(f"- {escape_controls(' '.join(note.split()))}" for note in permissions.notes)
        )
    return "\n\n".join(parts)


def format_tools(tools: "Sequence[wire.ToolPermission]") -> str:
    import textwrap

    rows = [
        (
            to_one_line(tool_permission.tool),
            to_one_line(tool_permission.verdict),
            to_one_line(tool_permission.reason),
        )
        for tool_permission in tools
    ]
    widths = [max(measure_width(row[column]) for row in rows) for column in (0, 1)]
    room = max(get_line_width() - sum(widths) - 4, 20)
    lines: list[tuple[str, str, str]] = []
    for tool, verdict, reason in rows:
        first, *rest = textwrap.wrap(reason, room) or [""]
        lines.append((tool, verdict, first))
        lines += [("", "", more) for more in rest]
    return "\n".join(
        colour_verdict(line, verdict)
        for line, (_, verdict, _) in zip(format_table(lines).split("\n"), lines, strict=True)
    )


def colour_verdict(line: str, verdict: str) -> str:
    """Colour the verdict in the second column; the first column has no spaces in it."""
    if verdict not in COLOURS:
        return line
    tool, _, rest = line.partition(" ")
    return f"{tool} {rest.replace(verdict, apply_style(verdict, fg=COLOURS[verdict]), 1)}"


def describe_origin(origin: str) -> str:
    descriptions = {"owner": "an owner", "stranger": "a stranger", "trusted": "trusted"}
    return descriptions.get(origin, to_one_line(origin))
