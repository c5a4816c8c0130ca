"""crabtalk stats and reload: how the daemon is, and having it read its files anew."""

from pathlib import Path
from typing import Any

import click

from crabtalk.component.command import counted, document, json_option, one_line, say, show, table

from .fleet import rows as rows_of
from .moments import age
from .options import daemon, home_option

# Before the first question nobody has looked for one.
NO_MODEL = "not known yet; `crabtalkd models` says which would answer"


@click.command()
@home_option
@json_option
def stats(home: Path | None, in_json: bool) -> None:
    """Say how the daemon is: since when it runs, what it does, what is wrong.

    \b
    Examples:
      crabtalk stats
      crabtalk stats --json
    """
    from crabtalk.transport import default_home

    with daemon(home) as client:
        version = client.hello().server_version
        known = client.get_stats()
    if in_json:
        from .objects import as_object

        document({"home": str(home or default_home()), "version": version, **as_object(known)})
        return
    rows = [
        ("crabtalkd", f"{one_line(version)} in {home or default_home()}"),
        ("runs", f"since {age(known.uptime_secs)}"),
        ("model", one_line(known.active_model) or NO_MODEL),
        ("agents", str(known.registered_agents)),
        (
            "conversations",
            f"{known.active_conversations} in memory, {counted(known.runs, 'turn')} running",
        ),
        *(rows_of(known.fleet) if known.HasField("fleet") else ()),
        *(("problem", one_line(problem)) for problem in known.problems),
    ]
    show(table(rows))


@click.command()
@home_option
@json_option
def reload(home: Path | None, in_json: bool) -> None:
    """Have the daemon read configuration and agents anew. Turns go on as they are.

    \b
    Examples:
      crabtalk reload
      crabtalk reload --json
    """
    with daemon(home) as client:
        client.reload()
        problems: list[Any] = list(client.get_stats().problems)
    if in_json:
        document({"problems": problems})
        return
    for problem in problems:
        say(f"crabtalk: {one_line(problem)}")
    say("reloaded, but for what is said above" if problems else "reloaded")
