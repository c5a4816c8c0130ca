"""Fixtures and settings for all tests: both event loops, and a separate home directory."""

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.postgres import (  # noqa: F401, fixtures
    needs_postgres,
    postgres_server,
    postgres_template,
    postgres_url,
    private_postgres,
)

# How long an example takes depends more on the machine than on the code. `make test-slow` runs the
# thorough profile.
ANY_MACHINE = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", ANY_MACHINE)
settings.register_profile("thorough", ANY_MACHINE, max_examples=1000)
settings.load_profile("any machine")


# A test that does not name a home must not find the developer's.
os.environ["CRABTALK_HOME"] = "/dev/null/home"


def pytest_sessionstart() -> None:
    """Collected tests live until the end: scanning them for garbage is a waste."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Freeze half a million objects, which would cost half a second per collection."""
    gc.freeze()
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test on asyncio's loop and on uvloop.

    Tests marked `one_loop` mostly wait for processes that have their own loops.
    """
    if item.get_closest_marker("one_loop") is not None:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as flaky or slow.

    A test with a database costs as much as ten others, so it runs only on uvloop, as daemons do.
    Other work on the machine makes measured times longer, never shorter. So a time that is too long
    is measured again: really slow code fails three times.
    """
    for item in items:
        if item.get_closest_marker("clock") is not None:
            item.add_marker(pytest.mark.flaky(reruns=2))
        given = getattr(getattr(item, "callspec", None), "params", {})
        is_standard = given.get("_asyncio_loop_factory") is asyncio.new_event_loop
        if is_standard and needs_postgres(item, given.values()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
