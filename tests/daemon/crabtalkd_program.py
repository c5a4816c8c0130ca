"""crabtalkd as a process: a fast one forked from preloaded modules, and the installed one.

Tests of imports or of the environment start the installed one; each command has at least one test
that does.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.forked_programs import DEVNULL, PATIENCE, PIPE, ForkedProgram

CRABTALKD = Path(sys.executable).with_name("crabtalkd")
CRABTALKD_PROGRAM = ForkedProgram(
    *(CRABTALKD, "crabtalk.daemon.cli:main"),
    *(
        "crabtalk.daemon.daemon",
        "crabtalk.daemon.process.main_loop",
        "crabtalk.daemon.handlers.daemon_server",
    ),
    *(
        "crabtalk.daemon.process.log_handler",
        "crabtalk.daemon.config.models_command",
        "crabtalk.daemon.config.setup_wizard",
    ),
    *(
        "crabtalk.daemon.process.client_commands",
        "crabtalk.daemon.process.stop_command",
        "crabtalk.model.local.install",
    ),
    *("crabtalk.model.openai", "aiohttp", "tantivy", "tomlkit", "uvloop"),
)


async def run_installed(
    *words: str | Path, env: Mapping[str, str] | None = None
) -> tuple[int | None, str, str]:
    """Run the program as users start it. Returns exit status, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(CRABTALKD, *words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(os.environ if env is None else env),
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()
