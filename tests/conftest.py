"""What every test shares: both event loops, and a home directory of its own."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.postgres import (  # noqa: F401, fixtures
    postgres_server,
    postgres_template,
    postgres_url,
    private_postgres,
)

# How long an example takes says more about the machine than about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs on the standard loop and on uvloop, but for those that mostly wait for
    processes with loops of their own."""
    if item.get_closest_marker("one_loop") is not None:
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_home_of_the_developer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that forgets to name a home must not find the developer's."""
    monkeypatch.setenv("CRABTALK_HOME", str(tmp_path / "unnamed-home"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"
