"""crabtalk stats and reload: how the daemon is, and having it read its files anew."""

from pathlib import Path
from typing import Any

import click

from crabtalk.service.command_line import (
    format_count,
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .fleet import format_fleet as rows_of
from .options import connect_daemon, home_option
from .times import format_age

# Before the first question nobody has looked for one.
MODEL_UNKNOWN = "not known yet; `crabtalkd models` says which would answer"


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

    with connect_daemon(home) as client:
        version = client.hello().server_version
        known = client.get_stats()
    if in_json:
        from .wire_json import message_to_dict

        print_json(
            {"home": str(home or default_home()), "version": version, **message_to_dict(known)}
        )
        return
    rows = [
        ("crabtalkd", f"{to_one_line(version)} in {home or default_home()}"),
        ("runs", f"since {format_age(known.uptime_secs)}"),
        ("model", to_one_line(known.active_model) or MODEL_UNKNOWN),
        ("agents", str(known.registered_agents)),
        (
            "conversations",
            f"{known.active_conversations} in memory, {format_count(known.runs, 'turn')} running",
        ),
        *(rows_of(known.fleet) if known.HasField("fleet") else ()),
        *(("problem", to_one_line(problem)) for problem in known.problems),
    ]
    print_output(format_table(rows))


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
    with connect_daemon(home) as client:
        client.reload()
        problems: list[Any] = list(client.get_stats().problems)
    if in_json:
        print_json({"problems": problems})
        return
    for problem in problems:
        print_to_stderr(f"crabtalk: {to_one_line(problem)}")
    print_to_stderr("reloaded, but for what is said above" if problems else "reloaded")
