"""Hostile MCP servers do not affect calls to a well-behaved one."""

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
# Forty servers start at once, and twenty flood the host while the good one is called.
CROWDED_LIMITS = McpLimits(mcp_connect_seconds=12, mcp_call_seconds=5)
CALLS = 4
# The errors of calls to a server that does not read, by its mode.
UNHEARD = {"closed": "it closed its input", "full": "no answer within 2 s"}


def make_server(seed: int) -> McpServerConfig:
    words = ("-S", str(NONSENSE), str(seed))
    return McpServerConfig(f"n{seed}", sys.executable, words, auto_restart=False)


async def call_tool(world: McpWorld, name: str, agent: str, answers: Counter[str]) -> None:
    if name not in world.list_offered(agent):
        answers["gone"] += 1
        return
    try:
        text = (await world.call(name, agent, text="x")).text
        answers["answered"] += 1
    except McpCallError as error:
        text = f"refused: {error}"
        answers["refused"] += 1
    assert len(text) < 2_000_000


async def attack_host(world: McpWorld, seeds: list[int], answers: Counter[str]) -> None:
    for seed in seeds:
        world.declare(make_server(seed), agent=f"a{seed}")
    settled = {"connected", "failed"}
    await world.wait_until(
        lambda: all(set(world.list_statuses(f"a{seed}")) <= settled for seed in seeds)
    )
    for seed in seeds:
        answers[world.list_statuses(f"a{seed}")[0]] += 1
        if world.list_statuses(f"a{seed}") == ["failed"]:
            error = world.find_error(f"a{seed}")
            assert 5 < len(error) <= 2000
            assert all(unicodedata.category(c) != "Cc" for c in error), repr(error)
    offered = [(name, f"a{seed}") for seed in seeds for name in world.list_offered(f"a{seed}")[:3]]
    for _ in range(CALLS):
        await asyncio.gather(*(call_tool(world, name, agent, answers) for name, agent in offered))
    for seed in seeds:
        world.mcp.release(f"a{seed}")


async def call_beside_attack(world: McpWorld, seeds: list[int]) -> None:
    """Attack the host while a good server is called continuously."""
    answers: Counter[str] = Counter()
    await world.connect(build_tiny_server())
    host = world.mcp.host.pid
    assert host is not None
    attack = asyncio.ensure_future(attack_host(world, seeds, answers))
    durations = []
    while not attack.done():
        started_at = time.monotonic()
        assert await world.call_for_text("echo", text="still here") == "still here"
        durations.append(time.monotonic() - started_at)
        await asyncio.sleep(0.01)
    await attack
    summary = f"{len(durations)} calls beside it, longest {max(durations):.3f} s"
    log.info("%s, %s, %d MiB", answers, summary, read_resident_bytes(host) >> 20)
    assert answers["connected"] >= len(seeds) // 2
    assert answers["answered"] > 0
    assert answers["refused"] > 0
    assert read_resident_bytes(host) < (100 + 5 * len(seeds)) << 20
    assert world.mcp.host.pid == host, "it was not restarted"
    assert world.list_event_statuses() == ["connecting", "connected"]


@pytest.mark.req("mcp.deaf")
@pytest.mark.parametrize("how", ["closed", "full"])
async def test_a_server_that_does_not_read_delays_only_its_own_calls(
    tmp_path: Path, how: str
) -> None:
    """Not even a cancellation can be written to it."""
    deaf = McpServerConfig("deaf", sys.executable, ("-S", str(DEAF), how), auto_restart=False)
    async with open_world(tmp_path, LIMITS) as world:
        await world.connect(build_tiny_server())
        await world.connect(deaf, agent="loud")
        shouting = asyncio.ensure_future(world.call("shout", "loud", text="x" * 500_000))
        while not shouting.done():
            assert await world.call_for_text("echo", text="still here") == "still here"
        with pytest.raises(McpCallError, match=UNHEARD[how]):
            await shouting
        assert await world.call_for_text("echo", text="and on") == "and on"
        assert world.list_event_statuses() == ["connecting", "connected"], "it was not restarted"


@pytest.mark.req("mcp.release.calls")
async def test_a_call_fails_when_its_server_is_released(tmp_path: Path) -> None:
    async with open_world(tmp_path, LIMITS) as world:
        record = tmp_path / "record"
        await world.connect(build_tiny_server())
        await world.connect(build_tiny_server("--record", str(record)), agent="gone")
        waiting = asyncio.ensure_future(world.call("wait", "gone"))
        await world.wait_until(lambda: '"wait"' in record.read_text())
        world.mcp.release("gone")
        with pytest.raises(McpCallError, match="the server is no longer declared"):
            await waiting
        assert await world.call_for_text("echo", text="and on") == "and on"
        assert world.list_event_statuses() == ["connecting", "connected"], "it was not restarted"


@pytest.mark.clock
async def test_hostile_servers_do_not_affect_others(tmp_path: Path) -> None:
    async with open_world(tmp_path, LIMITS) as world:
        await call_beside_attack(world, list(range(8)))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.clock
async def test_hundreds_of_hostile_servers_do_not_affect_others(tmp_path: Path) -> None:
    async with open_world(tmp_path, CROWDED_LIMITS) as world:
        total: Counter[str] = Counter()
        for first in range(0, 400, 40):
            answers: Counter[str] = Counter()
            await attack_host(world, list(range(first, first + 40)), answers)
            assert answers["connected"] >= 20
            total += answers
        log.info("%s", total)
        await call_beside_attack(world, list(range(400, 440)))
