"""Plugins: hooks that other distributions offer in the entry-point group `crabtalk.hooks`.

An entry point is something to call without arguments that returns a Hook. One that fails is a
problem to be shown; it keeps no other from being loaded, and the daemon from nothing.
"""

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from crabtalk.runtime import Hook

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "crabtalk.hooks"


def load_hooks() -> tuple[dict[str, Hook], list[str]]:
    """Those there are by name, and a sentence for each that cannot be used. Imports: call it late,
    and in a thread."""
    hooks: dict[str, Hook] = {}
    problems: list[str] = []
    if not any(map(may_have_hooks, sys.path)):
        return hooks, problems
    # Two megabytes, for what few have any of.
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            hook = entry.load()()
        except Exception as error:
            log.exception("the hook %s cannot be loaded", entry.name)
            reason = f"{type(error).__name__}: {error}"
            problems.append(f"the hook {entry.name} ({entry.value}) cannot be loaded: {reason}")
            continue
        if isinstance(hook, Hook):
            hooks[entry.name] = hook
        else:
            problems.append(f"the hook {entry.name} ({entry.value}) is no crabtalk.runtime.Hook")
    return hooks, problems


def may_have_hooks(place: str) -> bool:
    """Whether a distribution in an entry of the path could have one: what looks like it is read
    properly, and what is no directory too."""
    heading = f"[{ENTRY_POINT_GROUP}]".encode()
    with suppress(OSError), os.scandir(place or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info", ".egg")):
                with suppress(OSError):
                    if entry.name.endswith(".egg"):
                        return True
                    if heading in Path(entry.path, "entry_points.txt").read_bytes():
                        return True
        return False
    return Path(place).is_file()
