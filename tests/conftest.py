"""What every test shares: both event loops, and a home directory of its own."""

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

# How long an example takes says more about the machine than about the code. `make test-slow` has
# patience for the thorough ones.
ANY_MACHINE = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("any machine", ANY_MACHINE)
settings.register_profile("thorough", ANY_MACHINE, max_examples=1000)
settings.load_profile("any machine")


# A test that forgets to name a home finds none, and not the developer's.
os.environ["CRABTALK_HOME"] = "/dev/null/home"


def pytest_sessionstart() -> None:
    """What is collected stays until the end: to look for garbage in it costs and finds nothing."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Half a million objects, which would take half a second each time."""
    gc.freeze()
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on the standard loop and on uvloop, but for those that mostly wait for
    processes with loops of their own."""
    if item.get_closest_marker("one_loop") is not None:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of those with a database costs as much as ten others, so once has to do: on the loop
    that daemons have. What others do on this machine makes times longer and never shorter, so a
    time that is too long is measured again: what is slow by itself is too slow three times."""
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
