"""Runs a partitioned net as plainly as can be, a thread for each worker: what partitioning means, without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np

from dsinga.layers import Context, Layer, Records, Rows
from dsinga.net import NeuralNet, cut_rows
from dsinga.net.partitioned import PartitionedNet
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.training import Metrics, add_metrics, bp, declared_metrics, forward, name_metrics
from tests.support.worker_group import Group, Stuck, WorkerMail

RATE = 0.05

Values = dict[str, np.ndarray]
Batch = Mapping[str, Records]


class DoubleOps(NumpyOps):
    """The kernels that make float32 of what they get, in float64: what is left to differ is a matter of 1e-16."""

    def images(self, array: Any, scale: float = 1.0, mean: Any = None, std: Any = None) -> Any:
        return super().images(array, scale, mean, std).astype(np.float64)

    def channel_affine(self, x: Any, scale: Any, shift: Any) -> Any:
        return super().channel_affine(x.astype(np.float64), scale, shift)


class Run(NamedTuple):
    """Whole params after the last step, the whole gradients of each step, and the metrics of each step."""

    params: Values
    gradients: list[Values]
    metrics: list[Metrics]


def kernels(values: Values) -> NumpyOps:
    """Return the kernels for values of this precision."""
    return DoubleOps() if any(value.dtype == np.float64 for value in values.values()) else NumpyOps()


def in_threads(
    cut: PartitionedNet,
    ops: NumpyOps,
    step: int,
    one: Callable[[int, Context], Any],
    rows: Sequence[Rows] | None = None,
) -> list[Any]:
    """Return ``one(worker, ctx)`` of each worker, run together; raise the first failure, not those that follow it."""
    size, total = len(cut.locals), batch_size(cut.whole)
    own_rows = rows or cut_rows(total, size)
    group = Group(size)

    def work(worker: int) -> Any:
        ctx = Context(
            ops,
            cut.whole.phase,
            own_rows[worker],
            seed=3,
            step=step,
            all_reduce=lambda key, array: sum(group.meet(worker, key, array)),
            all_gather=lambda key, array: np.concatenate(group.meet(worker, key, array)),
            peers=WorkerMail(group, worker),
        )
        well = False
        try:
            result = one(worker, ctx)
            well = True
            return result
        finally:
            group.finish(worker, well)

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, worker) for worker in range(size)]
        wait(futures)
    failures = [error for future in futures if (error := future.exception())]
    for error in sorted(failures, key=lambda error: isinstance(error, Stuck)):
        raise error
    assert not group.letters, f"nobody has taken {sorted(group.letters)}"
    return [future.result() for future in futures]


def run_partitioned(
    cut: PartitionedNet, values: Values, batches: Sequence[Batch], rows: Sequence[Rows] | None = None
) -> Run:
    """Train for a step a batch by plain SGD; ``values`` are of whole params, ``rows`` those of each worker."""
    held = {name: part.of(values[part.param]) for name, part in cut.parts.items()}
    gradients, metrics = [], []
    for step, batch in enumerate(batches):

        def iterate(worker: int, ctx: Context, batch: Batch = batch) -> tuple[Values, Metrics]:
            net, pushes = cut.locals[worker], list[tuple[str, np.ndarray]]()
            records = own_records(net, batch, ctx.rows)
            reported = bp(net, held, records, ctx, lambda param, one: pushes.append((param, np.asarray(one))))
            assert len(dict(pushes)) == len(pushes), f"worker {worker} pushes a gradient twice"
            return dict(pushes), reported

        done = in_threads(cut, kernels(values), step, iterate, rows)
        whole: Values = {name: np.full(array.shape, np.nan, array.dtype) for name, array in values.items()}
        for name, part in cut.parts.items():
            users = tuple(worker for worker, (pushed, _) in enumerate(done) if name in pushed)
            assert users == part.users, f"{name} is pushed by {users}, not by its users {part.users}"
            shares = [done[worker][0][name].reshape(part.shape) for worker in users]
            total = shares[0] if part.gathered else sum(shares)  # gathered: each has computed the whole
            part.of(whole[part.param])[...] = total
            held[name] = apply(cut.whole.params[part.param].trainable, held[name], total)
        gradients.append(whole)
        metrics.append(name_metrics(cut.whole, add_metrics([reported for _, reported in done])))
    params = {name: np.full(array.shape, np.nan, array.dtype) for name, array in values.items()}
    for name, part in cut.parts.items():
        part.of(params[part.param])[...] = held[name]
    return Run(params, gradients, metrics)


def run_whole(net: NeuralNet, values: Values, batches: Sequence[Batch]) -> Run:
    """Train the net as it is, in this thread."""
    held, gradients, metrics = dict(values), [], []
    for step, batch in enumerate(batches):
        ctx = Context(kernels(values), net.phase, Rows(0, batch_size(net), batch_size(net)), seed=3, step=step)
        pushed: Values = {}
        metrics.append(bp(net, held, batch, ctx, pushed.__setitem__))
        assert [*metrics[-1]] == declared_metrics(net)
        gradients.append({name: np.asarray(one).reshape(net.params[name].shape) for name, one in pushed.items()})
        held = {name: apply(net.params[name].trainable, held[name], gradients[-1][name]) for name in held}
    return Run(held, gradients, metrics)


def forward_partitioned(cut: PartitionedNet, values: Values, batch: Batch) -> Metrics:
    """Return the metrics of one pass forward."""
    held = {name: part.of(values[part.param]) for name, part in cut.parts.items()}

    def one(worker: int, ctx: Context) -> Metrics:
        net = cut.locals[worker]
        return forward(net, held, own_records(net, batch, ctx.rows), ctx)[1]

    return name_metrics(cut.whole, add_metrics(in_threads(cut, kernels(values), 0, one)))


def forward_whole(net: NeuralNet, values: Values, batch: Batch) -> Metrics:
    """Return the metrics of one pass forward of the net as it is."""
    rows = Rows(0, batch_size(net), batch_size(net))
    return forward(net, values, batch, Context(kernels(values), net.phase, rows, seed=3))[1]


def apply(trainable: bool, value: np.ndarray, pushed: np.ndarray) -> np.ndarray:
    """Return the param after a step: moved against its gradient, or replaced by its new state."""
    return value - RATE * pushed if trainable else pushed


def batch_size(net: NeuralNet) -> int:
    """Return the rows of a batch: of the first layer."""
    return net.nodes[0].layer.shape[0]


def own_records(net: NeuralNet, batch: Batch, rows: Rows) -> dict[str, Records]:
    """Return what the input layers of a worker read: the rows that they compute."""
    own = {}
    for node in net.nodes:
        if node.layer.is_input:
            start, stop, _ = node.rows or rows
            data, labels = batch[node.layer.name]
            own[node.layer.name] = Records(data[start:stop], None if labels is None else labels[start:stop])
    return own


def initial(net: NeuralNet, dtype: type = np.float64, seed: int = 0) -> Values:
    """Return small params, positive where the layer fills them with ones (scales and variances)."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.uniform(-0.5, 0.5, param.shape) * (0.2 if param.spec.initial else 1) + param.spec.initial).astype(
            dtype
        )
        for name, param in net.params.items()
    }


