"""Run the `crabtalk` command as a process, with pipes or at a terminal."""

import asyncio
import os
import pty
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crabtalk.cli.main import COMMANDS
from tests.daemon.in_process_daemon import PATIENCE
from tests.forked_programs import ForkedProgram, wait_readable

CRABTALK = Path(sys.executable).with_name("crabtalk")
INTERRUPT = "\x03"
WARM = ForkedProgram(
    CRABTALK,
    "crabtalk.cli.main:main",
    *sorted({f"crabtalk.cli.{place.partition(':')[0]}" for _, place in COMMANDS.values()}),
    *(
        "crabtalk.client",
        "crabtalk.memory",
        "crabtalk.cli.daemon_checks",
        "crabtalk.cli.daemon_startup",
    ),
)


@dataclass(frozen=True, slots=True)
class CliOutcome:
    code: int | None
    out: str
    err: str

    @property
    def output(self) -> str:
        """Stdout, after checking that it succeeded with an empty stderr."""
        assert (self.code, self.err) == (0, ""), self
        return self.out

    @property
    def error(self) -> str:
        """The error sentence, after checking that it failed with exactly one."""
        assert self.code == 1, self
        assert self.err.startswith("crabtalk: "), self
        assert self.err.count("\n") == 1, self
        return self.err.removeprefix("crabtalk: ").rstrip("\n")


async def run_crabtalk(*words: str | Path, typed: bytes = b"", **env: str) -> CliOutcome:
    """Run with pipes; `typed` is its standard input."""
    return CliOutcome(*await WARM.run_and_capture(*words, typed=typed, env={**os.environ, **env}))


async def run_at_terminal(
    *words: str | Path, typed: str = "", when: str = "", **env: str
) -> tuple[int | None, str]:
    """Run at a terminal; return its exit status and the screen.

    `typed`, also INTERRUPT, is typed as soon as `when` is on the screen.
    """
    master, slave = pty.openpty()
    screen = ""
    try:
        process = WARM.start(
            *words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", **env},
        )
        os.close(slave)
        os.set_blocking(master, False)
        async with asyncio.timeout(PATIENCE):
            while piece := await read_terminal(master):
                screen += piece
                if typed == INTERRUPT and when in screen:
                    await wait_until_asleep(process.pid)
                    process.send_signal(signal.SIGINT)
                elif typed and when in screen:
                    os.write(master, typed.encode())
                if when in screen:
                    typed = ""
            await process.wait()
    finally:
        os.close(master)  # processes still at the terminal get SIGHUP
    return process.returncode, screen.replace("\r\n", "\n")


async def wait_until_asleep(pid: int) -> None:
    """Wait until the process waits for input: a signal just before that may be lost."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        await asyncio.sleep(0)


async def read_terminal(terminal: int) -> str:
    """Read the next output; empty when the last program at the terminal has ended."""
    await wait_readable(terminal)
    with suppress(OSError):
        return os.read(terminal, 65536).decode(errors="replace")
    return ""


def strip_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
