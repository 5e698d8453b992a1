"""Defines Predictor, which computes outputs and metrics of batches in any thread or process."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.data.conversion import as_records
from dsinga.data.missing_values import plain_array
from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.interface.layer import Output
from dsinga.net import NeuralNet
from dsinga.net.node import Node
from dsinga.ops import Array, Ops, Processor
from dsinga.ops.interface import PassResult
from dsinga.ops.types import is_on_device
from dsinga.passes.captured_pass import CapturedPass
from dsinga.passes.captured_passes import CapturedPasses, passes_of
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.prefetch import Prefetch
from dsinga.training import Metrics, forward

FEATURE_BYTES = 1 << 25  # of all layers in one pass of predict and evaluate: enough rows that kernels are fast
ONE_CORE = Processor(1)

# The features of the layers that are asked for, with their labels, and the metrics, of one batch.
BatchResult = tuple[dict[str, Records], Metrics]
# Computes the batches of a net, in order, the first so many or, for 0, those of all records: their features of the
# layers that are named, and their metrics. The batches are those of a BatchReader, or what else it can read.
Forward = Callable[[NeuralNet, Any, Sequence[str], int], Iterator[BatchResult]]

ReadFunction = Callable[[int], dict[str, Records]]


class ThreadKernels(NamedTuple):
    """A thread's kernels for forward passes, its copy of the params, and recorded passes."""

    ops: Ops
    params: dict[str, Array]
    passes: CapturedPasses | None

    @classmethod
    def open(cls, ops: Ops, params: Mapping[str, Array], what: str) -> ThreadKernels:
        """Prepare the calling thread for forward passes; the log calls them ``what``."""
        ops.enter()
        return cls(ops, _load(ops, params), passes_of(ops, what))


class Predictor:
    """Computes a net's outputs and metrics for batches of records, in any thread or process.

    Each thread opens kernels and copies the params to their device once.

    Args:
        params: float32 arrays by name, unknown ones are ignored; None if each call passes its own.
        seed: the job's seed, for the random numbers of the phase "train".
        phase: the phase in which layers compute, by default the net's.
        ops: returns the kernels of the calling thread, by default a processor's.
        carries_state: whether states of recurrent layers and kCachedAttention pass from each batch of a thread to the
            next; else they are among ``params``.
    """

    def __init__(
        self, net: NeuralNet, params: Mapping[str, Array] | None = None, *, seed: int = 0, phase: Phase | None = None,
        ops: Callable[[], Ops] | None = None, threads: int = 1, carries_state: bool = False,
    ):  # fmt: skip
        self.net, self._seed, self._phase = net, seed, phase or net.phase
        self._ops, self._threads = ops, threads
        self._states: dict[str, dict[str, str]] = {}  # params by role, by layer
        if carries_state:
            states = {
                name: np.zeros(param.shape, np.float32) for name, param in net.params.items() if param.spec.by_rows
            }
            self._states = {node.layer.name: _state_params(node) for node in net.nodes if states.keys() & node.params}
            params = {**(params or {}), **states}
        self._params = {} if params is None else {name: params[name] for name in net.params}
        self._by_thread: dict[tuple[int, Processor], ThreadKernels] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ops": None, "_by_thread": {}}

    def for_net(self, net: NeuralNet) -> Predictor:
        """Return a predictor of another net that shares params and kernels with this one."""
        predictor = object.__new__(Predictor)
        vars(predictor).update(vars(self), net=net)
        return predictor

    def forward(
        self, records: Mapping[str, Records], rows: int, keep: Collection[str] = (), *,
        params: Mapping[str, np.ndarray] | None = None, step: int = 0, processor: Processor = ONE_CORE,
    ) -> BatchResult:  # fmt: skip
        """Compute a batch: return outputs and labels of the layers ``keep``, and the metrics.

        ``params`` replace the predictor's in this call. ``step`` selects random numbers of the phase "train".
        ``processor`` is the calling thread's, unless the predictor has ``ops``. Raises UserError for an unknown layer,
        and for wrong records.
        """
        ops, values, passes = self._open(processor)
        ctx = Context(ops, self._phase, Rows(0, rows, rows), self._seed, step)
        names = [*keep, *self._states] if self._states else keep
        if passes is not None and not self._states:
            result = self._launch(passes, values, records, params, ctx, names)
            if result is not None:
                return {name: _copied(on_host(result.outputs[name], ops)) for name in keep}, result.metrics
        if params is not None:
            values = _load(ops, params)
        outputs, metrics = forward(self.net, values, records, ctx, names)
        for layer, params_by_role in self._states.items():
            values |= {param: outputs[layer].state[role] for role, param in params_by_role.items()}
        return {name: on_host(outputs[name], ops) for name in keep}, metrics

    @property
    def last_pass(self) -> CapturedPass | None:
        """The recorded pass that computed the thread's last batch; None if none did."""
        kernels = self._by_thread.get((threading.get_ident(), ONE_CORE))
        return None if kernels is None or kernels.passes is None else kernels.passes.last

    def _launch(
        self, passes: CapturedPasses, values: Mapping[str, Array], records: Mapping[str, Records],
        params: Mapping[str, np.ndarray] | None, ctx: Context, names: Collection[str],
    ) -> PassResult | None:  # fmt: skip
        """Compute a batch by a recorded pass; None if that is not possible."""
        if ctx.ops.device_count() and has_codes(self.net):
            return None

        def compute(batch: Mapping[str, Records], given: Mapping[str, Array], ctx: Context) -> dict[str, Output]:
            return forward(self.net, given, batch, ctx, names)[0]

        key = self.net, ctx.phase, ctx.rows, tuple(names)  # the net itself, which must outlive its capture
        return passes.compute(key, self.net, records, ctx, compute, params, values if params is None else None)

    def predict(self, records: np.ndarray, layer: str) -> np.ndarray:
        """Return the output of ``layer``, (n, ...), for any number of records (n, ...), in bounded memory.

        The net has one input layer. NaN and infinity are accepted.
        """
        (name,) = self.net.inputs

        def compute(start: int, stop: int) -> np.ndarray:
            batch = Records(as_records(plain_array(records[start:stop], "x")), None)
            return self.forward({name: batch}, len(batch.data), (layer,))[0][layer].data

        return in_batches(compute, len(records), batch_rows(self.net))

    def _open(self, processor: Processor) -> ThreadKernels:
        thread = threading.get_ident(), processor
        kernels = self._by_thread.get(thread)
        if kernels is None:
            ops = processor.ops() if self._ops is None else self._ops()
            if self._phase is not Phase.kTrain:
                ops = ops.with_equal_rows()
            kernels = self._by_thread[thread] = ThreadKernels.open(ops, self._params, "forward passes")
        kernels.ops.enter()
        kernels.ops.set_threads(self._threads)
        return kernels


