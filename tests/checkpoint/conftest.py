"""A disk that takes no file above one MiB."""

import resource

import pytest


@pytest.fixture
def small_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # Python ignores the signal, so writing fails with EFBIG
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
