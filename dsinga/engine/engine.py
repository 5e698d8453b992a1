"""The interface of an engine, which computes training steps."""

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
    """Where workers and servers of the first worker group ran.

    Attributes:
        workers: the number of the process of each worker.
        servers: the number of the process of each server of the first server group.
        hosts: the number of hosts.
        threads: the number of kernel threads of a worker.
        groups: the number of worker groups of the run.
        unpredicted: why a plan does not predict such a run, in a few words; "" if it does.
    """

    workers: Sequence[int] = (0,)
    servers: Sequence[int] = (0,)
    hosts: int = 1
    threads: int = 1
    groups: int = 1
    unpredicted: str = ""


class StepReport(NamedTuple):
    """An engine's report of a training step, or of several indivisible ones.

    Attributes:
        metrics: the sums and counts of metrics, by name.
        timing: seconds and bytes, by name.
        steps: the number of steps.
    """

    metrics: Metrics
    timing: Mapping[str, float] = {}
    steps: int = 1


@dataclass
class Snapshot:
    """The state after a step, to continue with the same bits. Do not change its arrays.

    Attributes:
        step: the number of completed steps.
        params: whole params.
        state: the updater's state, by param and slot; None to start with a new one.
        loop: the state of the training loop, as in a checkpoint; None while unknown.
    """

    step: int
    params: ParamArrays
    state: Mapping[str, ParamArrays] | None = None
    loop: Mapping[str, Any] | None = None

    def copy(self) -> tuple[ParamArrays, dict[str, ParamArrays] | None]:
        """Return copies of the params and of the updater's state."""
        params = {name: array.copy() for name, array in self.params.items()}
        if self.state is None:
            return params, None
        return params, {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in self.state.items()
        }

    def release(self) -> tuple[ParamArrays, Mapping[str, ParamArrays] | None]:
        """Hand params and updater's state over to the caller, and keep neither."""
        released = self.params, self.state
        self.params, self.state = {}, None
        return released

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        slots = [array for arrays in (self.state or {}).values() for array in arrays.values()]
        return sum(array.nbytes for array in (*self.params.values(), *slots))


@dataclass
class Restart:
    """A loss, and the restart of the run.

    Attributes:
        lost: what was lost, in words.
        noticed_at: when it was noticed, by ``time.perf_counter()``.
        step: the step of the restart.
        generation: the generation that started then.
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
        """Return the state of the loop at its present step."""

    def show_restart(self, restart: Restart, seconds: float) -> None:
        """Add a restart to the history; ``seconds`` is the time until the run had caught up."""


class Engine(ABC):
    """Computes the steps of a run: forward and backward passes, updates, evaluations.

    The training loop calls :meth:`open`, :meth:`start`, :meth:`train` until all steps are done, :meth:`finish` and, in
    any case, :meth:`close`. Between two calls of ``train`` the run is paused if ``step`` and ``sent`` are equal, and
    may be evaluated or copied. A run with nothing to train is paused without ``start``.

    Attributes:
        job: the job to train.
        nets: the whole nets of the job's phases; for an agent, the net that learns as kTrain.
        epochs: the epochs of the run; None if only steps are counted.
        groups: the number of worker groups that train at once.
        batchsize: the records in a step of all worker groups.
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
        """The step that follows the last reported one."""

    @property
    def sent(self) -> int:
        """The step to which training goes on before it can pause; :attr:`step` if nothing is sent ahead."""
        return self.step

    @property
    @abstractmethod
    def samples_per_second(self) -> float:
        """Records per second of all worker groups' last steps; 0 before the first."""

    def open(self) -> None:
        """Prepare to compute steps with the given params and updater's state."""

    def start(self, step: int, loop: Loop) -> None:
        """Begin to train from ``step``, where the run is paused."""

    @property
    def phases(self) -> Collection[Phase]:
        """The phases that can be evaluated, and kTrain."""
        return self.nets.keys()

    @abstractmethod
    def train(self, stop: int) -> Sequence[StepReport]:
        """Train for about a second, not beyond step ``stop``, unless a step cannot be divided.

        Returns the reports that the loop has not seen, perhaps none. Raises Diverged if a loss is not finite.
        """

    def finish(self) -> None:
        """End training; afterwards all worker groups have the same params."""

    @abstractmethod
    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Return sums and counts of metrics over a phase's first ``batches`` batches, 0 for all records."""

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Write output layers of kVal or kTest; raise UserError if a write fails."""

    @abstractmethod
    def params(self) -> ParamArrays:
        """Return copies of the params for tests, float32 by name: averages if requested."""

    def last_params(self) -> ParamArrays:
        """Return the params at the end, possibly the trained arrays themselves."""
        return self.params()

    @abstractmethod
    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of the trained params, and of the updater's state by param and slot."""

    def set_params(self, params: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Continue from all ``params``, and ``state``, None for the present one.

        The run is paused, and has one worker group. Raises UserError if the engine cannot.
        """
        raise UserError("the params of this run cannot be set while it trains; set them before or after it")

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the updater's state at the end, by param and slot."""
        return self.snapshot()[1]

    def state(self) -> Mapping[str, Any]:
        """Return the state to resume besides params and updater state: nested dicts of plain values and arrays."""
        return {}

    def keep(self, snapshot: Snapshot) -> None:
        """Remember ``snapshot``, of which a checkpoint was written, for a restart."""

    @property
    def newest(self) -> Snapshot | None:
        """The newest resumable snapshot taken without a checkpoint, if any."""
        return None

    def rescue(self, waits: bool) -> Snapshot | None:
        """Return the newest state of a failed or interrupted run, None if lost.

        Its params are the result of :meth:`params`. With ``waits`` the run ends the steps in flight first.
        """
        return None

    def reach(self) -> tuple[int, float]:
        """Return the step that another :meth:`train` would reach, and the total seconds until then."""
        return self.sent + 1, 0.0

    @abstractmethod
    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the schedule at a step, float."""

    @abstractmethod
    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the schedule's learning rate by factors, each from its step; ``step`` is the first."""

    def use_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by a resumed run's factors; called before :meth:`open`."""

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Turn sums and counts of metrics into means, under users' names."""
        net = self.nets.get(PHASES.get(phase, Phase.kTrain))
        named = metric_values(sums if net is None else name_metrics(net, sums))
        return {name: figure for name, figure in named.items() if not isinstance(figure, list)}

    def close(self, message: str | None = None) -> None:
        """Release the engine's resources; remaining waits end with RunError(``message``)."""
