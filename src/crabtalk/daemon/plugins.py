"""Plugins: hooks that other distributions offer in the entry-point group `crabtalk.hooks`.

An entry point is something to call without arguments that returns a Hook. One that fails is a
problem to be shown; it keeps no other from being loaded, and the daemon from nothing.
"""

import logging

from crabtalk.runtime import Hook

log = logging.getLogger(__name__)

GROUP = "crabtalk.hooks"


def load_hooks() -> tuple[dict[str, Hook], list[str]]:
    """Those there are by name, and a sentence for each that cannot be used. Imports: call it late,
    and in a thread."""
    from importlib.metadata import entry_points

    hooks: dict[str, Hook] = {}
    problems: list[str] = []
    for entry in entry_points(group=GROUP):
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
