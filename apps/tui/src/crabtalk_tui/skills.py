"""crabtalk skills: what agents have been taught, and where it comes from."""

from pathlib import Path

import click

from crabtalk.component.command import document, json_option, one_line, say, show, table

from .options import daemon, home_option


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
    with daemon(home) as client:
        found = client.list_skills().skills
    if in_json:
        from .objects import as_object

        document({"skills": [as_object(each) for each in found]})
    elif found:
        show(table([(one_line(each.name), one_line(each.source)) for each in found]))
    else:
        say("there are no skills yet; one is a folder in skills/ of the home, with a SKILL.md")
