"""Chooses by measurement how to compute a convolution: by one of cuDNN's plans, or by products of cuBLAS.

The first worker of a host that meets a convolution times the candidates. A file keeps the choice by device, libraries
and precision, so that all runs on the host compute the same bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.addons.gpu.cupy.cudnn_graphs import ConvolutionProblem
from dsinga.addons.gpu.cupy.library import cupy
from dsinga.base.durable_files import cache_folder, replace_file
from dsinga.base.regular_files import read_json
from dsinga.ops.types import Array

_log = logging.getLogger(__name__)

PRODUCTS = "products"  # a choice that is no plan
SEPARATE = "separate"  # also no plan: a convolution after which another kernel adds the bias
CALLS, RUNS = 3, 3  # calls in the graph that is timed, and launches of it
TINY = 1e-30
NEAR = 1.05  # the first candidate in order that takes at most this many times the shortest time is chosen
ERRORS = {"float32": 1e-5, "tf32": 1e-2, "bf16": 5e-2}
"""The largest root mean square difference of a plan's and the products' results, relative to the latter."""


class Candidate(NamedTuple):
    """A named way to compute a convolution, to be timed."""

    name: str
    compute: Callable[[], Array]


def choices_file() -> Path | None:
    """Return the path of this user's choices on this host; None if it cannot be written."""
    try:
        file = cache_folder() / "convolutions.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        return file if os.access(file.parent, os.W_OK) else None
    except (OSError, RuntimeError):  # there is no home
        return None


class PlanChoices:
    """The choices of one precision on one device, kept in a file under ``section``."""

    def __init__(self, section: str, file: Path | None):
        self._section, self._file = section, file
        self._choices = read_sections(self._file).get(section, {})

    @property
    def is_kept(self) -> bool:
        """Whether choices can be stored; if not, nothing is measured, since another run might choose otherwise."""
        return self._file is not None

    def find(self, problem: ConvolutionProblem) -> str | None:
        """Return the stored choice for a problem, or None."""
        return self._choices.get(key_of(problem))

    @contextlib.contextmanager
    def choosing(self) -> Iterator[None]:
        """Lock the file of choices while one process of the host measures, after reading others' choices."""
        assert self._file is not None
        with open(self._file.with_suffix(".lock"), "w") as lock:
            with contextlib.suppress(ImportError, OSError):  # Windows, or a file system without locks
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            self._choices = read_sections(self._file).get(self._section, {})
            yield

    def add(self, problem: ConvolutionProblem, name: str) -> None:
        """Store a choice, unless the problem has one."""
        assert self._file is not None
        sections = read_sections(self._file)
        self._choices = sections.setdefault(self._section, {})
        self._choices.setdefault(key_of(problem), name)
        try:
            replace_file(self._file, json.dumps(sections, indent=1))
        except OSError as error:
            _log.warning("the choice of a plan of cuDNN cannot be kept: %s", error)


def read_sections(file: Path | None) -> dict[str, dict[str, str]]:
    """Return a file's choices by section; {} if it is absent or damaged."""
    try:
        sections = read_json(file) if file else {}
    except (OSError, ValueError):  # absent, or no JSON
        return {}
    is_valid = isinstance(sections, dict) and all(isinstance(choices, dict) for choices in sections.values())
    return sections if is_valid else {}


def digest(device: str, file: Path | None) -> str:
    """Hash a device's choices for all libraries and precisions, to compare hosts; "" without choices."""
    sections = {name: choices for name, choices in read_sections(file).items() if name.startswith(device)}
    return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()[:12] if sections else ""


def key_of(problem: ConvolutionProblem) -> str:
    """Return the text that identifies a problem in the file."""
    numbers = (problem.x, problem.w, problem.y, problem.stride, problem.pad)
    after = ("bias",) * problem.bias + ("relu",) * problem.relu
    after += () if set(problem.dilation) == {1} else (f"dilation {'x'.join(map(str, problem.dilation))}",)
    return " ".join((problem.direction, *("x".join(map(str, sizes)) for sizes in numbers), *after))


def fastest(candidates: Iterator[Candidate], reference: Array | None, bound: float) -> str | None:
    """Return the fastest candidate with a result within ``bound`` of the ``reference``, or None."""
    times: dict[str, float] = {}
    for candidate in candidates:
        try:
            result = candidate.compute()
            if reference is not None and not distance(result, reference) <= bound:
                _log.info("%s is inexact and is not used", candidate.name)
                continue
            del result
            times[candidate.name] = milliseconds(candidate.compute)
        except (RuntimeError, MemoryError, cupy.cuda.memory.OutOfMemoryError) as error:
            _log.debug("%s could not be timed: %s", candidate.name, error)
    limit = NEAR * min(times.values(), default=0.0)
    return next((name for name, ms in times.items() if ms <= limit), None)


def distance(result: Array, reference: Array) -> float:
    """Return the root mean square difference, relative to the reference's; 0 if both are zeros."""
    return float((((result - reference) ** 2).mean() / ((reference**2).mean() + TINY)) ** 0.5)


def milliseconds(compute: Callable[[], Any]) -> float:
    """Measure the device's time of a call, captured as a graph to exclude the host's time."""
    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    stream.begin_capture()
    try:
        for _ in range(CALLS):
            compute()
    finally:
        graph = stream.end_capture()
    times = []
    for _ in range(RUNS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times.append(float(cupy.cuda.get_elapsed_time(begin, end)) / CALLS)
    return min(times)
