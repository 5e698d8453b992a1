"""Calls of a user's code that makes records: with generators of random numbers seeded, and its errors named."""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np

from dsinga.base.errors import UserError

# Modules of Dask that draw numbers from ``random`` in threads of their own.
OTHERS_WHO_DRAW = (
    "distributed.comm.core",
    "distributed.scheduler",
    "distributed.utils_comm",
    "dask.sizeof",
    "tornado.ioloop",
)
_lock = threading.RLock()


@contextlib.contextmanager
def drawing() -> Iterator[Callable[..., None]]:
    """Yield a function that seeds the generators of this process by whole numbers; they go on afterwards as before.

    These are the generators of ``random``, of ``numpy.random`` and, where it is imported, that of torch for CPUs. All
    threads share them, so that one at a time draws.
    """
    for module in filter(None, map(sys.modules.get, OTHERS_WHO_DRAW)):
        if vars(module).get("random") is random:
            vars(module)["random"] = random.Random()  # so that it takes no numbers out of these sequences
    with _lock:
        of_python, of_numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
        of_torch = torch.get_rng_state() if torch else None
        try:
            yield _seed
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            if torch:
                torch.set_rng_state(of_torch)


def _seed(*numbers: int) -> None:
    """Seed the generators of this process by whole numbers, in their order."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Raise UserError, which names ``what`` was read, from any error of a user's code, also one that ends a program."""
    try:
        yield
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".strip().rstrip(".")
        ends = ", which would end the program" if isinstance(error, SystemExit) else ""
        raise UserError(f"{what} cannot be read: {text}{ends}") from error
