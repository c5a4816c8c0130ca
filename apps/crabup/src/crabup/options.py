"""Options that several commands share."""

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


def resolve_home(given_home: Path | None) -> Path:
    from crabtalk.transport import default_home

    return given_home if given_home is not None else default_home()


def make_home(home: Path) -> None:
    """Make the home as the daemon does, readable only by its owner."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
