"""MCP servers that mean no good, beside one that does: it is called as if they were not there."""

import asyncio
import logging
import sys
import time
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

from crabtalk.mcp import McpCallError, McpLimits
from crabtalk.storage import McpServerConfig
from tests.mcp.world import McpWorld, build_tiny_server, open_world, read_resident_bytes

log = logging.getLogger(__name__)
pytestmark = pytest.mark.one_loop

NONSENSE = Path(__file__).with_name("nonsense_mcp_server.py")
DEAF = Path(__file__).with_name("deaf_mcp_server.py")
LIMITS = McpLimits(mcp_connect_seconds=3, mcp_call_seconds=2)
# Forty at once have to be loaded first, and twenty flood the host while a good one is called.
CROWDED_LIMITS = McpLimits(mcp_connect_seconds=12, mcp_call_seconds=5)
CALLS = 4
# What is said of a call to a server that does not hear, by how it does not.
UNHEARD = {"closed": "it closed its input", "full": "no answer within 2 s"}


def make_server(seed: int) -> McpServerConfig:
    words = ("-S", str(NONSENSE), str(seed))
    return McpServerConfig(f"n{seed}", sys.executable, words, auto_restart=False)


async def call_tool(there: McpWorld, name: str, agent: str, answers: Counter[str]) -> None:
    if name not in there.list_offered(agent):
        answers["gone"] += 1
        return
    try:
        text = (await there.call(name, agent, text="x")).text
        answers["answered"] += 1
    except McpCallError as error:
        text = f"refused: {error}"
        answers["refused"] += 1
    assert len(text) < 2_000_000


async def attack_host(there: McpWorld, seeds: list[int], answers: Counter[str]) -> None:
    for seed in seeds:
        there.declare(make_server(seed), agent=f"a{seed}")
    settled = {"connected", "failed"}
    await there.wait_until(
        lambda: all(set(there.list_statuses(f"a{seed}")) <= settled for seed in seeds)
    )
    for seed in seeds:
        answers[there.list_statuses(f"a{seed}")[0]] += 1
        if there.list_statuses(f"a{seed}") == ["failed"]:
            error = there.find_error(f"a{seed}")
            assert 5 < len(error) <= 2000
            assert all(unicodedata.category(c) != "Cc" for c in error), repr(error)
    offered = [(name, f"a{seed}") for seed in seeds for name in there.list_offered(f"a{seed}")[:3]]
    for _ in range(CALLS):
        await asyncio.gather(*(call_tool(there, name, agent, answers) for name, agent in offered))
    for seed in seeds:
        there.mcp.release(f"a{seed}")


async def call_beside_attack(there: McpWorld, seeds: list[int]) -> None:
    """The good one is asked all the time."""
    answers: Counter[str] = Counter()
    await there.connect(build_tiny_server())
    host = there.mcp.host.pid
    assert host is not None
    siege = asyncio.ensure_future(attack_host(there, seeds, answers))
    waited = []
    while not siege.done():
        begun = time.monotonic()
        assert await there.call_for_text("echo", text="still here") == "still here"
        waited.append(time.monotonic() - begun)
        await asyncio.sleep(0.01)
    await siege
    told = f"{len(waited)} calls beside it, longest {max(waited):.3f} s"
    log.info("%s, %s, %d MiB", answers, told, read_resident_bytes(host) >> 20)
    assert answers["connected"] >= len(seeds) // 2
    assert answers["answered"] > 0
    assert answers["refused"] > 0
    assert read_resident_bytes(host) < (100 + 5 * len(seeds)) << 20
    assert there.mcp.host.pid == host, "nobody had to start it again"
    assert there.list_event_statuses() == ["connecting", "connected"]


@pytest.mark.req("mcp.deaf")
@pytest.mark.parametrize("how", ["closed", "full"])
async def test_a_server_that_does_not_hear_holds_up_its_own_calls_alone(
    tmp_path: Path, how: str
) -> None:
    """Not even what should tell it to stop can be written to it."""
    deaf = McpServerConfig("deaf", sys.executable, ("-S", str(DEAF), how), auto_restart=False)
    async with open_world(tmp_path, LIMITS) as there:
        await there.connect(build_tiny_server())
        await there.connect(deaf, agent="loud")
        shouting = asyncio.ensure_future(there.call("shout", "loud", text="x" * 500_000))
        while not shouting.done():
            assert await there.call_for_text("echo", text="still here") == "still here"
        with pytest.raises(McpCallError, match=UNHEARD[how]):
            await shouting
        assert await there.call_for_text("echo", text="and on") == "and on"
        assert there.list_event_statuses() == ["connecting", "connected"], (
            "nobody had to start it again"
        )


@pytest.mark.req("mcp.release.calls")
async def test_a_call_ends_with_its_server_when_that_is_let_go_of(tmp_path: Path) -> None:
    async with open_world(tmp_path, LIMITS) as there:
        record = tmp_path / "record"
        await there.connect(build_tiny_server())
        await there.connect(build_tiny_server("--record", str(record)), agent="gone")
        waiting = asyncio.ensure_future(there.call("wait", "gone"))
        await there.wait_until(lambda: '"wait"' in record.read_text())
        there.mcp.release("gone")
        with pytest.raises(McpCallError, match="the server is no longer declared"):
            await waiting
        assert await there.call_for_text("echo", text="and on") == "and on"
        assert there.list_event_statuses() == ["connecting", "connected"], (
            "nobody had to start it again"
        )


@pytest.mark.clock
async def test_servers_that_mean_no_good_harm_nobody_but_themselves(tmp_path: Path) -> None:
    async with open_world(tmp_path, LIMITS) as there:
        await call_beside_attack(there, list(range(8)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.clock
async def test_nor_do_hundreds_of_them(tmp_path: Path) -> None:
    async with open_world(tmp_path, CROWDED_LIMITS) as there:
        all_of_them: Counter[str] = Counter()
        for first in range(0, 400, 40):
            answers: Counter[str] = Counter()
            await attack_host(there, list(range(first, first + 40)), answers)
            assert answers["connected"] >= 20
            all_of_them += answers
        log.info("%s", all_of_them)
        await call_beside_attack(there, list(range(400, 440)))
