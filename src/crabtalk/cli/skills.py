"""crabtalk skills: list the skills of agents and where they come from."""

from pathlib import Path

import click

from crabtalk.service.command_line import (
    format_table,
    json_option,
    print_json,
    print_output,
    print_to_stderr,
    to_one_line,
)

from .options import connect_daemon, home_option


@click.command()
@home_option
@json_option
def skills(home: Path | None, in_json: bool) -> None:
    """List the skills that agents can use, and where each comes from.

    \b
    Examples:
      crabtalk skills
      crabtalk skills --json
    """
    with connect_daemon(home) as client:
        skills = client.list_skills().skills
    if in_json:
        from .wire_json import message_to_dict

        print_json({"skills": [message_to_dict(skill) for skill in skills]})
    elif skills:
        print_output(
            format_table([(to_one_line(skill.name), to_one_line(skill.source)) for skill in skills])
        )
    else:
        print_to_stderr(
            "there are no skills yet; one is a folder in skills/ of the home, with a SKILL.md"
        )