def has_codes(net: NeuralNet) -> bool:
    """Whether a net reads codes, such as words, which must be checked in host memory."""
    return any(node.layer.takes_codes for node in net.nodes)


def _state_params(node: Node) -> dict[str, str]:
    return {spec.role: name for spec, name in zip(node.layer.params, node.params, strict=True) if spec.by_rows}


def _load(ops: Ops, params: Mapping[str, Array]) -> dict[str, Array]:
    return {name: ops.asarray(value) for name, value in params.items()}


def on_host(output: Output, ops: Ops) -> Records:
    """Copy a layer's output to host memory, with its labels if they have one entry per row."""
    feature, labels = np.ascontiguousarray(ops.to_numpy(output.feature)), output.labels
    if is_on_device(labels):  # of a recorded pass
        labels = ops.to_numpy(labels)
    return Records(feature, labels if isinstance(labels, np.ndarray) and len(labels) == len(feature) else None)


def _copied(records: Records) -> Records:
    data, labels = records
    return Records(data.copy(), None if labels is None else labels.copy())


def in_batches(compute: Callable[[int, int], np.ndarray], rows: int, size: int) -> np.ndarray:
    """Compute many rows in batches of at most ``size``, and join the results."""
    result = None
    for start in range(0, max(rows, 1), size):
        stop = min(start + size, rows)
        part = compute(start, stop)
        if result is None:
            result = part if len(part) == rows else np.empty((rows, *part.shape[1:]), part.dtype)
        if result is not part:
            result[start:stop] = part
    assert result is not None
    return result


def batch_rows(net: NeuralNet) -> int:
    """Return how many rows to compute at once, so that all outputs fit into FEATURE_BYTES."""
    return max(1, FEATURE_BYTES // max(1, row_bytes(net)))


def row_bytes(net: NeuralNet) -> int:
    """Return how many bytes the outputs of all layers need for one row."""
    return 4 * sum(math.prod(node.layer.shape) // node.layer.shape[0] for node in net.nodes)


class EvaluationPass(NamedTuple):
    """Batches of one size to evaluate: the net, its reader and their number."""

    net: Any
    reader: BatchReader
    batches: int


def evaluate(passes: Iterable[tuple[Any, Any, int]], compute: Forward) -> list[Metrics]:
    """Return the metrics of each batch of several evaluation passes."""
    return [metrics for net, reader, batches in passes for _, metrics in compute(net, reader, (), batches)]


def forward_in_order(
    read_function: Callable[[Any, BatchReader], ReadFunction],
    compute: Callable[[Any, BatchReader, int, Mapping[str, Records]], Metrics],
) -> Forward:
    """Return a function that evaluates batches in order, while a thread reads ahead.

    Args:
        read_function: returns a function that reads a batch, for a net and a reader.
        compute: returns a batch's metrics, given net, reader, its number among all passes, and records.
    """
    numbers = itertools.count()

    def forward(net: NeuralNet, reader: BatchReader, keep: Sequence[str], batches: int) -> Iterator[BatchResult]:
        with Prefetch(read_function(net, reader), 0, batches) as prefetch:
            for records in prefetch:
                yield {}, compute(net, reader, next(numbers), records)

    return forward
