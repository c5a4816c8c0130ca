"""`python -m bench [name ...]` runs benchmarks. Without names it runs all and rewrites the README.

Benchmarks that take minutes are not among all: run them by name, as `python -m bench load`; they
have options of their own. `delivery` is among all and has options too.
"""

import os
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path

from bench import (
    accepted_turns,
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

from .tables import BenchTable

BENCHES: dict[str, Callable[[], list[BenchTable]]] = {
    "codec": codec.run_benchmark,
    "ping": ping.run_benchmark,
    "streaming": streaming.run_benchmark,
    "footprint": footprint.run_benchmark,
    "size": size.run_benchmark,
    "model": model.run_benchmark,
    "turns": turns.run_benchmark,
    "permissions": permissions.run_benchmark,
    "history": history.run_benchmark,
    "memory": memory.run_benchmark,
    "search": search.run_benchmark,
    "events": events.run_benchmark,
    "terminal": terminal.run_benchmark,
    "keys": terminal_keys.run_benchmark,
    "commands": commands.run_benchmark,
    "relay": web_relay.run_benchmark,
    "page": web_page.run_benchmark,
    "gateways": gateways.run_benchmark,
    "fleet": fleet.run_benchmark,
    "delivery": lambda: delivery.run_benchmark([]),
}
LONG_BENCHES: dict[str, Callable[[list[str]], list[BenchTable]]] = {
    "accepted": accepted_turns.run_benchmark,
    "client": client_keys.run_benchmark,
    "delivery": delivery.run_benchmark,
    "load": load.run_benchmark,
    "soak": soak.run_benchmark,
}
README = Path(__file__).with_name("README.md")
README_MARKS = "<!-- measured: rewritten by make bench -->", "<!-- end -->"


def main() -> None:
    if sys.argv[1:] and sys.argv[1] in LONG_BENCHES:
        for table in LONG_BENCHES[sys.argv[1]](sys.argv[2:]):
            print(table.render_markdown(), flush=True)
        return
    names = sys.argv[1:] or list(BENCHES)
    if unknown := set(names) - set(BENCHES):
        all_names = ", ".join({**BENCHES, **LONG_BENCHES})
        sys.exit(f"no bench called {', '.join(sorted(unknown))}; there are {all_names}")
    tables = []
    for name in names:
        for table in BENCHES[name]():
            print(table.render_markdown(), flush=True)
            tables.append(table)
    if names == list(BENCHES):
        write_readme(tables)


def write_readme(tables: list[BenchTable]) -> None:
    machine = (
        f"CPython {platform.python_version()}, {platform.system()} on {platform.machine()}, "
        f"{os.cpu_count()} cores."
    )
    body = "\n\n".join([machine, *(table.render_markdown().rstrip() for table in tables)])
    pattern = re.compile(f"{README_MARKS[0]}.*{README_MARKS[1]}", re.DOTALL)
    section = f"{README_MARKS[0]}\n\n{body}\n\n{README_MARKS[1]}"
    README.write_text(pattern.sub(lambda _: section, README.read_text()))


if __name__ == "__main__":
    main()
