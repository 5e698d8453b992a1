"""Trains a job with one worker in this process, without Dask or servers."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.base.arrays import ParamArrays, averaged
from dsinga.base.cores import available_cores
from dsinga.base.errors import Diverged, RunError
from dsinga.engine.engine import Engine, Loop, Places, Snapshot, StepReport
from dsinga.engine.nets_by_shape import open_cut_nets
from dsinga.job import Job, Phase
from dsinga.job.enums import PRECISIONS
from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.net.neuralnet import usable_threads
from dsinga.ops import Array, Processor
from dsinga.passes.captured_passes import passes_of
from dsinga.passes.inference import forward_in_threads, outputs_to_write, write_outputs
from dsinga.passes.opened_job import OpenedJob
from dsinga.passes.predictor import evaluate, forward_in_order
from dsinga.passes.replayed import replayed
from dsinga.passes.round import BegunStep, Round, Timing, send_ahead
from dsinga.passes.training_step import TrainingStep
from dsinga.reading.batch_reader import BatchReader, WorkerBatches, whole_batches
from dsinga.reading.prefetch import Prefetch
from dsinga.training import Metrics, add_metrics, algorithm, bp, create_updater, forward
from dsinga.training.divergence import LEFT_OUT
from dsinga.training.local_updater import LocalUpdater

_log = logging.getLogger(__name__)

# Seconds after which train() returns, so that progress is shown and a request to stop is heard.
ROUND_SECONDS = 0.5
# Batches of arrays in memory that are read without a thread.
SMALL_BATCH_BYTES = 1 << 16


class LocalEngine(Engine):
    """Trains a job in this process; the bits equal a cluster's.

    The calling thread computes, or with the job's ``blocks`` a thread for each block, as many at a time as there are
    cores.

    Args:
        job: the checked job, of one worker group with one worker, or with blocks.
        opened: its readers and nets.
        begin: the initial state of the run, whose arrays the engine takes over.
        updater: the updater of earlier training, which is copied. Its steps count.
        threads: the most kernel threads; by default as many as the net can use.
        device: the GPU that computes; None for CPU cores.

    Attributes:
        updater: the updater of this run, with the params.
    """

    pauses_cheaply = True

    def __init__(
        self, job: Job, opened: OpenedJob, begin: Snapshot, updater: LocalUpdater | None = None,
        threads: int | None = None, device: int | None = None,
    ):  # fmt: skip
        self.job, self.nets = job, opened.nets
        reader = whole_batches(opened.readers[Phase.kTrain])
        self.epochs = reader.epochs if job.epochs else None
        self.batchsize = reader.batchsize
        self._step, self._speed = begin.step, 0.0
        self._opened, self._reader = opened, reader
        self._net = self.nets[Phase.kTrain]
        self._cut = open_cut_nets(job, job.blocks, lambda net: 1, threads) if job.blocks else None
        usable = 1 if job.blocks else usable_threads(self._net, 1)
        self._threads = max(1, min(threads or usable, usable, available_cores()))
        self.places = Places(threads=self._threads)
        self._ops = Processor(self._threads, device, PRECISIONS[job.precision]).ops()
        self._ops.enter()
        self._on_device = self._ops.device_count() > 0
        if self._cut is not None:
            self._cut.open(opened, create_updater(job.updater))
        if updater is None:
            self.updater = LocalUpdater(create_updater(job.updater), self._net.params, self._ops)
            self.updater.steps = begin.step
            self.updater.take(*begin.release())
        else:
            self.updater = updater.copy(self._ops)
            self.updater.take(begin.release()[0])
        self._earlier_steps = self.updater.steps - begin.step
        self._updates = CountedUpdates(self.updater)
        capture = self._ops.capture()
        passes = passes_of(self._ops, "training passes") if capture is None else None
        self._gradient_memory: Mapping[int, Sequence[Array]] = {}
        waits = job.updater.clip_global_norm or job.blocks_at_once < job.blocks  # gradients, for the last one or block
        if not self._on_device and not waits:
            dense = (param for param in self._net.params.values() if param.trainable and not param.spec.sparse)
            # Each thread computes one, and the tree of sums waits for one at each height.
            count = min(job.blocks, threads or available_cores()) + (job.blocks - 1).bit_length() if job.blocks else 1
            self._gradient_memory = buffers.few_bases((4 * param.size for param in dense), count)
        compute = algorithm(job.train_one_batch)
        if self._cut is None:
            compute = replayed(compute, passes, copies=reader.micro_batches > 1)
        else:
            compute = functools.partial(self._cut.backward, compute, memory=self._gradient_memory)
        self._training_step = TrainingStep(
            compute, self._net, reader.micro_batches, job.skip_bad_batches, repeats=self._cut is None
        )
        self._tests = passes_of(self._ops, "tests")
        self._captured = None
        if capture is not None:
            self._captured = capture.iterations(
                self._training_step, self.updater.updater, self.updater.values, self._updates
            )
        self._contexts = [
            Context(self._ops, Phase.kTrain, reader.rows(0, k), job.seed, micro_batch=reader.micro_batch(k))
            for k in range(reader.micro_batches)
        ]
        if not (self._on_device or waits or job.skip_bad_batches) and len(self._contexts) == 1:
            self._contexts[0] = self._contexts[0].changed(adds_later=algorithm(job.train_one_batch) is bp)
        self._batches: Iterator[dict[str, Records]] | None = None
        self._started = self._data_seconds = 0.0  # when the present step began, and its seconds of waiting for records
        self._loop: Loop | None = None
        self._failure: RunError | None = None  # of the next step, while the loop has not seen those before it
        self._may_run = False  # whether the device may be computing a step

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._step

    @property
    def samples_per_second(self) -> float:
        """Records per second in the last call of :meth:`train`."""
        return self._speed

    def start(self, step: int, loop: Loop) -> None:
        """Begin to read batches ahead."""
        self._loop = loop
        first = (self._earlier_steps + step) * self._reader.micro_batches
        read = self._read_function(self._net, self._reader)
        is_small = self._reader.sizes(self._net)[0] <= SMALL_BATCH_BYTES
        if is_small and not self._on_device and self._reader.is_in_memory:
            self._batches = map(read, itertools.count(first))  # sooner than a thread could hand them over
        else:
            self._batches = Prefetch(read, first, self._reader.stop(self._earlier_steps))

    def train(self, stop: int) -> Sequence[StepReport]:
        """Train until half a second has passed, ``stop`` is reached, or a step fails.

        The next call raises the error of a failed step.
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
        started = time.perf_counter()

        def report(begun: BegunStep, metrics: Metrics | None, timing: Timing) -> None:
            self._step += 1
            if metrics is None:
                _log.warning(LEFT_OUT, 0, begun.step)
            total, data, exchange, crossing, within, update = timing
            seconds = {"total": total, "data": data, "exchange": exchange, "crossing": crossing, "within": within}
            reports.append(StepReport(metrics or {}, {**seconds, "update": update, "compute": total - data - update}))

        training = Round(self._begin, self._launch, self._captured, self._compute, report)
        self._may_run = self._on_device
        try:
            with buffers.use_bases(self._gradient_memory), self._rounding():
                training.run(self.updater.steps, self._earlier_steps + stop, ROUND_SECONDS)
        except Diverged:
            raise
        except RunError as error:
            self._failure = error
        self._may_run = False
        self._speed = self.batchsize * len(reports) / max(time.perf_counter() - started, 1e-9)
        return reports

    def _rounding(self) -> AbstractContextManager[None]:
        """Return the context in which products keep rounded params, unless several threads compute."""
        return self.updater.rounding() if self._cut is None else nullcontext()

    def _begin(self, step: int) -> BegunStep:
        self._started = time.perf_counter()
        self._data_seconds = self._updates.seconds = 0.0
        self._updates.begin(step)
        return BegunStep(step, self._next_records(), self._data_seconds)

    def _launch(self, begun: BegunStep) -> bool:
        assert self._captured is not None
        return self._captured.launch(begun.records, self._contexts[0].changed(step=begun.step))

    def _compute(self, begun: BegunStep) -> tuple[Metrics | None, Timing]:
        metrics = None
        if self._captured is not None:
            self._captured.begin(begun.step)
            metrics = self._captured.train(begun.records, self._contexts[0].changed(step=begun.step))
        if metrics is None:
            batches = self._micro_batches(begun)
            metrics = self._training_step.run(begun.step, self.updater.values, batches, self._updates)
        total, update = time.perf_counter() - self._started, self._updates.seconds
        return metrics, Timing(total, self._data_seconds, update, update=update)

    def _next_records(self) -> dict[str, Records]:
        assert self._batches is not None
        started = time.perf_counter()
        records = next(self._batches)
        self._data_seconds += time.perf_counter() - started
        return records

    def _micro_batches(self, begun: BegunStep) -> Iterator[tuple[dict[str, Records], Context]]:
        for number, ctx in enumerate(self._contexts):
            yield self._next_records() if number else begun.records, ctx.changed(step=begun.step)

    def evaluate(self, phase: Phase, batches: int) -> Metrics:
        """Evaluate batches of a phase, and add up their metrics."""
        self._ops.set_threads(self._threads)
        self._ops.enter()
        averages = self._averages()
        values: Mapping[str, Array] = self.updater.values
        if averages is not None:
            values = {name: self._ops.asarray(value) for name, value in averages.items()}

        def compute(net: NeuralNet, reader: BatchReader, number: int, records: Mapping[str, Records]) -> Metrics:
            if self._cut is not None:
                rows = reader.parts[0].total
                return self._cut.predictor(net, self.job.seed).forward(records, rows, params=values, step=number)[1]
            ctx = Context(self._ops, phase, reader.parts[0], self.job.seed, number)
            result = None
            if self._tests is not None and averages is None:
                key = net, ctx.phase, ctx.rows
                result = self._tests.compute(key, net, records, ctx, functools.partial(_forward, net), values=values)
            return forward(net, values, records, ctx)[1] if result is None else result.metrics

        passes = [each._replace(reader=whole_batches(each.reader)) for each in self._opened.passes(phase, batches)]
        return add_metrics(evaluate(passes, forward_in_order(self._read_function, compute)))

    def write_outputs(self, phase: Phase, batches: int) -> None:
        """Let output layers write their files; validation skips the layers of tests."""
        layers = outputs_to_write(self.nets, phase)
        if layers:
            forward = forward_in_threads(self.job, self.params())
            write_outputs(self.nets[phase], self._opened.readers[phase], forward, batches, layers)

    def _averages(self) -> ParamArrays | None:
        """Return the averages of params to test with; None if the job keeps none."""
        if self.job.updater.ema_conf is None:
            return None
        values, state = self.updater.values, self.updater.state
        if self._on_device:
            values, state = self.updater.copy_values(), self.updater.copy_state()
        params = averaged({name: value.reshape(-1) for name, value in values.items()}, state)
        return {name: params[name].reshape(value.shape) for name, value in values.items()}

    def params(self) -> ParamArrays:
        """Return copies of the params to test with: averages if the job keeps them."""
        averages = self._averages()
        if averages is None:
            return self.updater.copy_values()
        return {name: value.copy() for name, value in averages.items()}

    def last_params(self) -> ParamArrays:
        """Return the params at the end: on CPU cores the engine's own arrays, unless the job keeps averages."""
        is_own = not self._on_device and self.job.updater.ema_conf is None
        return dict(self.updater.values) if is_own else self.params()

    def snapshot(self) -> tuple[ParamArrays, dict[str, ParamArrays]]:
        """Copy the params and the updater's state."""
        return self.updater.copy_values(), self._shaped(self.updater.copy_state())

    def set_params(self, params: ParamArrays, state: Mapping[str, ParamArrays] | None) -> None:
        """Continue training from other params, and perhaps another updater's state."""
        self._ops.enter()
        for name, value in params.items():
            self.updater.values[name][...] = self._ops.asarray(value)
        for name, slots in (state or {}).items():
            for slot, array in slots.items():
                self.updater.state[name][slot][...] = self._ops.asarray(np.asarray(array, np.float32).reshape(-1))

    def last_state(self) -> dict[str, ParamArrays]:
        """Return the updater's state by param and slot, on CPU cores without a copy."""
        return self._shaped(self.updater.copy_state() if self._on_device else self.updater.state)

    def _shaped(self, state: Mapping[str, ParamArrays]) -> dict[str, ParamArrays]:
        shapes = self._net.shapes
        return {
            name: {slot: array.reshape(shapes[name]) for slot, array in slots.items()} for name, slots in state.items()
        }

    @property
    def newest(self) -> Snapshot | None:
        """The state at the loop's step; None if a failed step has changed params."""
        if self._loop is None or self._loop.step != self.step or self._updates.has_begun or self._may_run:
            return None
        return Snapshot(self.step, *self.snapshot(), self._loop.state())

    def rescue(self, waits: bool) -> Snapshot:
        """Return the state after the last step of an interrupted run.

        After a second interrupt some params may already have the next step.
        """
        params, state = self.last_params(), self.last_state()
        if self._cut is not None:  # whose threads may still end their step
            params, state = copy.deepcopy((params, state))
        return Snapshot(self.updater.steps - self._earlier_steps, params, state)

    def learning_rate(self, step: int) -> float:
        """Return the schedule's learning rate at a step, after earlier training's steps."""
        return self.updater.rate(self._earlier_steps + step)

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the learning rate by factors, each starting at the step that is its key."""
        self.updater.set_rate_factors({self._earlier_steps + step: factor for step, factor in factors.items()})

    use_rate_factors = set_rate_factors

    def _read_function(self, net: NeuralNet, reader: BatchReader) -> Callable[[int], dict[str, Records]]:
        rows = dict.fromkeys(net.inputs, reader.parts[0])
        read: Callable[[int], dict[str, Records]] = WorkerBatches(reader, rows)
        if not self._on_device:
            return read
        return functools.partial(send_ahead, read, {name: net.layer(name) for name in net.inputs}, self._ops)

    def close(self, message: str | None = None) -> None:
        """End the thread that reads batches ahead."""
        if isinstance(self._batches, Prefetch):
            self._batches.close()
        self._batches = self._loop = None


def _forward(net: NeuralNet, records: Mapping[str, Records], values: Mapping[str, Array], ctx: Context) -> None:
    forward(net, values, records, ctx)


class CountedUpdates:
    """Applies the gradients of a training step to the params here, and measures the time.

    Attributes:
        seconds: the seconds since this was set to 0.
        has_begun: whether the present step may already have changed params.
    """

    def __init__(self, updater: LocalUpdater):
        self._updater = updater
        self.seconds, self.has_begun = 0.0, False

    def begin(self, step: int) -> None:
        """Learn which step's gradients follow."""
        self._updater.steps = step

    def push(self, name: str, gradient: Any) -> None:
        """Check a gradient, and apply it now or at the end of the step."""
        self.has_begun, started = True, time.perf_counter()
        self._updater.check_gradient(name, gradient)
        self._updater.push(name, gradient)
        self.seconds += time.perf_counter() - started

    def push_all(self, gradients: Mapping[str, Any]) -> str | None:
        """Receive all gradients of a step if they are finite; else return the name of one that is not."""
        started = time.perf_counter()
        lost = self._updater.push_all(gradients)
        self.seconds += time.perf_counter() - started
        return lost

    def finish(self) -> None:
        """Apply the gradients that wait."""
        self.has_begun, started = True, time.perf_counter()
        self._updater.finish()
        self.has_begun = False
        self.seconds += time.perf_counter() - started

    def skip(self) -> None:
        """Count a step without an update."""
        self._updater.steps += 1

    def discard(self) -> None:
        """Drop the gradients that wait."""
        self._updater.discard()
        self.has_begun = False
