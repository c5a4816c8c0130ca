"""Runs the test modules about conversations on files and on PostgreSQL: clients see no
difference."""

from inspect import signature

import pytest

from tests.daemon import in_process_daemon

SUITES = {
    *("test_stream", "test_restart", "test_seed_agent_first", "test_seed_conversations"),
    "test_seed_multi_agent",
}
# Less about conversations: on PostgreSQL they are marked as slow.
SLOW = {"test_server", "test_bus", "test_feed", "test_recall", "test_agents"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    suite = metafunc.module.__name__.rpartition(".")[2]
    has_home = "tmp_path" in signature(metafunc.function).parameters
    is_about_files = metafunc.definition.get_closest_marker("on_files") is not None
    if suite in SUITES | SLOW and has_home and not is_about_files:
        marks = [pytest.mark.slow] if suite in SLOW else []
        shared = pytest.param("postgres", marks=marks)
        metafunc.parametrize("_backend", ["files", shared], indirect=True)


@pytest.fixture(autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "files") == "postgres":
        monkeypatch.setattr(in_process_daemon, "DATABASE", request.getfixturevalue("postgres_url"))
