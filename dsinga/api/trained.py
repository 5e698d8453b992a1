"""Defines Trained, the state of a trained net, to continue training and to predict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.durable_files import write_file
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.checkpoint.directory import arrays_by_param
from dsinga.checkpoint.tensor_files import read_safetensors, write_tensors
from dsinga.data import RecordNames
from dsinga.data.sources.open_records import as_tuples
from dsinga.extensions.extension import RescuedParams
from dsinga.job import Job
from dsinga.net import NeuralNet
from dsinga.reading.learnt_statistics import MANY, earlier_steps, normalised, weighed, with_steps
from dsinga.training import initial_values
from dsinga.training.local_updater import Slots

# The files of a saved net in its folder; a file without contents is left out.
FILES = JOB, PARAMS, OPTIMIZER, NAMES = "job.conf", "params.safetensors", "optimizer.safetensors", "names.json"
MARK = "$mark"  # a key that no input has as a name


@dataclass(frozen=True)
class Trained:
    """The state of a trained net: params, the optimizer's state, and the names of classes and columns.

    Attributes:
        params: float32 arrays by name, or None.
        is_complete: whether the net has no other params.
        drawn: the seed of the initial params, until training or a user sets them; then None.
        seed: determines the random numbers of the next training.
        steps: the steps that the optimizer has done.
        slots: the arrays of the optimizer by param and slot, such as the momentum.
        before: the batches that running statistics had seen before the optimizer's first step.
        names: the names of classes and columns of the training records, by input.
        definitions: how these records were made of data, such as windows of a Dataset, by input.
    """

    params: dict[str, np.ndarray] | None = None
    is_complete: bool = False
    drawn: int | None = None
    seed: int = 0
    steps: int = 0
    slots: Slots = field(default_factory=dict)
    before: int = 0
    names: Mapping[str, RecordNames] = field(default_factory=dict)
    definitions: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def with_optimizer(self) -> Trained:
        """Return a copy for training with a new optimizer, and perhaps a new loss."""
        return replace(self, is_complete=False, steps=0, slots={}, before=self.before + self.steps)

    def with_values(self, params: dict[str, np.ndarray] | None) -> Trained:
        """Return a copy with other params; the optimizer keeps its state."""
        return self if params is self.params else replace(self, params=params)

    def with_params(self, params: dict[str, np.ndarray]) -> Trained:
        """Return a copy with params that a user has set, and a new optimizer."""
        return replace(self, params=params, is_complete=False, drawn=None, steps=0, slots={}, before=MANY)

    def after(self, rescued: RescuedParams, job: Job, steps: int) -> Trained:
        """Return the state after another run, which began at the optimizer's step ``steps``."""
        assert rescued.net is not None
        before = max(earlier_steps(rescued.net) - steps, 0)
        return replace(
            self, params=rescued.params, is_complete=True, drawn=None, seed=job.seed + 1, steps=steps + rescued.step,
            slots=rescued.slots, before=before,
        )  # fmt: skip

    def start(self, seed: int | None, make_net: Callable[[], NeuralNet]) -> dict[str, np.ndarray]:
        """Return the params that a run with this seed starts from; it draws missing ones itself."""
        params = self.params or {}
        if not params or self.drawn is None or self.drawn == seed:
            return params
        initial = initial_values(make_net().params, self.drawn)
        return {name: a for name, a in params.items() if name not in initial or not np.array_equal(a, initial[name])}

    def with_statistics(self, job: Job, steps: int, params: Mapping[str, np.ndarray]) -> Job:
        """Return a job with running statistics that continue after ``steps`` optimizer steps."""
        job = with_steps(job, {layer.name: self.before + steps for layer in normalised(job)})
        return job if job.checkpoint_path else weighed(job, params, 0 if self.steps else MANY)

    def write_state(self, folder: Path, mark: str) -> None:
        """Write the optimizer's state and the names to a folder; ``mark`` identifies the params they belong to."""
        if self.steps:
            arrays = {f"{name}/{slot}": array for name, slots in self.slots.items() for slot, array in slots.items()}
            numbers = {name: np.array([getattr(self, name)]) for name in ("steps", "before", "seed")}
            write_tensors(folder / OPTIMIZER, {**numbers, **arrays}, {"mark": mark})
        if named := {name: of_input._asdict() for name, of_input in self.names.items() if any(of_input)}:
            text = json.dumps({MARK: mark, **named}, indent=1, ensure_ascii=False)
            write_file(folder / NAMES, f"{text}\n")

    def with_state_of(self, place: Callable[[str], Path]) -> Trained:
        """Return a copy with the optimizer's state and names from files of :meth:`write_state`, if they exist."""
        names = read_names(place(NAMES)) or self.names
        if not (path := place(OPTIMIZER)).is_file():
            return replace(self, names=names, before=MANY)
        arrays = read_safetensors(path)
        before = int(arrays.pop("before", np.array([MANY]))[0])  # missing in files of earlier versions
        seed = int(arrays.pop("seed", np.array([self.seed]))[0])
        steps = arrays.pop("steps", np.zeros(0, np.int64))
        if steps.shape != (1,) or steps.dtype.kind != "i" or steps[0] < 1:
            raise UserError(f"{path} has no number of steps; remove it to begin the optimizer anew")
        slots = arrays_by_param(arrays)
        return replace(self, names=names, seed=seed, steps=int(steps[0]), slots=slots, before=before)


@contextmanager
def rescuing(owner: str, keep: Callable[[RescuedParams], None]) -> Iterator[RescuedParams]:
    """Keep the params of a run, even after an interrupt or an error: yield an extension for the run.

    ``keep`` gets what was trained; messages call the keeper ``owner``.
    """
    rescued = RescuedParams(owner)
    try:
        yield rescued
    finally:
        if rescued.params is not None:
            keep(rescued)


def read_names(path: Path) -> dict[str, RecordNames]:
    """Read the names of classes and columns from a file; none without a file."""
    if not path.is_file():
        return {}
    try:
        described = read_json(path)
        described.pop(MARK, None)
        for of_input in described.values():
            if columns := of_input.pop("columns", ()):  # the form of earlier versions
                of_input["order"] = [["row"], ["column", *columns]]
        names = {
            name: RecordNames(**{key: as_tuples(of_input[key]) for key in of_input})
            for name, of_input in described.items()
        }
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}); save the model again") from error
    return names
