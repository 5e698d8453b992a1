"""Defines Engine, the interface for computing training steps, here or on a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.job import Job, Phase
from dsinga.job.enums import PHASES
from dsinga.job.epochs import Epochs
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet
from dsinga.training import Metrics, name_metrics


class Places(NamedTuple):
    """Where the workers and servers of a run are: their processes and hosts.

    Attributes:
        workers: the number of the process of each worker of the first group.
        servers: the number of the process of each server of the first server group.
        unpredicted: why a plan does not predict such a run; "" if it does.
    """

    workers: Sequence[int] = (0,)
    servers: Sequence[int] = (0,)
    hosts: int = 1
    threads: int = 1
    groups: int = 1
    unpredicted: str = ""


class StepReport(NamedTuple):
    """An engine's report of a training step, or of several together: metrics and times.

    Attributes:
        metrics: the sums and counts of metrics, by name.
        timing: seconds and bytes, by name.
    """

    metrics: Metrics
    timing: Mapping[str, float] = {}
    steps: int = 1


@dataclass
class Snapshot:
    """The state of training after a step, from which it continues with the same bits; do not change arrays.

    Attributes:
        state: the updater's state, by param and slot; None to start with a new one.
        loop: the state of the training loop, as in a checkpoint; None while unknown.
    """

    step: int
    params: ParamArrays
    state: Mapping[str, ParamArrays] | None = None
    loop: Mapping[str, Any] | None = None

    def copy(self) -> tuple[ParamArrays, dict[str, ParamArrays] | None]:
        """Copy the params and the optimizer's state."""
        params = {name: array.copy() for name, array in self.params.items()}
        if self.state is None:
            return params, None
        return params, {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in self.state.items()
        }

    def release(self) -> tuple[ParamArrays, Mapping[str, ParamArrays] | None]:
        """Hand params and updater's state over to the caller, to save memory."""
        released = self.params, self.state
        self.params, self.state = {}, None
        return released

    @property
    def nbytes(self) -> int:
        """How many bytes its arrays need."""
        slots = [array for arrays in (self.state or {}).values() for array in arrays.values()]
        return sum(array.nbytes for array in (*self.params.values(), *slots))


@dataclass
class Restart:
    """A restart of a run that has lost workers or servers, with the cause and the time.

    Attributes:
        lost: what was lost, in words.
        noticed_at: when, by ``time.perf_counter()``.
        generation: which start of the run this is.
        group: the only restarted worker group; None for all.
        steps_again: how many steps are computed again; None for those after ``step``.
    """

    lost: str
    noticed_at: float
    step: int = 0
    generation: int = 0
    group: int | None = None
    steps_again: int | None = None


class Loop(Protocol):
    """The part of the training loop that an engine sees."""

    @property
    def step(self) -> int:
        """How many steps the loop has seen."""

    @property
    def stopped(self) -> str:
        """Why training ends early, else ""."""

    @property
    def resumable(self) -> bool:
        """Whether a stopped run can resume from this step, as after an interrupt."""

    def state(self) -> Mapping[str, Any]:
        """Return the loop's state for a checkpoint, at its present step."""

    def show_restart(self, restart: Restart, seconds: float) -> None:
        """Add a restart to the history; it took ``seconds`` until the run had caught up."""


class Engine(ABC):
    """Computes a run's training steps and evaluations, in this process or on a cluster.

    The training loop calls :meth:`open`, :meth:`start`, :meth:`train` until all steps are done, :meth:`finish` and, in
    any case, :meth:`close`. Between two calls of ``train`` the run is paused if ``step`` and ``sent`` are equal, and
    may be evaluated or copied.

    Attributes:
        nets: the whole nets of the job's phases; for an agent, the net that learns as kTrain.
        epochs: the epochs of the run; None if only steps are counted.
        places: where workers and servers of the first worker group run.
        cuts: how layers of the training net are cut: dimension and location by name; empty for one worker.
        pauses_cheaply: whether a pause after each step costs little.
    """

    pauses_cheaply: bool = False
    job: Job
    nets: Mapping[Phase, NeuralNet]
    epochs: Epochs | None = None
    groups: int = 1
    batchsize: int = 1
    places: Places = Places()
    cuts: Mapping[str, Sequence[int]] = MappingProxyType({})

    @property
    @abstractmethod
    def step(self) -> int:
        """How many steps of the run are done, as far as they are reported."""

    @property
    def sent(self) -> int:
        """The step that training must reach before it can pause; :attr:`step` if nothing is sent ahead."""
        return self.step

    @property
    @abstractmethod
    def samples_per_second(self) -> float:
        """Records per second of all worker groups' last steps; 0 before the first."""

    def open(self) -> None:
        """Prepare to compute steps, with the given params and updater's state."""

    def start(self, step: int, loop: Loop) -> None:
        """Begin to train at ``step``."""

    @property
    def phases(self) -> Collection[Phase]:
        """The phases that the engine can train or evaluate."""
        return self.nets.keys()

    @abstractmethod
    def train(self, stop: int) -> Sequence[StepReport]:
        """Train for about a second, at most to step ``stop``, and return reports of the steps.

        Raises Diverged if a loss is not finite.
        """

    def finish(self) -> None:
        """End training, so that all worker groups have the same params."""

    @abstractmethod
    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Evaluate ``batches`` batches of a phase, 0 for all records: return sums and counts of metrics."""

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Let output layers write their files for validation or test."""

    @abstractmethod
    def params(self) -> ParamArrays:
        """Return copies of the params to test with, float32 by name: averages if the job keeps them."""

    def last_params(self) -> ParamArrays:
        """Return the params at the end of training, perhaps without a copy."""
        return self.params()

    @abstractmethod
    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Copy the state of training: the params, and the updater's state by param and slot."""

    def set_params(self, params: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Continue training from other params, and perhaps another updater's state."""
        raise UserError("the params of this run cannot be set while it trains; set them before or after it")

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the optimizer's state at the end, by param and slot."""
        return self.snapshot()[1]

    def state(self) -> Mapping[str, Any]:
        """Return further state for a resumed run, besides params and updater state: plain values and arrays."""
        return {}

    def keep(self, snapshot: Snapshot) -> None:
        """Remember a state that is in a checkpoint, to restart from it."""

    @property
    def newest(self) -> Snapshot | None:
        """The newest state to resume from that was copied without a checkpoint, if any."""
        return None

    def rescue(self, waits: bool) -> Snapshot | None:
        """Return the newest state of a failed or interrupted run; None if it is lost.

        With ``waits`` running steps end first.
        """
        return None

    def reach(self) -> tuple[int, float]:
        """Estimate the next call of :meth:`train`: the step that it reaches, and the seconds until then."""
        return self.sent + 1, 0.0

    @abstractmethod
    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the schedule at a step, float."""

    @abstractmethod
    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors, each starting at the step that is its key."""

    def use_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors from a checkpoint; called before :meth:`open`."""

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Turn metrics, summed over batches, into means by the names that users know."""
        net = self.nets.get(PHASES.get(phase, Phase.kTrain))
        named = metric_values(sums if net is None else name_metrics(net, sums))
        return {name: figure for name, figure in named.items() if not isinstance(figure, list)}

    def close(self, message: str | None = None) -> None:
        """Release processes, threads and memory; calls that still wait raise RunError(``message``)."""
