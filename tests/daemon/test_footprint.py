"""The modules of an idle daemon: each takes memory, and time before the first answer."""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from crabtalk.client import connect
from tests.forked_programs import PATIENCE, PIPE

RUN = """
import atexit, sys
atexit.register(lambda: print(*sys.modules))
from crabtalk.daemon.cli import main
main(["run", "--home", sys.argv[1], "--tcp", "127.0.0.1:0"])
"""
# Only needed for turns, tools or some requests, and too large for a daemon that only waits.
LATE = {
    *("aiohttp", "ctypes", "html", "shutil", "stringprep", "tantivy", "tomlkit", "tree_sitter"),
    *("crabtalk.memory.file_backend", "crabtalk.memory.memory", "crabtalk.memory.checksums"),
    *("crabtalk.model.openai", "crabtalk.policy.approvals", "crabtalk.policy.explanation"),
    *(
        "crabtalk.policy.shell.rules",
        "crabtalk.storage.memory_storage",
        "crabtalk.storage.verification",
    ),
}
# Bytes of our own source that may be loaded. 100 KB take about 0.3 MB of memory: before you raise
# this, import late what an idle daemon does not need. `python -m bench footprint` measures it.
MOST_SOURCE = 1_180_000


@pytest.fixture
async def loaded(home: Path) -> set[str]:
    """The modules of a daemon in an empty home that has answered one client."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, str(home)), stdout=PIPE, stderr=PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            assert b"is ready" in await process.stderr.readline()
            async with connect(home=home) as client:
                agents = await client.list_agents()  # waits until the daemon is open
                assert agents.agents
    finally:
        process.terminate()
        output, _ = await process.communicate()
    return set(output.decode().split())


@pytest.mark.req("daemon.idle.light")
async def test_an_idle_daemon_has_loaded_nothing_that_is_needed_only_later(
    loaded: set[str],
) -> None:
    assert {"crabtalk.daemon.handlers.daemon_server", "crabtalk.hooks.memory"} <= loaded
    assert not loaded & LATE
    assert all(map(find_spec, LATE)), "LATE names a module that does not exist"


@pytest.mark.req("daemon.idle.light")
async def test_an_idle_daemon_has_loaded_a_bounded_amount_of_code(loaded: set[str]) -> None:
    import crabtalk

    root = Path(crabtalk.__file__).parents[1]
    sizes = {
        name: get_source_size(root, name) for name in loaded if name.split(".")[0] == "crabtalk"
    }
    assert len(sizes) > 100
    assert sum(sizes.values()) <= MOST_SOURCE, sorted(sizes, key=lambda name: -sizes[name])


def get_source_size(root: Path, module: str) -> int:
    path = root.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.stat().st_size
