"""Every test has a home of its own, as in the daemon's tests."""

from tests.conftest import home, pytest_asyncio_loop_factories

__all__ = ["home", "pytest_asyncio_loop_factories"]
