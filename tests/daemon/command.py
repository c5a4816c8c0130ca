"""crabtalkd as a process: one that need not load what it consists of, and the installed one.

A test of how it is loaded, or of what it finds around it, starts the installed one; and for each
command there is a test that does.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm import DEVNULL, PATIENCE, PIPE, ForkedProgram

CRABTALKD = Path(sys.executable).with_name("crabtalkd")
CRABTALKD_PROGRAM = ForkedProgram(
    *(CRABTALKD, "crabtalk.daemon.cli:main"),
    *("crabtalk.daemon.daemon", "crabtalk.daemon.process", "crabtalk.daemon.server"),
    *("crabtalk.daemon.logs", "crabtalk.daemon.models", "crabtalk.daemon.setup"),
    *("crabtalk.daemon.remote", "crabtalk.daemon.stopping", "crabtalk.model.install"),
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
