"""The interface of an engine, which computes training steps; the training loop runs extensions between the steps."""

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
    """Where the workers and servers of the first worker group ran.

    Attributes:
        workers: the number of the process of each worker.
        servers: likewise, of each server of the first server group.
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
    """What an engine reports of a step of training, or of several that cannot be divided.

    Attributes:
        metrics: the sums and counts of metrics, by name.
        timing: where the time went: seconds and bytes, by name.
        steps: the number of steps.
    """

    metrics: Metrics
    timing: Mapping[str, float] = {}
    steps: int = 1


@dataclass
class Snapshot:
    """The state after a step, from which training continues with the same bits. Its arrays are not to be changed.

    Attributes:
        step: the number of steps that are done.
        params: whole params.
        state: the updater's state, by param and slot; None where it begins anew.
        loop: the state of the training loop, as in a checkpoint; None while it is not known.
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
        """Return the params and the updater's state, which may be changed from now on, and keep neither."""
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
    """What was lost, and how long it took until the run stood where it had stood.

    Attributes:
        lost: what was lost, in words.
        noticed_at: when that was noticed, by ``time.perf_counter()``.
        step: the step from which the run has started again.
        generation: the generation that has started then.
        group: the worker group that alone has started again; None where all have.
        steps_again: the number of steps that are computed again; None for those since ``step``.
    """

    lost: str
    noticed_at: float
    step: int = 0
    generation: int = 0
    group: int | None = None
    steps_again: int | None = None


class Loop(Protocol):
    """What an engine sees of the training loop."""

    @property
    def step(self) -> int:
        """How many steps the loop has seen."""

    @property
    def stopped(self) -> str:
        """Why training ends early, "" while it does not."""

    @property
    def resumable(self) -> bool:
        """Whether training was stopped so that the run can go on later, from where it stands."""

    def state(self) -> Mapping[str, Any]:
        """Return the state of the loop at its present step, for a snapshot."""

    def show_restart(self, restart: Restart, seconds: float) -> None:
        """Add a restart to the history: after so many seconds the run stands where it had stood."""


class Engine(ABC):
    """Computes the steps of a run: forward and backward passes, updates, evaluations.

    The training loop calls :meth:`open`, :meth:`start`, then :meth:`train` until all steps are done, :meth:`finish`
    and, however the run ends, :meth:`close`. Between two calls of ``train``, when ``step`` and ``sent`` are equal, the
    run stands: then it may be evaluated or copied. A run that has nothing to train is so without ``start``.

    Attributes:
        job: the job that is trained.
        nets: the whole nets of the phases that the job runs; of an agent, that which learns, as the net of kTrain.
        epochs: the epochs of the run; None where steps are counted only.
        groups: the number of worker groups that train at the same time.
        batchsize: the records in a step of all worker groups together.
        places: where the workers and servers of the first worker group run.
        cuts: how the layers of the training net are cut: dimension and location by name; empty for one worker.
        pauses_cheaply: whether it can stand after each step at little cost.
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
        """The step that follows the last one that was reported."""

    @property
    def sent(self) -> int:
        """The step up to which the run trains before it can stand, at least ``step``; by default it stands there."""
        return self.step

    @property
    @abstractmethod
    def samples_per_second(self) -> float:
        """How many records all worker groups together trained on in a second of their last steps; 0 before these."""

    def open(self) -> None:
        """Prepare to compute steps, with the params and the updater's state given to the engine."""

    def start(self, step: int, loop: Loop) -> None:
        """Begin to train from ``step``, at which the run stands."""

    @property
    def phases(self) -> Collection[Phase]:
        """The phases that can be evaluated, and kTrain."""
        return self.nets.keys()

    @abstractmethod
    def train(self, stop: int) -> Sequence[StepReport]:
        """Train for about a second, not beyond step ``stop``, unless a step cannot be divided.

        Returns the reports of the steps that the loop has not seen; there may be none. Raises Diverged where a loss is
        not finite.
        """

    def finish(self) -> None:
        """End training: where several worker groups train, all of them have the same params then."""

    @abstractmethod
    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Return the sums and counts of metrics over the first ``batches`` batches of a phase, 0 for all records."""

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Write the files of the output layers of kVal or kTest; raise UserError where one cannot be written."""

    @abstractmethod
    def params(self) -> ParamArrays:
        """Return copies of the params, float32 by name: those that tests use, averages where the job asks for them."""

    def last_params(self) -> ParamArrays:
        """Return the params of a run that is not trained any further: they may be the arrays that were trained."""
        return self.params()

    @abstractmethod
    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of the params that are trained, and of the updater's state by param and slot."""

    def set_params(self, params: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Go on from these params, all of them, and from a state of the updater, None for its present one.

        The run stands, and has one worker group. Raises UserError where the engine cannot.
        """
        raise UserError("the params of this run cannot be set while it trains; set them before or after it")

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the updater's state of a run that is not trained any further, by param and slot."""
        return self.snapshot()[1]

    def state(self) -> Mapping[str, Any]:
        """Return the rest of the state for a resumed run: plain values and arrays, nested in dicts with string keys."""
        return {}

    def keep(self, snapshot: Snapshot) -> None:
        """Take note that a checkpoint of ``snapshot`` was written, from which the run may continue after a loss."""

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot from which the run could go on, where it has been made without a checkpoint."""
        return None

    def rescue(self, waits: bool) -> Snapshot | None:
        """Return the newest state of a run that failed or was interrupted, None if it is lost.

        Its params are those of :meth:`params`. With ``waits`` the run ends the steps that are in flight.
        """
        return None

    def reach(self) -> tuple[int, float]:
        """Return up to which step a further call of :meth:`train` would take, and how many seconds, all told."""
        return self.sent + 1, 0.0

    @abstractmethod
    def learning_rate(self, step: int) -> float:
        """Return the learning rate of the schedule at a step, float."""

    @abstractmethod
    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the schedule's learning rate by factors, each from its step on; ``step`` is the first of these."""

    def use_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors that held in the run which is resumed; called before :meth:`open`."""

    def means(self, phase: str, sums: Metrics) -> dict[str, float]:
        """Return sums and counts of metrics as means, under the names that people see."""
        net = self.nets.get(PHASES.get(phase, Phase.kTrain))
        named = metric_values(sums if net is None else name_metrics(net, sums))
        return {name: figure for name, figure in named.items() if not isinstance(figure, list)}

    def close(self, message: str | None = None) -> None:
        """Release what the engine holds; waits that are left end with RunError(``message``)."""
