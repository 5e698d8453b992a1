"""The cases of the campaign, drawn by seed and number: which topology, where in a run a process is killed, and when."""

from __future__ import annotations

import random
from typing import NamedTuple

from tools.chaos.topologies import TOPOLOGIES

# Steps of a run: a few seconds on two cores.
STEPS = {
    "data-2": 600,
    "data-4": 300,
    "hybrid-2": 400,
    "hybrid-4": 120,
    "layers-2": 700,
    "replicated-2": 600,
    "groups-2x2": 160,
}
# How much later than a pass of a step a process ends, in seconds: from, to.
PASSES = {
    "forward": ("forward", 0.0, 0.0),
    "bridge": ("forward", 0.0002, 0.004),
    "backward": ("backward", 0.0, 0.0),
    "push": ("backward", 0.0002, 0.004),
    "pull": ("backward", 0.003, 0.015),
    "evaluation": ("evaluation", 0.0, 0.0),
}
# How much later than a moment that the driver sees, in seconds: from, to.
MOMENTS = {
    "start": (0.0, 1.0),  # after the run was asked for
    "moment": (0.0, 2.0),  # after training has begun
    "snapshot": (0.0, 0.4),  # after training has begun: the first snapshots follow each other
    "checkpoint": (0.0, 0.05),  # after a pause for a checkpoint has begun
    "end": (0.0, 0.02),  # after training has ended, before the last params are read
    "recovery": (0.0, 2.0),  # after another process was killed
}
PLACES = (*PASSES, *MOMENTS)


class Case(NamedTuple):
    """A run with a process that is killed.

    ``place`` is a name of PASSES or MOMENTS; ``step`` where the pass of a step is meant, ``delay`` the seconds after
    it. ``victim`` is the number of the Dask worker, ``second`` that of the one killed in the recovery.
    """

    number: int
    topology: str
    place: str
    step: int
    delay: float
    victim: int
    second: int

    def __str__(self) -> str:
        at = f"{self.place} of step {self.step}" if self.place in PASSES else self.place
        return f"{self.number:4d} {self.topology:12s} {at} + {1000 * self.delay:.1f} ms, worker {self.victim}"


def draw(number: int, seed: int) -> Case:
    """Return a case. Places and topologies take turns, so that a hundred cases have each of them."""
    generator = random.Random(f"{seed}/{number}")
    place = PLACES[number % len(PLACES)]
    names = [name for name in TOPOLOGIES if place != "bridge" or TOPOLOGIES[name].cuts]
    name = names[(number // len(PLACES) + number) % len(names)]
    low, high = PASSES[place][1:] if place in PASSES else MOMENTS[place]
    victim, second = generator.sample(range(TOPOLOGIES[name].processes), 2)
    return Case(number, name, place, generator.randrange(STEPS[name]), generator.uniform(low, high), victim, second)
