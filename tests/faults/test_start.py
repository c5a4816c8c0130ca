"""What a start does not load: it is late, or it is not there at all."""

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

# Each is loaded by whoever is the first to need it.
LATE = {
    *("aiohttp", "asyncpg", "botocore", "mcp", "pydantic", "tantivy", "tomlkit", "uvicorn"),
    *("difflib", "email", "importlib.metadata", "logging.handlers", "random", "secrets", "shutil"),
    *("sqlite3", "tempfile", "zipfile"),
}


@pytest.mark.req("daemon.start.light")
async def test_a_daemon_that_nobody_has_asked_anything_has_not_loaded_what_it_may_never_need(
    home: Path,
) -> None:
    words = (sys.executable, "-X", "importtime", CRABTALKD, "run", "--home", home, "--tcp", "off")
    process = await asyncio.create_subprocess_exec(*words, stderr=PIPE)
    assert process.stderr is not None
    try:
        said = ""
        async with asyncio.timeout(PATIENCE):
            while "is ready" not in said:
                said = (await process.stderr.readline()).decode()
                loaded = re.match(r"import time: .*\| +(\S+)$", said)
                assert loaded is None or loaded[1] not in LATE, said
            async with connect(home=home, reconnect_timeout=0) as client:
                assert len((await client.list_agents()).agents) == 1  # all is opened
        process.terminate()
        async with asyncio.timeout(PATIENCE):
            _, rest = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    after = set(re.findall(r"import time: .*\| +(\S+)$", rest.decode(), re.MULTILINE))
    assert after & LATE == set()
