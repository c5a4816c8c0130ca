"""crabtalk kill, compact and archives: stop and compact conversations, and list their archives."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.service.command_line import (
    escape_controls,
    format_count,
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .errors import CommandError
from .memory_sources import explain_not_found
from .name_completion import AgentName
from .options import connect_daemon, home_option, inherit_from_root, may_start
from .times import format_local_time

if TYPE_CHECKING:
    from crabtalk.protocol import wire

DEFAULT_SENDER = "user"
KILL_INTERVAL = 1.0  # seconds
LIST_HINT = "`crabtalk conversations list` has those there are"

agent_argument = click.argument("agent", type=AgentName())
sender_option = click.option(
    "--sender",
    callback=inherit_from_root,
    metavar="NAME",
    help=f"Whose conversation  [default: {DEFAULT_SENDER}]",
)


@click.command()
@agent_argument
@sender_option
@home_option
@json_option
def kill(agent: str, sender: str | None, home: Path | None, in_json: bool) -> None:
    """Stop what AGENT does right now. What was said by then is kept.

    \b
    Examples:
      crabtalk kill crab
      crabtalk kill crab --sender tg:1
    """
    with connect_daemon(home) as client:
        is_known = client.kill(agent, sender=sender or "")
    if not is_known:
        raise CommandError(
            f"there is no conversation of {to_one_line(sender or DEFAULT_SENDER)} "
            f"with {to_one_line(agent)}; {LIST_HINT}"
        )
    if in_json:
        print_json({"agent": agent, "sender": sender or DEFAULT_SENDER})
    else:
        print_to_stderr(
            f"{to_one_line(agent)} does nothing for {to_one_line(sender or DEFAULT_SENDER)} "
            "any more"
        )


@click.command()
@agent_argument
@sender_option
@click.option("--fresh", is_flag=True, help="Without a summary: begin with no history.")
@home_option
@json_option
def compact(agent: str, sender: str | None, fresh: bool, home: Path | None, in_json: bool) -> None:
    """Fold what was said with AGENT into an archive, and print its summary.

    A model writes it, and the conversation goes on from there. All of it can still be found.

    \b
    Examples:
      crabtalk compact crab
      crabtalk compact crab --fresh
      crabtalk compact crab --sender tg:1 --json
    """
    import asyncio

    from .daemon_startup import ensure_daemon

    ensure_daemon(home, start=may_start(), say=print_to_stderr)
    with explain_not_found(LIST_HINT):
        summary = asyncio.run(compact_conversation(home, agent, sender or "", fresh=fresh))
    if in_json:
        print_json({"agent": agent, "sender": sender or DEFAULT_SENDER, "summary": summary})
    elif fresh:
        print_to_stderr("it begins with no history now; `crabtalk archives` has what was said")
    else:
        print_output(escape_controls(summary, layout=True))


async def compact_conversation(home: Path | None, agent: str, sender: str, *, fresh: bool) -> str:
    """Compact and return the summary.

    Cancelled, as by Ctrl+C, it stops the compaction at the daemon and waits for the outcome: the
    summary if it was done by then, else the error is printed and click.Abort raised.
    """
    import asyncio

    from crabtalk.client import ServerError, connect

    async with connect(home=home, client="crabtalk") as client:
        answer = asyncio.ensure_future(client.compact(agent, sender=sender, fresh=fresh))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            while not answer.done():  # the first kill may end an earlier turn
                await client.kill(agent, sender=sender)
                await asyncio.wait([answer], timeout=KILL_INTERVAL)
            try:
                return answer.result()  # it was done by then
            except ServerError as error:
                print_to_stderr(f"crabtalk: {to_one_line(error.message)}")
                raise click.Abort from None


@click.command()
@agent_argument
@click.argument("name", required=False)
@sender_option
@home_option
@json_option
def archives(
    agent: str, name: str | None, sender: str | None, home: Path | None, in_json: bool
) -> None:
    """List what was compacted of a conversation, or print the summary of one archive.

    \b
    Examples:
      crabtalk archives crab
      crabtalk archives crab crab-user-a29b1b296a-1
    """
    with connect_daemon(home) as client, explain_not_found(LIST_HINT):
        archive_infos = list(client.list_archives(agent, sender=sender).archives)
    if name is not None:
        archive_infos = [archive for archive in archive_infos if archive.name == name]
        if not archive_infos:
            raise CommandError(
                f"no archive is called {name!r}; `crabtalk archives {agent}` has the names"
            )
    if in_json:
        print_json({"archives": [archive_to_json(archive) for archive in archive_infos]})
    elif name is not None:
        print_output(escape_controls(archive_infos[0].summary, layout=True))
    elif archive_infos:
        print_output(format_table([format_archive(archive) for archive in archive_infos]))
    else:
        print_to_stderr("nothing was compacted yet")


def archive_to_json(archive: "wire.ArchiveInfo") -> dict[str, Any]:
    from .wire_json import message_to_dict

    return message_to_dict(archive)


def format_archive(archive: "wire.ArchiveInfo") -> tuple[str, ...]:
    count = format_count(archive.end_id - archive.first_id, "message")
    return (
        format_local_time(archive.archived_at),
        to_one_line(archive.name),
        count,
        to_one_line(archive.title),
    )
