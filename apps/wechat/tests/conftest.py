"""A home of its own for every test, as the daemon's tests have."""

from tests.conftest import (
    _no_home_of_the_developer,
    home,
    pytest_asyncio_loop_factories,
)

__all__ = ["_no_home_of_the_developer", "home", "pytest_asyncio_loop_factories"]
