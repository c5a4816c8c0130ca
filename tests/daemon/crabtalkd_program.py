"""crabtalkd as a process: one that need not load what it consists of, and the installed one.

A test of how it is loaded, or of what it finds around it, starts the installed one; and for each
command there is a test that does.
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
    """Status and all that was said, of the program as users start it."""
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
