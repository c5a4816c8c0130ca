"""The command of a gateway as a process. PIGEON_COMMAND is the one in the manual's page.

outcome = await PIGEON_COMMAND.run_command("check", "--home", home)
async with PIGEON_COMMAND.run_gateway(home) as process: ...
"""

import asyncio
import os
import pty
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cli.cli_process import read_terminal
from tests.forked_programs import DEVNULL, PATIENCE, ForkedProcess, ForkedProgram
from tests.gateway.pigeon_page import read_source

# Modules that every gateway imports late.
LATE_IMPORTS = ("crabtalk.service", "crabtalk.client", "crabtalk.gateway.gateway")


@dataclass(frozen=True, slots=True)
class GatewayOutcome:
    code: int
    out: str
    err: str


class GatewayCommand:
    """`entry` is its entry point, `late` its late imports; `path` is for one not installed."""

    def __init__(self, name: str, entry: str, *late: str, path: Path | None = None) -> None:
        self.program = Path(sys.executable).with_name(name)
        self.launcher = ForkedProgram(
            self.program, entry, *LATE_IMPORTS, *late, "tomlkit", "uvloop"
        )
        self._path = path

    @property
    def environment(self) -> dict[str, str]:
        python_path = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(str(item) for item in (self._path, python_path) if item)
        return {**os.environ, "PYTHONPATH": path} if path else dict(os.environ)

    async def run_command(self, *words: str | Path, typed: str = "") -> GatewayOutcome:
        env = self.environment
        return GatewayOutcome(
            *await self.launcher.run_and_capture(*words, typed=typed.encode(), env=env)
        )

    async def run_at_terminal(
        self, *words: str | Path, typed_after: Mapping[str, str]
    ) -> tuple[int | None, str]:
        """The exit status and the screen. Each text of `types` is typed when its key is shown."""
        master, slave = pty.openpty()
        screen, waiting = "", dict(typed_after)
        try:
            process = self.launcher.start(
                *words,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                has_terminal=True,
                env={**self.environment, "TERM": "xterm", "COLUMNS": "100"},
            )
            os.close(slave)
            os.set_blocking(master, False)
            async with asyncio.timeout(PATIENCE):
                while piece := await read_terminal(master):
                    screen += piece
                    for prompt in [prompt for prompt in waiting if prompt in screen]:
                        os.write(master, waiting.pop(prompt).encode())
                await process.wait()
        finally:
            os.close(master)
        return process.returncode, screen.replace("\r\n", "\n")

    @asynccontextmanager
    async def run_gateway(self, home: Path, *words: str) -> AsyncIterator[ForkedProcess]:
        """Run the gateway, with its output in a file beside the home. Killed at the end."""
        with (home.parent / "output.log").open("ab") as output:
            process = self.launcher.start(
                "run",
                "--home",
                home,
                *words,
                stdin=DEVNULL,
                stdout=output.fileno(),
                stderr=output.fileno(),
                env=self.environment,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def make_pigeon_command() -> GatewayCommand:
    directory = tempfile.TemporaryDirectory(prefix="pigeon-")
    TEMPORARY_DIRECTORIES.append(directory)
    path = Path(directory.name)
    (path / "crabtalk_pigeon.py").write_text(read_source())
    return GatewayCommand("crabtalk-pigeon", "crabtalk_pigeon:main", path=path)


TEMPORARY_DIRECTORIES: list[tempfile.TemporaryDirectory[str]] = []  # removed when Python ends
PIGEON_COMMAND = make_pigeon_command()
