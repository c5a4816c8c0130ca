"""Names of components. They are also used as names of files and units."""

import re

from .errors import ComponentError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# The daemon's own port file is `run/crabtalk.port`.
DAEMON_NAME = "crabtalk"


def check_component_name(name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        raise ComponentError(
            f"{name!r} cannot be the name of a component: take lower-case letters, digits, - and _"
        )
    if name == DAEMON_NAME:
        raise ComponentError(f"{name!r} is the daemon's own name: take another")
