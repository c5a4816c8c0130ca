"""crabtalk kill, compact and archives: what is done with a conversation, and what came of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from crabtalk.component.command import (
    counted,
    document,
    json_option,
    one_line,
    say,
    show,
    table,
    visible,
)

from .complaints import CommandError
from .moments import local
from .names import AgentName
from .options import daemon, home_option, inherited, may_start
from .stores import known

if TYPE_CHECKING:
    from crabtalk.protocol import wire

USER = "user"  # the sender of those who name none
BETWEEN_KILLS = 1.0  # seconds
CONVERSATIONS = "`crabtalk conversations list` has those there are"

agent_argument = click.argument("agent", type=AgentName())
sender_option = click.option(
    "--sender", callback=inherited, metavar="NAME", help=f"Whose conversation  [default: {USER}]"
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
    with daemon(home) as client:
        is_known = client.kill(agent, sender=sender or "")
    if not is_known:
        raise CommandError(
            f"there is no conversation of {one_line(sender or USER)} with {one_line(agent)}; "
            f"{CONVERSATIONS}"
        )
    if in_json:
        document({"agent": agent, "sender": sender or USER})
    else:
        say(f"{one_line(agent)} does nothing for {one_line(sender or USER)} any more")


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

    from .starting import ensure_daemon

    ensure_daemon(home, start=may_start(), say=say)
    with known(CONVERSATIONS):
        summary = asyncio.run(compacted(home, agent, sender or "", fresh=fresh))
    if in_json:
        document({"agent": agent, "sender": sender or USER, "summary": summary})
    elif fresh:
        say("it begins with no history now; `crabtalk archives` has what was said")
    else:
        show(visible(summary, layout=True))


async def compacted(home: Path | None, agent: str, sender: str, *, fresh: bool) -> str:
    """The summary. Cancelled, as by Ctrl+C, the daemon stops too, and what came of it is told."""
    import asyncio

    from crabtalk.client import ServerError, connect

    async with connect(home=home, client="crabtalk") as client:
        answer = asyncio.ensure_future(client.compact(agent, sender=sender, fresh=fresh))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            while not answer.done():  # a turn that came before it may be what the first one ends
                await client.kill(agent, sender=sender)
                await asyncio.wait([answer], timeout=BETWEEN_KILLS)
            try:
                return answer.result()  # it was done by then
            except ServerError as error:
                say(f"crabtalk: {one_line(error.message)}")
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
    with daemon(home) as client, known(CONVERSATIONS):
        found = list(client.list_archives(agent, sender=sender).archives)
    if name is not None:
        found = [archive for archive in found if archive.name == name]
        if not found:
            raise CommandError(
                f"no archive is called {name!r}; `crabtalk archives {agent}` has the names"
            )
    if in_json:
        document({"archives": [as_json(archive) for archive in found]})
    elif name is not None:
        show(visible(found[0].summary, layout=True))
    elif found:
        show(table([row(archive) for archive in found]))
    else:
        say("nothing was compacted yet")


def as_json(archive: "wire.ArchiveInfo") -> dict[str, Any]:
    from .objects import as_object

    return as_object(archive)


def row(archive: "wire.ArchiveInfo") -> tuple[str, ...]:
    count = counted(archive.end_id - archive.first_id, "message")
    return local(archive.archived_at), one_line(archive.name), count, one_line(archive.title)
