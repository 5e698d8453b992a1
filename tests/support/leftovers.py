"""Finds what an ended run has left in a process while the garbage collector is off, and the cycles that keep it."""

import contextlib
import gc
import threading
import time
import tracemalloc
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from distributed.batched import BatchedSend

# Seconds until all of a run must be gone: Dask releases tasks by messages.
SECONDS = 60.0
# Bytes that may stay: cycles of Dask take some megabytes, and Python's table of interned strings may grow by 3.8 or 7.7
# MB, as that of any dict of so many. So the large arrays of a run have to take more.
BYTES = 9_000_000
IGNORED = (
    *("dsinga.base.errors.", "dsinga.cluster.transport.handshake.", "dsinga.ops.onednn.", "dsinga.cluster.dashboard."),
    "dsinga.cluster.dask.heartbeats.",
)
MEMORY = "bytes"
# Letters of a process's cycles that are shown, and lines that have allocated most.
SHOWN, LINES = 600, 5


@contextlib.contextmanager
def nothing_left(client: Any = None, ignored: Sequence[str] = ()) -> Iterator[None]:
    """Fail if the block leaves objects of dsinga, memory, threads, sockets or maps; no collector runs meanwhile.

    Looks into this process and, if a client is given, into the processes of its Dask workers. Another block must have
    done the same work before, so that caches are filled, and nothing else may run. ``ignored`` are names of classes.
    """
    everywhere = Everywhere(client)
    everywhere(begin)
    try:
        before = everywhere(holdings)
        yield
        deadline = time.monotonic() + SECONDS
        while any(left := [_more(*pair, ignored) for pair in zip(before, everywhere(holdings), strict=True)]):
            assert time.monotonic() < deadline, "\n".join(map(str, [*left, *everywhere(describe)]))
            threading.Event().wait(0.05)
    finally:
        everywhere(end)


class Everywhere:
    """Calls functions in this process and in the processes of Dask workers, one after the other."""

    def __init__(self, client: Any):
        self._client = client

    def __call__(self, function: Callable[[], Any]) -> list[Any]:
        """Return the results, this process's first."""
        remote = self._client.run(function) if self._client is not None else {}
        return [function(), *remote.values()]


def begin() -> None:
    """Collect all garbage, then switch the collector off and count the bytes of everything that is made."""
    gc.collect()
    gc.disable()
    tracemalloc.start(1)


def end() -> None:
    """Switch the collector on again."""
    tracemalloc.stop()
    gc.enable()


def holdings() -> Counter[str]:
    """Return how many of these the process has: objects of dsinga by class, bytes, its threads, maps, sockets.

    These do not count: the last messages and runs, of which Dask and the dashboard keep a limited number; errors, which
    Dask keeps in cycles, with the secret in the key of a worker that has failed; the objects of oneDNN that each
    thread has which ever called it; and the heartbeats that a client has heard.
    """
    items = gc.get_objects()
    for sender in [item for item in items if type(item) is BatchedSend]:
        sender.recent_message_log.clear()
    held: Counter[str] = Counter()
    for cls, count in Counter(map(type, items)).items():
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name.startswith("dsinga.") and not name.startswith(IGNORED):
            held[name] += count
    del items  # a list of megabytes
    held += Counter(f"thread {thread.name}" for thread in threading.enumerate() if thread.name.startswith("dsinga"))
    held[MEMORY] = tracemalloc.get_traced_memory()[0]
    process = psutil.Process()
    held["Unix sockets"] = len(process.net_connections("unix"))
    held["listening sockets"] = sum(connection.status == "LISTEN" for connection in process.net_connections("tcp"))
    if Path("/proc/self/maps").exists():
        held["maps of shared memory"] = Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:dsinga")
    return held


def _more(before: Counter[str], after: Counter[str], ignored: Sequence[str]) -> Counter[str]:
    more = after - before
    return Counter({name: n for name, n in more.items() if name not in ignored and (name != MEMORY or n >= BYTES)})


def describe() -> str:
    """Return which lines have allocated most of this process's bytes, and the cycles of its garbage."""
    largest = tracemalloc.take_snapshot().statistics("lineno")[:LINES]
    return "; ".join([*map(str, largest), describe_cycles()])


def describe_cycles() -> str:
    """Collect the garbage of this process; return what its cycles are made of, those with dsinga's objects first."""
    from tests.support.sources import cycles as cycles_of  # a failing test alone needs it

    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = [*gc.garbage]
    gc.garbage.clear()
    places = {id(item): place for place, item in enumerate(garbage)}
    links = [[places[id(link)] for link in gc.get_referents(item) if id(link) in places] for item in garbage]
    cycles = [sorted({_name(garbage[place]) for place in cycle}) for cycle in cycles_of(links)]
    cycles.sort(key=lambda names: (-sum("dsinga" in name for name in names), -len(names)))
    return "; ".join(", ".join(names) for names in cycles)[:SHOWN]


def _name(item: Any) -> str:
    name = f"{type(item).__module__}.{type(item).__qualname__}"
    if isinstance(item, types.FunctionType):
        return f"{name} {item.__module__}.{item.__qualname__}"
    if isinstance(item, types.MethodType):
        return f"{name} {item.__func__.__qualname__}"
    if isinstance(item, types.FrameType):
        return f"{name} {item.f_code.co_qualname}:{item.f_lineno}"
    return f"{name} {list(item)[:6]!r:.100}" if isinstance(item, dict) else name
