"""The `crabtalk-telegram` command as a process of its own."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.warm import DEVNULL, Program, Started

PROGRAM = Path(sys.executable).with_name("crabtalk-telegram")
WARM = Program(
    *(PROGRAM, "crabtalk_telegram.cli:main", "crabtalk.component", "crabtalk.client"),
    *("crabtalk.component.gateway.gateway", "crabtalk_telegram.opening", "tomlkit", "uvloop"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


async def called(*words: str | Path, typed: str = "") -> Outcome:
    return Outcome(*await WARM.said(*words, typed=typed.encode(), env=os.environ))


@asynccontextmanager
async def running(home: Path, *words: str) -> AsyncIterator[Started]:
    """`crabtalk-telegram run`, with what it says in a file beside the home."""
    with (home.parent / "output.log").open("ab") as output:
        process = WARM.start(
            "run",
            "--home",
            home,
            *words,
            stdin=DEVNULL,
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
