"""Gives the compressor Blosc an unnamed lock, so that a killed process leaves no semaphore in the system."""

from __future__ import annotations

import multiprocessing

from numcodecs import blosc


def make_blosc_lock() -> None:
    """Make the lock that numcodecs makes when it first compresses or decompresses in a process.

    In a worker process, which is spawned, it would be a named semaphore. Where that process is killed, the name stays,
    and the program that has started it warns of a leak when it ends. The semaphores of the fork method have no names.
    """
    if not hasattr(blosc, "get_mutex"):  # another release of numcodecs
        return
    module = blosc.multiprocessing
    blosc.multiprocessing = multiprocessing.get_context("fork")
    try:
        blosc.get_mutex()
    finally:
        blosc.multiprocessing = module
