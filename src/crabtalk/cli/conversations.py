"""crabtalk conversations: list, show, export and remove conversations."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    apply_style,
    escape_controls,
    format_count,
    format_table,
    get_line_width,
    json_option,
    measure_width,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .confirmation import require_confirmation, yes_option
from .errors import CommandError
from .memory_sources import explain_not_found
from .name_completion import AgentName
from .options import connect_daemon, home_option, inherit_from_root
from .times import format_local_time
from .wire_json import message_to_dict

if TYPE_CHECKING:
    from crabtalk.chat.export import ExportFormat
    from crabtalk.client import SyncClient
    from crabtalk.protocol import wire

PAGE_SIZE = 200  # messages per request
DEFAULT_LAST = 20
DEFAULT_SENDER = "user"
LIST_HINT = "`crabtalk conversations list` has all there are"

agent_argument = click.argument("agent", type=AgentName())
sender_option = click.option(
    "--sender",
    callback=lambda ctx, param, value: inherit_from_root(ctx, param, value) or DEFAULT_SENDER,
    help=f"Who speaks with the agent  [default: {DEFAULT_SENDER}]",
)


@click.group()
def conversations() -> None:
    """What agents and people have said to each other.

    \b
    Examples:
      crabtalk conversations list --agent crab
      crabtalk conversations show crab --last 5
      crabtalk conversations export crab --as html -o crab.html
      crabtalk conversations rm crab --sender tg:12345
    """


@conversations.command("list")
@click.option("--agent", type=AgentName(), default="", help="Only those with this agent.")
@click.option("--sender", default="", help="Only those of this sender.")
@click.option("--active", is_flag=True, help="Only those the daemon has in memory now.")
@home_option
@json_option
def conversations_list(
    agent: str, sender: str, active: bool, home: Path | None, in_json: bool
) -> None:
    """List conversations, the one used last first.

    \b
    Examples:
      crabtalk conversations list
      crabtalk conversations list --agent crab --active --json
    """
    with connect_daemon(home) as client:
        if active:
            infos = [
                message_to_dict(info)
                for info in client.list_active_conversations(agent, sender).conversations
            ]
        else:
            infos = [
                message_to_dict(info)
                for info in client.list_conversations(agent, sender).conversations
            ]
    if in_json:
        print_json({"conversations": infos})
    elif infos:
        print_output(format_conversation_list(infos))
    else:
        print_to_stderr("there are none")


@conversations.command("show")
@agent_argument
@sender_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=DEFAULT_LAST,
    show_default=True,
    metavar="N",
    help="Only the last N messages.",
)
@click.option("--all", "whole", is_flag=True, help="All of them.")
@home_option
@json_option
def conversations_show(
    agent: str, sender: str, last: int, whole: bool, home: Path | None, in_json: bool
) -> None:
    """Print what was said, the last of it last.

    \b
    Examples:
      crabtalk conversations show crab
      crabtalk conversations show crab --sender tg:12345 --last 100
      crabtalk conversations show crab --all --json
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        total = client.list_messages(agent, sender=sender, limit=1).total
        first = 0 if whole else max(0, total - last)
        messages = [
            message
            for page in iter_pages(client, agent, sender, first)
            for message in page.messages
        ]
    if in_json:
        print_json(
            {
                "agent": agent,
                "sender": sender,
                "total": total,
                "messages": [message_to_dict(message) for message in messages],
            }
        )
        return
    if not messages:
        print_to_stderr("nothing was said in it")
        return
    if first:
        print_to_stderr(f"{first} before these; --all shows them")
    text = "\n\n".join(format_message(message, agent, sender) for message in messages)
    if sys.stdout.isatty():
        print_output(text)
    else:
        click.echo(text.encode())


