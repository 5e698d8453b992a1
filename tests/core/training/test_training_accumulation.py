"""Micro-batches give the gradient of the whole batch, whatever the net, its cut and its lengths of sequences."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.cutting.thread_group import run_in_threads
from dsinga.job import JobError, NetConf, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.layers.interface.context import rows_of_batch
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet, create_net
from dsinga.ops import SparseRows
from dsinga.training import Metrics, accumulate, add_metrics, bp, name_metrics
from tests.support.partition_nets import BATCH, NETS, PAIRS, net_of
from tests.support.partitioned_run import Batch, Values, assert_close, batches_of, initial, kernels, records_for
from tests.support.random_nets import CLASSES
from tests.support.training_cases import dense, layer

COUNTS = (2, 5, 10)


def micro_batches(net: NeuralNet, batch: Batch, ctx: Context, count: int) -> Iterator[tuple[Any, Context]]:
    """Yield the records and the context of each micro-batch of a batch."""
    size = BATCH // count
    for number in range(count):
        part = Rows(number * size, (number + 1) * size, BATCH)
        yield records_for(net, batch, part), replace(ctx, rows=part, micro_batch=part)


def run(net: NeuralNet, values: Values, batch: Batch, count: int, push: Any) -> Metrics:
    """Compute a batch in micro-batches on one worker."""
    ctx = Context(kernels(values), net.phase, Rows(0, BATCH, BATCH), seed=3)
    return accumulate(bp, net, values, micro_batches(net, batch, ctx, count), count, push)


def run_cut(cut: PartitionedNet, values: Values, batch: Batch, count: int) -> tuple[Values, Metrics]:
    """Compute a batch in micro-batches on the workers of a cut net; return the gradients of whole params."""
    part_values = {name: part.of(values[part.param]) for name, part in cut.parts.items()}
    totals = {name: np.zeros(part.shape, np.float64) for name, part in cut.parts.items()}
    size, metrics = BATCH // count, list[Metrics]()
    for number in range(count):
        micro_batch = Rows(number * size, (number + 1) * size, BATCH)
        part_of_batch = records_for(cut.whole, batch, micro_batch)

        def compute(worker: int, ctx: Context, rows: Rows = micro_batch, batch: Any = part_of_batch) -> Any:
            pushed: dict[str, Any] = {}
            net, local = cut.locals[worker], replace(ctx, rows=rows_of_batch(ctx.rows, rows), micro_batch=rows)
            reported = bp(net, part_values, records_for(net, batch, ctx.rows), local, pushed.__setitem__)
            return {name: np.asarray(gradient) for name, gradient in pushed.items()}, reported

        for pushed, reported in run_in_threads(cut, kernels(values), compute, seed=3):
            metrics.append(reported)
            for name, gradient in pushed.items():
                totals[name] += gradient.reshape(totals[name].shape) / (
                    len(cut.parts[name].users) if cut.parts[name].gathered else 1
                )
    whole: Values = {name: np.zeros_like(array) for name, array in values.items()}
    for name, part in cut.parts.items():
        part.of(whole[part.param])[...] = totals[name]
    whole = {name: array for name, array in whole.items() if name not in cut.whole.static}
    return whole, name_metrics(cut.whole, add_metrics(metrics))


def expected(name: str) -> tuple[Values, Batch, Mapping[str, Any], Metrics]:
    """Return params, a batch, the gradients of the whole batch and its metrics."""
    net = net_of(name, micro_batches=1)
    values, (batch,) = initial(net), batches_of(net, 1, CLASSES)
    pushed: dict[str, Any] = {}
    metrics = run(net, values, batch, 1, pushed.__setitem__)
    return values, batch, shaped(pushed, values), metrics


def shaped(pushed: Mapping[str, Any], values: Values) -> Values:
    """Return gradients as arrays in the shapes of their params."""
    return {name: np.asarray(gradient).reshape(values[name].shape) for name, gradient in pushed.items()}


@pytest.mark.parametrize("name", NETS)
def test_micro_batches_give_the_gradient_and_the_metrics_of_the_batch(name: str):
    values, batch, gradients, metrics = expected(name)
    for count in COUNTS:
        pushed: dict[str, Any] = {}
        net = net_of(name, micro_batches=count)
        reported = run(net, values, batch, count, pushed.__setitem__)
        assert_close(shaped(pushed, values), dict(gradients), 1e-12, f"gradient by {count} micro-batches")
        assert reported.keys() == metrics.keys()
        for metric, figure in metric_values(metrics).items():
            np.testing.assert_allclose(metric_values(reported)[metric], figure, 1e-12, 1e-12, err_msg=metric)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_a_cut_net_does_so_too(name: str, strategy: str):
    values, batch, gradients, metrics = expected(name)
    net = net_of(name, strategy, 3, micro_batches=2)
    actual, reported = run_cut(partition(net, 3), values, batch, 2)
    assert_close(actual, dict(gradients), 1e-12, "gradient")
    for metric, figure in metric_values(metrics).items():
        np.testing.assert_allclose(metric_values(reported)[metric], figure, 1e-12, 1e-12, err_msg=metric)


def test_ragged_sequences_have_the_gradient_of_the_whole_batch_in_torch():
    """The oracle divides the sum over all steps by the rows of the whole batch; a mean of means differs."""
    torch = pytest.importorskip("torch")
    rows, steps, inputs = 6, 5, 4
    rng = np.random.default_rng(0)
    data, lengths = rng.normal(size=(rows, steps, inputs)), np.array([5, 5, 4, 1, 1, 2])
    labels = np.where(np.arange(steps) < lengths[:, None], rng.integers(0, 3, (rows, steps)), -1)
    layers = [
        layer("data", "Exact"),
        layer("scores", "kInnerProduct", "data", innerproduct_conf={"num_output": 3}, per_step=True),
        layer("loss", "kSoftmaxLoss", "scores", "data", per_step=True),
    ]
    info = RecordInfo((steps, inputs), 3, label_shape=(steps,), micro_batches=2)
    net = create_net(NetConf(layer=layers), Phase.kTrain, {"data": info})
    values, pushed = initial(net), dict[str, Any]()
    ctx = Context(kernels(values), net.phase, Rows(0, rows, rows))
    halves = [Rows(0, 3, rows), Rows(3, 6, rows)]
    batch = {"data": Records(data, labels)}
    batches = ((records_for(net, batch, part), replace(ctx, rows=part, micro_batch=part)) for part in halves)
    accumulate(bp, net, values, batches, 2, pushed.__setitem__)

    weight = torch.tensor(values["scores_weight"], requires_grad=True)
    bias = torch.tensor(values["scores_bias"], requires_grad=True)

    def mean_loss(part: slice) -> Any:
        scores = torch.nn.functional.linear(torch.tensor(data[part]), weight, bias)
        flat = torch.tensor(labels[part].reshape(-1))
        of_steps = {"ignore_index": -1, "reduction": "sum"}
        return torch.nn.functional.cross_entropy(scores.reshape(-1, 3), flat, **of_steps)

    (mean_loss(slice(0, rows)) / rows).backward()
    np.testing.assert_allclose(pushed["scores_weight"], weight.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(pushed["scores_bias"], bias.grad.numpy(), rtol=1e-12)


def test_a_batch_pushes_each_gradient_once_during_the_last_micro_batch():
    values, batch, _, _ = expected("sequences")
    net, events = net_of("sequences", micro_batches=5), list[str]()

    def algorithm(*arguments: Any) -> Metrics:
        events.append("computes")
        return bp(*arguments)

    ctx = Context(kernels(values), net.phase, Rows(0, BATCH, BATCH), seed=3)
    batches = micro_batches(net, batch, ctx, 5)
    accumulate(algorithm, net, values, batches, 5, lambda name, gradient: events.append(name))
    assert events[:5] == ["computes"] * 5
    assert sorted(events[5:]) == sorted(net.params)


def test_sparse_gradients_stay_sparse():
    net = create_net(
        NetConf(
            layer=[
                layer("data", "kRecordInput", store_conf={"path": "x", "batchsize": 4}),
                layer("embed", "kEmbedding", "data", embedding_conf={"vocab_size": 50, "feature_dim": 3}),
                layer("loss", "kMeanLoss", "embed"),
            ]
        ),
        Phase.kTrain,
        {"data": RecordInfo((2,), 2, codes=50, micro_batches=2)},
    )
    values, pushed = initial(net), dict[str, Any]()
    batch = {"data": Records(np.array([[1, 2], [2, 3], [3, 7], [7, 7]], np.int32))}
    ctx = Context(kernels(values), net.phase, Rows(0, 4, 4))
    parts = [Rows(0, 2, 4), Rows(2, 4, 4)]
    batches = ((records_for(net, batch, part), replace(ctx, rows=part, micro_batch=part)) for part in parts)
    accumulate(bp, net, values, batches, 2, pushed.__setitem__)
    gradient = pushed["embed_weight"]
    assert isinstance(gradient, SparseRows)
    np.testing.assert_array_equal(gradient.rows, [1, 2, 3, 7])


def test_a_layer_that_needs_all_rows_is_refused():
    layers = [
        layer("data", "kRecordInput", store_conf={"path": "x", "batchsize": 8}),
        dense("ip", "data", 3),
        layer("halves", "kSlice", "ip", slice_conf={"slice_dim": 0, "num_slices": 2}),
        layer("distance", "kEuclideanLoss", "halves", "halves"),
    ]
    info = RecordInfo((3,), 4, micro_batches=2)
    with pytest.raises(JobError, match="'halves': hands parts of the rows.*needs the whole batch.*leave micro_batches"):
        create_net(NetConf(layer=layers), Phase.kTrain, {"data": info})
