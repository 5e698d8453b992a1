"""Keeps the durations of steps in ``timings.json`` of a workspace, for the planner."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.base.durable_files import replace_file
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.engine.engine import Places

TIMINGS_FILE = "timings.json"
PARTS = ("total", "compute", "update", "exchange", "data")
WARM_UP = 10  # iterations that are left out where there are enough: kernels are compiled, and rounds grow


class RunTimings(NamedTuple):
    """How long the steps of a run took, and where its workers ran.

    Attributes:
        signature: a text that is equal for jobs with equal iterations.
        cuts: how layers were cut: dimension and location by name; empty for one worker.
        steps: how many iterations ``seconds`` are medians over.
        seconds: the seconds of an iteration: "total", and its parts "compute", "exchange" and "data" (waiting for
            records); "update" is the part of "exchange" that computes updates.
    """

    job: str
    signature: str
    places: Places
    cuts: Mapping[str, Sequence[int]]
    steps: int
    seconds: Mapping[str, float]


def write_timings(
    folder: Path,
    job: str,
    signature: str,
    places: Places,
    cuts: Mapping[str, Sequence[int]],
    timings: Sequence[Mapping[str, float]],
) -> None:
    """Write how long steps took, as medians, if the engine timed their parts."""
    from statistics import median  # of use at the end of a run with a workspace

    counted = timings[WARM_UP:] if len(timings) > 2 * WARM_UP else timings
    if counted and counted[0].keys() >= set(PARTS):
        seconds = {part: median(timing[part] for timing in counted) for part in PARTS}
        run = RunTimings(job, signature, places, cuts, len(counted), seconds)
        replace_file(folder / TIMINGS_FILE, json.dumps({**run._asdict(), "places": places._asdict()}, indent=1) + "\n")


def read_timings(folder: Path) -> RunTimings:
    """Read how long the steps of a workspace's run took. Raises UserError without any."""
    if not folder.is_dir():
        raise UserError(f"there is no workspace {folder}; give the folder of a finished run")
    path = folder / TIMINGS_FILE
    if not path.exists():
        raise UserError(f"{folder} has no {TIMINGS_FILE}, which a run writes at its end; train the job there first")
    try:
        content: dict[str, Any] = read_json(path)
        seconds = {part: float(content["seconds"][part]) for part in PARTS}
        places = Places(**content["places"])
        if not min(seconds.values()) >= 0 < seconds["total"] or not all(map(math.isfinite, seconds.values())):
            raise ValueError("times are missing, negative or not finite")
        _check_places(places)
        if not all(_are_counts(cut, -1) and len(cut) == 2 for cut in content["cuts"].values()):
            raise ValueError("a cut is not a dimension and a location")
        return RunTimings(**{**content, "seconds": seconds, "places": places})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}); train the job again") from None


def _check_places(places: Places) -> None:
    numbers = [*map(_are_counts, (places.workers, places.servers), (0, 0))]
    if not all(numbers) or not _are_counts([places.hosts, places.threads, places.groups], 1):
        raise ValueError("the places of workers and servers are missing or no numbers")
    if not isinstance(places.unpredicted, str):
        raise ValueError("'unpredicted' is no text")


def _are_counts(numbers: object, least: int) -> bool:
    return isinstance(numbers, list) and bool(numbers) and all(type(n) is int and n >= least for n in numbers)
