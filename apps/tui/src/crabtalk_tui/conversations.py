"""crabtalk conversations: which there are, what was said in them, and taking it elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    cells,
    counted,
    document,
    json_option,
    line_width,
    one_line,
    say,
    show,
    styled,
    table,
    visible,
)

from .agreement import must_agree, yes_option
from .complaints import CommandError
from .moments import local
from .names import AgentName
from .objects import as_object
from .options import daemon, home_option, inherited
from .stores import known

if TYPE_CHECKING:
    from crabtalk.client import SyncClient
    from crabtalk.protocol import wire

    from .chat.exporting import Form

PAGE = 200  # messages asked for at a time
SHOWN = 20
USER = "user"  # who speaks where no sender is named
NAMES = "`crabtalk conversations list` has all there are"

agent_argument = click.argument("agent", type=AgentName())
sender_option = click.option(
    "--sender",
    callback=lambda ctx, param, value: inherited(ctx, param, value) or USER,
    help=f"Who speaks with the agent  [default: {USER}]",
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
    with daemon(home) as client:
        if active:
            found = [
                as_object(c) for c in client.list_active_conversations(agent, sender).conversations
            ]
        else:
            found = [as_object(c) for c in client.list_conversations(agent, sender).conversations]
    if in_json:
        document({"conversations": found})
    elif found:
        show(listing(found))
    else:
        say("there are none")


@conversations.command("show")
@agent_argument
@sender_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=SHOWN,
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
    with daemon(home) as client, known(NAMES):
        total = client.list_messages(agent, sender=sender, limit=1).total
        first = 0 if whole else max(0, total - last)
        said = [m for page in pages(client, agent, sender, first) for m in page.messages]
    if in_json:
        document(
            {
                "agent": agent,
                "sender": sender,
                "total": total,
                "messages": [as_object(each) for each in said],
            }
        )
        return
    if not said:
        say("nothing was said in it")
        return
    if first:
        say(f"{first} before these; --all shows them")
    text = "\n\n".join(message_text(each, agent, sender) for each in said)
    if sys.stdout.isatty():
        show(text)
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
    agent: str, sender: str, kind: "Form", output: Path | None, home: Path | None, in_json: bool
) -> None:
    """Write a whole conversation as one document that needs nothing else.

    \b
    Examples:
      crabtalk conversations export crab > crab.md
      crabtalk conversations export crab --as html -o crab.html
    """
    from .chat.exporting import exporter

    if in_json and output is None:
        kind = "json"
    with daemon(home) as client, known(NAMES):
        info = listed(client, agent, sender)
        made = exporter(kind, agent=agent, sender=sender, title=info.title)
        with (
            nullcontext(sys.stdout)
            if output is None
            else output.open("w", encoding="utf-8") as file
        ):
            click.echo(made.begin(), file, nl=False, color=True)
            for page in pages(client, agent, sender):
                click.echo(made.add(page.messages), file, nl=False, color=True)
            click.echo(made.end(), file, nl=False, color=True)
    if output is None:
        return
    if in_json:
        document({"file": str(output), "messages": info.message_count})
    else:
        say(f"{counted(info.message_count, 'message')} written to {output}")


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
    with daemon(home) as client:
        found = listed(client, agent, sender)
        who = f"{one_line(agent)} and {one_line(sender)}"
        must_agree(
            f"Remove the conversation of {who}, {counted(found.message_count, 'message')}?", yes
        )
        with known(NAMES):
            client.delete_conversation(found.file_path)
    if in_json:
        document({"removed": {"agent": agent, "sender": sender}})
    else:
        say(f"removed what {who} said")


# ── What the daemon is asked ───────────────────────────────────────────────────────────────────


def pages(
    client: "SyncClient", agent: str, sender: str, first: int = 0
) -> "Iterator[wire.MessagePage]":
    """From that message on, however many they are."""
    offset: int | None = first
    while offset is not None:
        page = client.list_messages(agent, sender=sender, offset=offset, limit=PAGE)
        yield page
        offset = page.next_offset if page.HasField("next_offset") else None


def listed(client: "SyncClient", agent: str, sender: str) -> "wire.ConversationInfo":
    """The one of that pair: an empty name would select all of them."""
    for each in client.list_conversations(agent, sender).conversations:
        if (each.agent, each.sender) == (agent, sender):
            return each
    raise CommandError(
        f"{one_line(agent)} has had no conversation with {one_line(sender)}; {NAMES}"
    )


# ── How it looks ───────────────────────────────────────────────────────────────────────────────


def listing(found: Sequence[dict[str, Any]]) -> str:
    """Those in memory have no date."""
    rows = [
        (
            one_line(each["agent"]),
            one_line(each["sender"]),
            counted(each["message_count"], "message"),
            *([each["date"]] if "date" in each else []),
        )
        for each in found
    ]
    used = sum(max(map(cells, column)) + 2 for column in zip(*rows, strict=True))
    room = max(20, line_width() - used)
    titles = [one_line(each["title"], room) or "(untitled)" for each in found]
    return table([(*cell, title) for cell, title in zip(rows, titles, strict=True)])


def message_text(message: "wire.ConversationMessage", agent: str, sender: str) -> str:
    who = {"user": sender, "assistant": message.agent or agent}.get(message.role, message.role)
    head = f"{styled(one_line(who), bold=True)} · {local(message.timestamp)}"
    text = message.content.rstrip("\n")
    # Into a pipe goes what was said; a terminal would obey it.
    body = [visible(text, layout=True) if sys.stdout.isatty() else text] if text else []
    calls = [
        f"→ {one_line(f'{c.name} {c.arguments}', line_width() - 2)}" for c in message.tool_calls
    ]
    return "\n".join([head, *body, *calls])
