"""What the tests of the web share with those of the daemon: both loops, a home of their own."""

from tests.conftest import _no_home_of_the_developer, home, pytest_asyncio_loop_factories

__all__ = ["_no_home_of_the_developer", "home", "pytest_asyncio_loop_factories"]