@conversations.command("export")
@agent_argument
@sender_option
@click.option(
    "--as",
    "kind",
    type=click.Choice(["md", "json", "html"]),
    default="md",
    show_default=True,
    help="In which form.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Into this file, in the place of what is there.",
)
@home_option
@json_option
def conversations_export(
    agent: str,
    sender: str,
    kind: "ExportFormat",
    output: Path | None,
    home: Path | None,
    in_json: bool,
) -> None:
    """Write a whole conversation as one document that needs nothing else.

    \b
    Examples:
      crabtalk conversations export crab > crab.md
      crabtalk conversations export crab --as html -o crab.html
    """
    from crabtalk.chat.export import create_exporter

    if in_json and output is None:
        kind = "json"
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        info = find_conversation(client, agent, sender)
        exporter = create_exporter(kind, agent=agent, sender=sender, title=info.title)
        with (
            nullcontext(sys.stdout)
            if output is None
            else output.open("w", encoding="utf-8") as file
        ):
            click.echo(exporter.begin(), file, nl=False, color=True)
            for page in iter_pages(client, agent, sender):
                click.echo(exporter.add(page.messages), file, nl=False, color=True)
            click.echo(exporter.end(), file, nl=False, color=True)
    if output is None:
        return
    if in_json:
        print_json({"file": str(output), "messages": info.message_count})
    else:
        print_to_stderr(f"{format_count(info.message_count, 'message')} written to {output}")


@conversations.command("rm")
@agent_argument
@sender_option
@yes_option
@home_option
@json_option
def conversations_rm(agent: str, sender: str, yes: bool, home: Path | None, in_json: bool) -> None:
    """Remove a conversation for good, with its archives.

    \b
    Examples:
      crabtalk conversations rm crab
      crabtalk conversations rm crab --sender tg:12345 --yes
    """
    with connect_daemon(home) as client:
        conversation = find_conversation(client, agent, sender)
        pair = f"{to_one_line(agent)} and {to_one_line(sender)}"
        count = format_count(conversation.message_count, "message")
        require_confirmation(f"Remove the conversation of {pair}, {count}?", yes)
        with explain_not_found(LIST_HINT):
            client.delete_conversation(conversation.file_path)
    if in_json:
        print_json({"removed": {"agent": agent, "sender": sender}})
    else:
        print_to_stderr(f"removed what {pair} said")


# ── Requests to the daemon ─────────────────────────────────────────────────────────────────────


def iter_pages(
    client: "SyncClient", agent: str, sender: str, first: int = 0
) -> "Iterator[wire.MessagePage]":
    """Yield all pages from message `first` on."""
    offset: int | None = first
    while offset is not None:
        page = client.list_messages(agent, sender=sender, offset=offset, limit=PAGE_SIZE)
        yield page
        offset = page.next_offset if page.HasField("next_offset") else None


def find_conversation(client: "SyncClient", agent: str, sender: str) -> "wire.ConversationInfo":
    """Return the conversation of exactly this pair: to the daemon an empty name means any."""
    for conversation in client.list_conversations(agent, sender).conversations:
        if (conversation.agent, conversation.sender) == (agent, sender):
            return conversation
    raise CommandError(
        f"{to_one_line(agent)} has had no conversation with {to_one_line(sender)}; {LIST_HINT}"
    )


# ── Formatting ─────────────────────────────────────────────────────────────────────────────────


def format_conversation_list(infos: Sequence[dict[str, Any]]) -> str:
    """Render one conversation per row. Conversations in memory have no date."""
    rows = [
        (
            to_one_line(info["agent"]),
            to_one_line(info["sender"]),
            format_count(info["message_count"], "message"),
            *([info["date"]] if "date" in info else []),
        )
        for info in infos
    ]
    used = sum(max(map(measure_width, column)) + 2 for column in zip(*rows, strict=True))
    room = max(20, get_line_width() - used)
    titles = [to_one_line(info["title"], room) or "(untitled)" for info in infos]
    return format_table([(*cell, title) for cell, title in zip(rows, titles, strict=True)])


def format_message(message: "wire.ConversationMessage", agent: str, sender: str) -> str:
    speaker = {"user": sender, "assistant": message.agent or agent}.get(message.role, message.role)
    head = (
        f"{apply_style(to_one_line(speaker), bold=True)} · {format_local_time(message.timestamp)}"
    )
    text = message.content.rstrip("\n")
    # A pipe gets the text unchanged; a terminal would obey control characters.
    body = [escape_controls(text, layout=True) if sys.stdout.isatty() else text] if text else []
    calls = [
        f"→ {to_one_line(f'{call.name} {call.arguments}', get_line_width() - 2)}"
        for call in message.tool_calls
    ]
    return "\n".join([head, *body, *calls])
