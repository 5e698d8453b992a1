"""Memory that runs have freed goes back to the operating system; worker processes have one arena of it."""

import platform

import psutil
import pytest

from dsinga.cluster.dask.worker_memory import give_back_after
from tests.support.polling import wait_until

PIECE, PIECES = 100_000, 1000  # bytes: small enough for an arena

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory in arenas")


class Part:
    """A part of a run, with memory."""

    def __init__(self) -> None:
        self.pieces = [b"x" * PIECE for _ in range(PIECES)]


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


@needs_glibc
def test_memory_is_given_back_after_a_part_of_a_run_is_released() -> None:
    part = Part()
    last = b"x" * PIECE  # keeps the end of the arena, so that what lies before it stays when it is freed
    give_back_after(part)
    before = resident()
    del part
    wait_until(lambda: resident() <= before - PIECE * PIECES // 2)
    assert len(last) == PIECE
