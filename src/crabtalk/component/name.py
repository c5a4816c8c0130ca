"""Names of components: they are names of files, too, and of units."""

import re

from .errors import ComponentError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# The daemon's own port file is `run/crabtalk.port`.
TAKEN = "crabtalk"


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ComponentError(
            f"{name!r} cannot be the name of a component: take lower-case letters, digits, - and _"
        )
    if name == TAKEN:
        raise ComponentError(f"{name!r} is the daemon's own name: take another")
