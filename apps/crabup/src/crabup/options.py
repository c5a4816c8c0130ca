"""Options that several commands have."""

from pathlib import Path
from typing import Any

import click


class HomeDirectory(click.ParamType[Path]):
    name = "home"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("it is empty; leave it out, or name a directory", param, ctx)
        return Path(value).expanduser().absolute()


home_option = click.option(
    "--home",
    "given_home",
    type=HomeDirectory(),
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
json_option = click.option(
    "--json", "in_json", is_flag=True, help="One JSON document on standard output."
)


def home_at(given: Path | None) -> Path:
    from crabtalk.transport import default_home

    return given if given is not None else default_home()


def make_home(home: Path) -> None:
    """As the daemon makes it: closed to others."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
