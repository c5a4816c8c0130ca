"""crabtalk stats and reload: show the daemon's state, and have it read its files again."""

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

from .fleet import format_fleet
from .options import connect_daemon, home_option
from .times import format_age

# The daemon looks for a model only when the first turn needs one.
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
        info = client.get_stats()
    if in_json:
        from .wire_json import message_to_dict

        print_json(
            {"home": str(home or default_home()), "version": version, **message_to_dict(info)}
        )
        return
    rows = [
        ("crabtalkd", f"{to_one_line(version)} in {home or default_home()}"),
        ("runs", f"since {format_age(info.uptime_secs)}"),
        ("model", to_one_line(info.active_model) or MODEL_UNKNOWN),
        ("agents", str(info.registered_agents)),
        (
            "conversations",
            f"{info.active_conversations} in memory, {format_count(info.runs, 'turn')} running",
        ),
        *(format_fleet(info.fleet) if info.HasField("fleet") else ()),
        *(("problem", to_one_line(problem)) for problem in info.problems),
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
