"""A home of its own for every test, as the daemon's tests have."""

from tests.conftest import home, pytest_asyncio_loop_factories

__all__ = ["home", "pytest_asyncio_loop_factories"]
