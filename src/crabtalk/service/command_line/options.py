"""Options that several programs have."""

from pathlib import Path
from typing import Any

import click


class HomeDirectory(click.ParamType[Path]):
    name = "home"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("it is empty; leave it out, or name a directory", param, ctx)
        return Path(value).expanduser().absolute()


def resolve_default_home() -> Path:
    from crabtalk.transport import default_home

    return default_home()


home_option = click.option(
    "--home",
    type=HomeDirectory(),
    metavar="DIR",
    default=resolve_default_home,
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
json_option = click.option(
    "--json", "in_json", is_flag=True, help="One JSON document on standard output."
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Log more.")
