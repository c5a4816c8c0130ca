"""Fixtures with MCP hosts, started once for a module: loading the SDK takes a second.

After each test all its agents are released and their servers end.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from crabtalk.mcp import McpLimits
from tests.mcp.world import PATIENCE, McpWorld, open_world

# Even on a busy machine, a first turn waits for the servers of its test.
PATIENT_LIMITS = McpLimits(mcp_wait_seconds=PATIENCE)
HURRIED_LIMITS = McpLimits(
    mcp_connect_seconds=3, mcp_call_seconds=2, mcp_calls=1, mcp_wait_seconds=1
)
ADDED_ENVIRONMENT = {"BEACH": "north", "TIDE": "low"}  # to every server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient_host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpWorld]:
    async with open_world(
        tmp_path_factory.mktemp("mcp"), PATIENT_LIMITS, env=ADDED_ENVIRONMENT
    ) as shared:
        yield shared


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hurried_host(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpWorld]:
    async with open_world(tmp_path_factory.mktemp("mcp"), HURRIED_LIMITS) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def mcp_world(patient_host: McpWorld) -> AsyncIterator[McpWorld]:
    """A world with PATIENT_LIMITS."""
    yield patient_host
    await patient_host.release_all()


@pytest_asyncio.fixture(loop_scope="module")
async def hurried_world(hurried_host: McpWorld) -> AsyncIterator[McpWorld]:
    """A world with HURRIED_LIMITS."""
    yield hurried_host
    await hurried_host.release_all()
