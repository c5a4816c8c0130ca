"""Options that several commands have, and the daemon they lead to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from crabtalk.client import SyncClient


class HomeDirectory(click.ParamType[Path]):
    name = "home"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":
            self.fail("it is empty; leave it out, or name a directory", param, ctx)
        return Path(value).expanduser().absolute()


home_option = click.option(
    "--home",
    type=HomeDirectory(),
    metavar="DIR",
    help="The daemon's directory  [default: $CRABTALK_HOME, else ~/.crabtalk]",
)
json_option = click.option(
    "--json", "in_json", is_flag=True, help="One JSON document on standard output."
)


@contextmanager
def daemon(home: Path | None) -> Iterator["SyncClient"]:
    """A client of the daemon in `home`."""
    from crabtalk.client import connect_sync

    with connect_sync(home=home, client="crabtalk") as client:
        yield client
