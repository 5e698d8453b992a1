"""A fixture that limits the size of files to one MiB, as a full disk would."""

import resource

import pytest


@pytest.fixture
def small_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # Python ignores the signal, so writing fails with EFBIG
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
