"""The local engine: one worker in this process, with whole nets and params, without Dask and without servers."""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dsinga.base.cores import available_cores
from dsinga.base.errors import Diverged, RunError
from dsinga.data.sources.arrays import ArrayColumn
from dsinga.engine.engine import Engine, Loop, Snapshot, StepReport
from dsinga.engine.local_updater import LocalUpdater
from dsinga.job import Job, Phase
from dsinga.layers import Context, Records
from dsinga.monitor.timings_file import Places
from dsinga.net import NeuralNet
from dsinga.net.neuralnet import usable_threads
from dsinga.ops import Ops
from dsinga.ops.types import ParamArrays
from dsinga.passes.cut_runner import to_host
from dsinga.passes.evaluation import evaluate, forward_in_order
from dsinga.passes.inference import forward_in_threads, outputs_to_write, write_outputs
from dsinga.passes.processor import PRECISIONS, cpu_ops
from dsinga.passes.training_step import TrainingStep
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.prefetch import Prefetch
from dsinga.training import Metrics, add_metrics, algorithm, forward
from dsinga.training.ema import averaged
from dsinga.worker.configure import OpenedJob

_log = logging.getLogger(__name__)

# Seconds after which train() returns, so that progress is shown and a request to stop is heard.
ROUND_SECONDS = 0.5
# Batches of arrays in memory that are read without a thread.
SMALL_BATCH_BYTES = 1 << 16


