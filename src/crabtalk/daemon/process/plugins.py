"""Plugins: hooks of other distributions, from the entry-point group `crabtalk.hooks`.

An entry point is a callable without arguments that returns a Hook. If one fails, that is a problem
to show; the others are still loaded and the daemon still starts.
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
    """The hooks by name, and a sentence for each that cannot be used. It imports modules: call it
    late and in a thread."""
    hooks: dict[str, Hook] = {}
    problems: list[str] = []
    if not any(map(may_have_hooks, sys.path)):
        return hooks, problems
    # Late: it takes two megabytes, and few installations have plugins.
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


def may_have_hooks(entry_path: str) -> bool:
    """Whether an entry of sys.path may have a distribution with hooks. True if unsure, for example
    for zip files."""
    heading = f"[{ENTRY_POINT_GROUP}]".encode()
    with suppress(OSError), os.scandir(entry_path or ".") as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info", ".egg")):
                with suppress(OSError):
                    if entry.name.endswith(".egg"):
                        return True
                    if heading in Path(entry.path, "entry_points.txt").read_bytes():
                        return True
        return False
    return Path(entry_path).is_file()
