"""Launches and bytes of an iteration on a GPU, counted on an emulated one: needs no card.

``python -m tools.benchmarks.gpu_launches NET PRECISION [BATCH]`` prints, for the second iteration, each kernel with its
number of launches and the megabytes of its arrays. Arrays that stay in a cache between two launches count, too.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import NamedTuple

from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn
from tools.benchmarks.gpu_loop import Loop
from tools.benchmarks.ours import job


class Launches(NamedTuple):
    """The launches of an iteration by kernel, and the bytes of their arrays."""

    counts: Counter[str]
    traffic: Counter[str]
    copies: int


def count(net: str, precision: str, batch: int) -> Launches:
    """Return the launches of an iteration of a net of the benchmarks."""
    loop = Loop(job(net, batch), emulated_cupy.load(FakeCudnn()).for_worker(0, precision))
    loop.iterate()
    emulated_cupy.log.clear()
    emulated_cupy.traffic.clear()
    loop.iterate()
    kinds = Counter(name if what == "kernel" else what for _, what, name in emulated_cupy.log if what != "record")
    copies = kinds.pop("copy", 0)
    kinds.pop("wait", None)
    return Launches(kinds, Counter(emulated_cupy.traffic), copies)


def main(net: str, precision: str, batch: str = "2") -> None:
    """Print the table."""
    started = time.process_time()
    launches = count(net, precision, int(batch))
    for name, number in launches.counts.most_common():
        print(f"{number:5d} {launches.traffic[name] / 1e6:10.2f} MB  {name}")
    total = sum(launches.traffic.values()) / 1e6
    print(
        f"{launches.counts.total()} launches, {launches.copies} copies, {total:.2f} MB of {net}, {precision}, {batch}"
    )
    print(f"({time.process_time() - started:.0f} s of a processor)")


if __name__ == "__main__":
    main(*sys.argv[1:])
