"""Options that several commands have."""

from pathlib import Path

import click

from crabtalk.service.command_line import HomeDirectory

home_option = click.option(
    "--home",
    "given_home",
    type=HomeDirectory(),
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)


def resolve_home(given: Path | None) -> Path:
    from crabtalk.transport import default_home

    return given if given is not None else default_home()


def make_home(home: Path) -> None:
    """As the daemon makes it: closed to others."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
