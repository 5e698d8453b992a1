"""The price of sites that agree by the mean: bytes and seconds of an outer step, and how many steps apart they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.addons.planner.link import Link
from dsinga.base.errors import UserError
from dsinga.cluster.server.compression import BITS

SHARE = 0.05  # of the time, that exchange between sites may take


class OuterStep(NamedTuple):
    """The price of an outer step for one site, with one compression of changes.

    Attributes:
        compression: the name of the compression.
        size: the bytes that the site sends, and as many that it receives.
        seconds: how long it takes.
        sync_freq: the smallest number of steps between two of them with which they take at most ``SHARE`` of the time.
        delay: the steps between sending and applying that hide it, if ``sync_freq`` is larger: it then takes no time.
    """

    compression: str
    size: int
    seconds: float
    sync_freq: int
    delay: int


class SitePlan(NamedTuple):
    """What training on several sites costs, each of which trains the whole net.

    Attributes:
        sites: the number of sites.
        step_seconds: the seconds of a step within a site.
        synchronous_size: the bytes that a site sends in each step of synchronous training by all sites together.
        synchronous_seconds: how long that takes.
        outer: the price of an outer step for each compression.
    """

    sites: int
    step_seconds: float
    synchronous_size: int
    synchronous_seconds: float
    outer: Sequence[OuterStep]

    def figures(self) -> dict[str, Any]:
        """Return the plan as plain numbers and text, for JSON."""
        return {
            "sites": self.sites,
            "ms_per_iteration": 1e3 * self.step_seconds,
            "synchronous": {"bytes": self.synchronous_size, "ms": 1e3 * self.synchronous_seconds},
            "outer_steps": [
                {
                    "compression": step.compression,
                    "bytes": step.size,
                    "ms": 1e3 * step.seconds,
                    "sync_freq": step.sync_freq,
                    "delay": step.delay,
                }
                for step in self.outer
            ],
        }


def price_sites(sites: int, numbers: int, step_seconds: float, link: Link) -> SitePlan:
    """Return the plan of ``sites`` sites for a net of so many ``numbers`` in its params, linked all to all.

    ``step_seconds`` are those of a step within a site, ``link`` is the connection of a site with the others, in each
    direction. Synchronous training sends gradients of 4 bytes by a ring. Raises UserError for fewer than two sites.
    """
    if sites < 2:
        raise UserError(f"sites must be at least 2, the number of places that train together, not {sites}")
    outer = []
    for compression, bits in BITS.items():
        size = (sites - 1) * math.ceil(numbers * bits / 8)
        seconds = link.seconds(size)
        period = max(1, math.ceil(seconds * (1 - SHARE) / SHARE / step_seconds))
        outer.append(OuterStep(compression.name, size, seconds, period, math.ceil(seconds / step_seconds)))
    ring = math.ceil(2 * (sites - 1) / sites * 4 * numbers)
    return SitePlan(sites, step_seconds, ring, 2 * (sites - 1) * link.latency + ring / link.bandwidth, tuple(outer))


def site_lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the sentences that say what :meth:`SitePlan.figures` has, but for its table of outer steps."""
    synchronous, step = figures["synchronous"], figures["ms_per_iteration"]
    return [
        f"{figures['sites']} sites that agree by the mean, each trains in {step:,.2f} ms per iteration; all together "
        f"synchronously would send for another {synchronous['ms']:,.2f} ms",
        f"sync_freq: with these steps between two agreements they take at most {SHARE:.0%} of the time; delay: with "
        "these steps until changes are applied, and a larger sync_freq, they take none",
    ]
