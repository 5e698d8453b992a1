"""Lets the garbage collector come rarely: in tests, and in processes that are forked from one that imports this.

Tests and Dask make many small objects that last. Before the collector runs, there may be more new ones than by default.
"""

import gc

NEW_OBJECTS = 10_000  # Python's own are 700


def collect_rarely() -> None:
    """Set the threshold of this process."""
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])


collect_rarely()
