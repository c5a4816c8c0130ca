"""Raises the limit of open files for the length of a block."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raise_descriptor_limit(wanted: int) -> Iterator[None]:
    """Skips the test if the system does not allow this process so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may not open {wanted} files")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