class LocalEngine(Engine):
    """Trains the only worker of a job in the thread that calls it; the bits are those of a cluster.

    Args:
        job: the job, checked, of one worker group with one worker.
        opened: its readers and nets.
        begin: what the run begins with; its arrays are copied.
        updater: that of earlier training, which goes on: its steps count for the order of records, random numbers and
            the learning rate. It is copied, so that a run which fails leaves it as it is.
        threads: the most kernel threads; by default as many as the net can use.

    Attributes:
        updater: the updater of this run, with which training may go on later.
    """

    def __init__(
        self,
        job: Job,
        opened: OpenedJob,
        begin: Snapshot,
        updater: LocalUpdater | None = None,
        threads: int | None = None,
    ):
        self.job, self.nets = job, opened.nets
        reader = opened.readers[Phase.kTrain]
        self.epochs = reader.epochs if job.epochs else None
        self.batchsize = reader.batchsize
        self._step, self._speed = begin.step, 0.0
        self._opened, self._reader = opened, reader
        self._net = self.nets[Phase.kTrain]
        usable = usable_threads(self._net, 1)
        self._threads = max(1, min(threads or usable, usable, available_cores()))
        self.places = Places(threads=self._threads)
        self._ops = cpu_ops(PRECISIONS[job.precision])
        self._params, state = begin.copy()
        if updater is None:
            updater = LocalUpdater(job.updater, self._net.params)
            updater.steps = begin.step
            if state is not None:
                updater.resume(state)
        else:
            updater = updater.copy()
        updater.create_state(self._params)
        self.updater = updater
        self._earlier_steps = updater.steps - begin.step
        self._updates = LocalUpdates(updater, self._params, self._ops)
        self._training_step = TrainingStep(
            algorithm(job.train_one_batch), self._net, reader.micro_batches, job.skip_bad_batches
        )
        self._batches: Iterator[dict[str, Records]] | None = None
        self._loop: Loop | None = None
        self._failure: RunError | None = None  # of the next step, while the loop has not seen those before it

    @property
    def step(self) -> int:
        """The step that follows the last one that was done."""
        return self._step

    @property
    def samples_per_second(self) -> float:
        """How many records it trained on in a second of the last call of :meth:`train`."""
        return self._speed

    def start(self, step: int, loop: Loop) -> None:
        """Begin to read batches ahead."""
        self._loop = loop
        first = (self._earlier_steps + step) * self._reader.micro_batches
        read = _read_function(self._net, self._reader)
        if self._reader.sizes(self._net)[0] <= SMALL_BATCH_BYTES and all(
            map(_is_in_memory, self._reader.stores.values())
        ):
            self._batches = map(read, itertools.count(first))  # sooner than a thread could hand them over
        else:
            self._batches = Prefetch(read, first)

    def train(self, stop: int) -> Sequence[StepReport]:
        """Train until half a second has passed, ``stop`` is reached, or a step fails, as when records cannot be read.

        That raises RunError once the loop has seen the steps before.
        """
        reports = [] if self._failure else self._train_round(stop)
        if self._failure is None or reports:
            return reports
        failure, self._failure = self._failure, None
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    def _train_round(self, stop: int) -> list[StepReport]:
        self._ops.set_threads(self._threads)
        self._ops.enter()
        reports: list[StepReport] = []
        started = ended = time.perf_counter()
        while self.step < stop and (not reports or ended - started < ROUND_SECONDS):
            try:
                metrics, data = self._train_batch()
            except Diverged:
                raise
            except RunError as error:
                self._failure = error
                break
            self._step += 1
            began, ended = ended, time.perf_counter()
            total, update = ended - began, self._updates.seconds
            timing = {"total": total, "compute": total - data - update, "data": data, "update": update}
            reports.append(StepReport(metrics, timing | {"exchange": update, "crossing": 0, "within": 0}))
        self._speed = self.batchsize * len(reports) / max(ended - started, 1e-9)
        return reports

    def _train_batch(self) -> tuple[Metrics, float]:
        """Compute the gradients of the next batch and apply them; return its metrics, and the seconds of waiting."""
        self._data_seconds = self._updates.seconds = 0.0
        step = self.updater.steps
        values = {name: self._ops.asarray(self._params[name]) for name in self._net.shapes}
        metrics = self._training_step.run(step, values, self._micro_batches(step), self._updates)
        return metrics or {}, self._data_seconds

    def _micro_batches(self, step: int) -> Iterator[tuple[dict[str, Records], Context]]:
        """Yield the records and the context of each micro-batch of a step; count the seconds of waiting for records."""
        assert self._batches is not None
        for number in range(self._reader.micro_batches):
            started = time.perf_counter()
            records = next(self._batches)
            self._data_seconds += time.perf_counter() - started
            yield records, Context(
                self._ops, Phase.kTrain, self._reader.rows(0, number), self.job.seed, step,
                micro_batch=self._reader.micro_batch(number),
            )  # fmt: skip

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Compute the metrics of each batch, and add them up."""
        self._ops.set_threads(self._threads)
        self._ops.enter()
        values = {name: self._ops.asarray(value) for name, value in self._averages().items()}

        def compute(net: NeuralNet, reader: BatchReader, number: int, records: Mapping[str, Records]) -> Metrics:
            return forward(net, values, records, Context(self._ops, phase, reader.parts[0], self.job.seed, number))[1]

        return add_metrics(evaluate(self._opened.passes(phase, batches), forward_in_order(_read_function, compute)))

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Write the files of the output layers of a phase; in a validation of those that a test does not write."""
        layers = outputs_to_write(self.nets, phase)
        if layers:
            forward = forward_in_threads(self.job, self._averages())
            write_outputs(self.nets[phase], self._opened.readers[phase], forward, batches, layers)

    def _averages(self) -> ParamArrays:
        """Return what tests use: the params, or their averages where the job asks for these."""
        if self.job.updater.ema_conf is None:
            return self._params
        params = averaged({name: value.reshape(-1) for name, value in self._params.items()}, self.updater.state)
        return {name: params[name].reshape(value.shape) for name, value in self._params.items()}

    def params(self) -> ParamArrays:
        """Return copies of the params, or of their averages."""
        return {name: value.copy() for name, value in self._averages().items()}

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Return copies of the params and of the updater's state."""
        state = {
            name: {slot: array.copy() for slot, array in slots.items()} for name, slots in self.last_state().items()
        }
        return {name: value.copy() for name, value in self._params.items()}, state

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the updater's state by param and slot: the arrays that were trained, in the shapes of the params."""
        return {
            name: {slot: array.reshape(self._params[name].shape) for slot, array in slots.items()}
            for name, slots in self.updater.state.items()
        }

    @property
    def newest(self) -> Snapshot | None:
        """The snapshot of the step where the loop stands, unless the next one has failed while it changed params."""
        if self._loop is None or self._loop.step != self.step or self._updates.has_begun:
            return None
        return Snapshot(self.step, *self.snapshot(), self._loop.state())

    def rescue(self, waits: bool) -> Snapshot:
        """Return the params of the last step.

        An interrupt that is no signal, or a second one, may have cut an update: then some have the next step already.
        """
        return Snapshot(self.updater.steps - self._earlier_steps, self.params(), self.last_state())

    def learning_rate(self, step: int) -> float:
        """Return the rate of the updater's schedule."""
        return self.updater.rate(self._earlier_steps + step)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the rate by factors, each from its step on, which the updater counts with its earlier ones."""
        self.updater.set_rate_factors({self._earlier_steps + step: factor for step, factor in factors.items()})

    use_rate_factors = set_rate_factors

    def close(self, message: str | None = None) -> None:
        """End the thread that reads batches ahead."""
        if isinstance(self._batches, Prefetch):
            self._batches.close()
        self._batches = self._loop = None


class LocalUpdates:
    """Applies the gradients of a step to the params of this process: large ones at once, while they are in the caches.

    Attributes:
        seconds: how long it has taken since this was set to 0.
        has_begun: whether the present step may have changed some of the params already.
    """

    def __init__(self, updater: LocalUpdater, params: ParamArrays, ops: Ops):
        self._updater, self._params, self._ops = updater, params, ops
        self._gradients: dict[str, Any] = {}
        self.seconds, self.has_begun = 0.0, False

    def push(self, name: str, gradient: Any) -> None:
        """Apply a large gradient, and keep the others for :meth:`finish`."""
        gradient = to_host(gradient, self._ops)
        self.has_begun, started = True, time.perf_counter()
        if not self._updater.apply_large(self._params, name, gradient):
            self._gradients[name] = gradient
        self.seconds += time.perf_counter() - started

    def finish(self) -> None:
        """Apply the gradients that were kept."""
        self.has_begun, started = True, time.perf_counter()
        gradients, self._gradients = self._gradients, {}
        self._updater.step(self._params, gradients)
        self.has_begun = False
        self.seconds += time.perf_counter() - started

    def skip(self) -> None:
        """Count a step whose batch is left out."""
        step = self._updater.steps
        _log.warning("the loss or a record of group 0 is not finite at step %d: the batch is left out", step)
        self._updater.steps = step + 1


def _read_function(net: NeuralNet, reader: BatchReader) -> Callable[[int], dict[str, Records]]:
    """Return a function that reads the records of a step, for the input layers of a net."""
    rows = dict.fromkeys(net.inputs, reader.parts[0])
    return functools.partial(reader.read, rows=rows, group=0)


def _is_in_memory(source: Any) -> bool:
    """Whether the records of a source are numpy arrays of this process."""
    return all(isinstance(column, ArrayColumn) for column in source.columns)