def batches_of(net: NeuralNet, count: int, classes: int, dtype: type = np.float64, seed: int = 0) -> list[Batch]:
    """Return random batches for the input layers of a net; labels below ``classes``."""
    rng = np.random.default_rng(seed)
    inputs = [node.layer for node in net.nodes if node.layer.is_input]
    return [{layer.name: records_of(layer, classes, dtype, rng) for layer in inputs} for _ in range(count)]


def records_of(layer: Layer, classes: int, dtype: type, rng: np.random.Generator) -> Records:
    """Return a random batch for an input layer: numbers with a label a row, or codes with one a step, -1 at the end."""
    codes = getattr(layer, "codes", 0)
    if not codes:
        return Records(rng.normal(size=layer.shape).astype(dtype), rng.integers(0, classes, layer.shape[0]))
    rows, steps = layer.shape
    beyond = np.arange(steps) >= rng.integers(1, steps + 1, rows)[:, None]
    words = rng.integers(0, codes, layer.shape, dtype=np.int32)
    return Records(np.where(beyond, -1, words), np.where(beyond, -1, rng.integers(0, classes, layer.shape)))


def assert_equal_runs(one: Run, other: Run, tolerance: float) -> None:
    """Params, gradients and metrics are equal: arrays up to ``tolerance`` of their largest number."""
    for step, (mine, its) in enumerate(zip(one.gradients, other.gradients, strict=True)):
        assert_close(mine, its, tolerance, f"gradient of step {step}")
    assert_close(one.params, other.params, tolerance, "param")
    for step, (mine, its) in enumerate(zip(one.metrics, other.metrics, strict=True)):
        assert list(mine) == list(its), f"metrics of step {step}"
        for name in mine:
            np.testing.assert_allclose(mine[name], its[name], tolerance, tolerance, err_msg=f"{name} of step {step}")


def assert_close(mine: Values, its: Values, tolerance: float, what: str) -> None:
    """Arrays of the same names are equal, up to ``tolerance`` of the largest number in each.

    A gradient may be nothing but rounding (of a bias below batch normalisation): the largest of all counts a bit too.
    """
    assert mine.keys() == its.keys(), what
    largest = {name: np.abs(array).max() for name, array in its.items()}
    assert np.isfinite(list(largest.values())).all(), f"{what}: something grows beyond all bounds"
    least = 0.1 * max(largest.values(), default=0)
    for name, array in its.items():
        atol = tolerance * max(largest[name], least)
        np.testing.assert_allclose(mine[name], array, rtol=0, atol=atol, err_msg=f"{what} {name}")
