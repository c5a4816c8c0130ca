"""Modules that a start must not load, because they are imported late or not at all."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from crabtalk.client import connect
from tests.daemon.crabtalkd_program import CRABTALKD
from tests.forked_programs import PIPE
from tests.model_server import PATIENCE

pytestmark = pytest.mark.one_loop

# Each of these is imported at its first use.
LATE = {
    *("aiohttp", "asyncpg", "botocore", "mcp", "pydantic", "tantivy", "tomlkit", "uvicorn"),
    *("difflib", "email", "importlib.metadata", "logging.handlers", "random", "secrets", "shutil"),
    *("sqlite3", "tempfile", "zipfile"),
}


@pytest.mark.req("daemon.start.light")
async def test_an_idle_daemon_has_not_loaded_modules_it_may_never_need(
    home: Path,
) -> None:
    words = (sys.executable, "-X", "importtime", CRABTALKD, "run", "--home", home, "--tcp", "off")
    process = await asyncio.create_subprocess_exec(*words, stderr=PIPE)
    assert process.stderr is not None
    try:
        line = ""
        async with asyncio.timeout(PATIENCE):
            while "is ready" not in line:
                line = (await process.stderr.readline()).decode()
                loaded = re.match(r"import time: .*\| +(\S+)$", line)
                assert loaded is None or loaded[1] not in LATE, line
            async with connect(home=home, reconnect_timeout=0) as client:
                assert len((await client.list_agents()).agents) == 1  # opens all stores
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            _, rest = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    after = set(re.findall(r"import time: .*\| +(\S+)$", rest.decode(), re.MULTILINE))
    assert after & LATE == set()
