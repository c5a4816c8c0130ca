"""MCP servers that mean no good, beside one that does: it is called as if they were not there."""

import asyncio
import logging
import os
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from crabtalk.mcp import McpCallError, McpLimits
from crabtalk.storage import McpServer
from tests.mcp.world import World, children, memory_of, tiny, world

log = logging.getLogger(__name__)
pytestmark = pytest.mark.one_loop

NONSENSE = Path(__file__).with_name("nonsense.py")
LIMITS = McpLimits(mcp_connect_seconds=3, mcp_call_seconds=2)
CALLS = 4


def server(seed: int) -> McpServer:
    words = ("-S", str(NONSENSE), str(seed))
    return McpServer(f"n{seed}", sys.executable, words, auto_restart=False)


async def call(there: World, name: str, agent: str, answers: Counter[str]) -> None:
    if name not in there.offered(agent):
        answers["gone"] += 1
        return
    try:
        text = (await there.call(name, agent, text="x")).text
        answers["answered"] += 1
    except McpCallError as error:
        text = f"refused: {error}"
        answers["refused"] += 1
    assert len(text) < 2_000_000


async def besiege(there: World, seeds: list[int], answers: Counter[str]) -> None:
    for seed in seeds:
        there.declare(server(seed), agent=f"a{seed}")
    settled = {"connected", "failed"}
    await there.until(lambda: all(set(there.statuses(f"a{seed}")) <= settled for seed in seeds))
    for seed in seeds:
        answers[there.statuses(f"a{seed}")[0]] += 1
        if there.statuses(f"a{seed}") == ["failed"]:
            error = there.error(f"a{seed}")
            assert 5 < len(error) < 2000
            assert all(unicodedata.category(c) != "Cc" for c in error), repr(error)
    offered = [(name, f"a{seed}") for seed in seeds for name in there.offered(f"a{seed}")[:3]]
    for _ in range(CALLS):
        await asyncio.gather(*(call(there, name, agent, answers) for name, agent in offered))
    for seed in seeds:
        there.mcp.release(f"a{seed}")


async def beside(there: World, seeds: list[int]) -> None:
    """The good one is asked all the time."""
    answers: Counter[str] = Counter()
    others = set(children(os.getpid()))  # of tests before this one
    await there.connected(tiny())
    siege = asyncio.ensure_future(besiege(there, seeds, answers))
    waited = []
    while not siege.done():
        begun = time.monotonic()
        assert await there.text("echo", text="still here") == "still here"
        waited.append(time.monotonic() - begun)
        await asyncio.sleep(0.01)
    await siege
    ours = set(children(os.getpid())) - others
    (host,) = [pid for pid in ours if "mcp" in command(pid)]
    log.info("%s, %d calls beside it, longest %.3f s", answers, len(waited), max(waited))
    assert answers["connected"] >= len(seeds) // 2
    assert answers["answered"] > 0
    assert answers["refused"] > 0
    assert memory_of(host) < 200 << 20
    assert there.statuses() == ["connected"]
    assert there.told().count("connected") == 1, "nobody had to start it again"


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_servers_that_mean_no_good_harm_nobody_but_themselves(tmp_path: Path) -> None:
    async with world(tmp_path, LIMITS) as there:
        await beside(there, list(range(8)))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_nor_do_hundreds_of_them(tmp_path: Path) -> None:
    async with world(tmp_path, LIMITS) as there:
        for first in range(0, 400, 40):
            answers: Counter[str] = Counter()
            await besiege(there, list(range(first, first + 40)), answers)
            assert answers["connected"] >= 20
        await beside(there, list(range(400, 440)))
