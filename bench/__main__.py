"""`python -m bench [name ...]` measures; without names everything, and rewrites the README.

What takes minutes is not part of everything: `python -m bench load`, `python -m bench soak`, each
with options of its own. `delivery` is part of everything and has options too.
"""

import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path

from . import (
    accepted,
    client_keys,
    codec,
    commands,
    delivery,
    events,
    fleet,
    footprint,
    gateways,
    history,
    load,
    memory,
    model,
    permissions,
    ping,
    search,
    size,
    soak,
    streaming,
    terminal,
    terminal_keys,
    turns,
    web_page,
    web_relay,
)
from .report import Table

BENCHES: dict[str, Callable[[], list[Table]]] = {
    "codec": codec.run,
    "ping": ping.run,
    "streaming": streaming.run,
    "footprint": footprint.run,
    "size": size.run,
    "model": model.run,
    "turns": turns.run,
    "permissions": permissions.run,
    "history": history.run,
    "memory": memory.run,
    "search": search.run,
    "events": events.run,
    "terminal": terminal.run,
    "keys": terminal_keys.run,
    "commands": commands.run,
    "relay": web_relay.run,
    "page": web_page.run,
    "gateways": gateways.run,
    "fleet": fleet.run,
    "delivery": lambda: delivery.run([]),
}
LONG: dict[str, Callable[[list[str]], list[Table]]] = {
    "accepted": accepted.run,
    "client": client_keys.run,
    "delivery": delivery.run,
    "load": load.run,
    "soak": soak.run,
}
README = Path(__file__).with_name("README.md")
MARKS = "<!-- measured: rewritten by make bench -->", "<!-- end -->"


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in LONG:
        for table in LONG[sys.argv[1]](sys.argv[2:]):
            print(table.markdown(), flush=True)
        return
    names = sys.argv[1:] or list(BENCHES)
    if unknown := set(names) - set(BENCHES):
        known = ", ".join({**BENCHES, **LONG})
        sys.exit(f"no bench called {', '.join(sorted(unknown))}; there are {known}")
    tables = []
    for name in names:
        for table in BENCHES[name]():
            print(table.markdown(), flush=True)
            tables.append(table)
    if names == list(BENCHES):
        write(tables)


def write(tables: list[Table]) -> None:
    where = (
        f"CPython {platform.python_version()}, {platform.system()} on {platform.machine()}, "
        f"{os.cpu_count()} cores."
    )
    body = "\n\n".join([where, *(table.markdown().rstrip() for table in tables)])
    measured = re.compile(f"{MARKS[0]}.*{MARKS[1]}", re.DOTALL)
    fresh = f"{MARKS[0]}\n\n{body}\n\n{MARKS[1]}"
    README.write_text(measured.sub(lambda _: fresh, README.read_text()))


if __name__ == "__main__":
    main()
