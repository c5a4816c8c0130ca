"""Hosts that are started once for all tests of a module: each takes a second to load the SDK.

A test has its world to itself. When it is over, its agents are let go of, and their servers end.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from crabtalk.mcp import McpLimits
from tests.mcp.world import PATIENCE, McpWorld, open_world

# However busy the machine, a first turn has the servers its test speaks of.
PATIENT_LIMITS = McpLimits(mcp_wait_seconds=PATIENCE)
HURRIED_LIMITS = McpLimits(
    mcp_connect_seconds=3, mcp_call_seconds=2, mcp_calls=1, mcp_wait_seconds=1
)
ADDED_ENVIRONMENT = {"BEACH": "north", "TIDE": "low"}  # to the environment of every server


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
    """A world where things take the time they take."""
    yield patient_host
    await patient_host.release_all()


@pytest_asyncio.fixture(loop_scope="module")
async def hurried_world(hurried_host: McpWorld) -> AsyncIterator[McpWorld]:
    """A world with HURRIED limits."""
    yield hurried_host
    await hurried_host.release_all()
