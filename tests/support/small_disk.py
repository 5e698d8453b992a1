"""Fixtures that limit the size of files, as a full disk would. Imported by tests/conftest.py."""

import contextlib
import resource
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no file beyond ``size`` bytes: Python ignores the signal, so writing fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Limit files to a MiB."""
    with files_of_at_most(1 << 20):
        yield
