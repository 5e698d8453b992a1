"""A partitioned net trains as on one worker: gradients and params to 1e-12 in float64, 1e-5 in float32."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.cutting.bridges import BridgeDst
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.partitioning import partition
from dsinga.cutting.thread_group import Deadlock, run_in_threads
from dsinga.job import LayerType, Phase, load
from dsinga.layers import RecordInfo
from dsinga.layers.interface.context import Context, Rows
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.net import NeuralNet, create_net
from tests.support.installed import is_installed
from tests.support.partition_nets import ELSEWHERE, NETS, PAIRS, STRATEGIES, net_of
from tests.support.partitioned_run import (
    Run,
    assert_equal_runs,
    batches_of,
    forward_partitioned,
    forward_whole,
    initial,
    kernels,
    run_partitioned,
    run_whole,
)
from tests.support.random_nets import CLASSES, nets
from tests.support.refusals import refused
from tests.support.training_cases import build, dense, layer

STEPS = 2  # the second begins with what the first has changed


def both(net: NeuralNet, cut: PartitionedNet, dtype: type = np.float64, steps: int = STEPS) -> tuple[Run, Run]:
    """Return the runs of the partitioned and of the whole net."""
    values, batches = initial(net, dtype), batches_of(net, steps, CLASSES, dtype)
    return run_partitioned(cut, values, batches), run_whole(net, values, batches)


@pytest.mark.parametrize("name", NETS)
def test_a_net_trains_as_on_one_worker(name: str):
    whole = net_of(name)
    values, batches = initial(whole, np.float64), batches_of(whole, STEPS, CLASSES, np.float64)
    expected = run_whole(whole, values, batches)
    for strategy in STRATEGIES:
        cut = partition(net_of(name, strategy, 4), 4)  # 3 workers in float32, and 1 to 4 with random nets
        try:
            assert_equal_runs(run_partitioned(cut, values, batches), expected, 1e-12)
        except Exception as error:
            error.add_note(f"cut by {strategy}")
            raise


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_a_net_trains_as_on_one_worker_to_the_rounding_of_float32(name: str, strategy: str):
    net = net_of(name, strategy, 3)
    assert_equal_runs(*both(net, partition(net, 3), np.float32), 1e-5)


def test_the_nets_have_every_type_of_layer():
    used = {node.layer.conf.type_name for name in NETS for node in net_of(name).nodes}
    assert {kind.name for kind in LayerType if is_installed("layer", kind.name)} - ELSEWHERE <= used


@given(st.data())
def test_random_nets_train_as_on_one_worker(data: st.DataObject):
    parts = data.draw(st.integers(1, 4))
    net = data.draw(nets(parts))
    assert_equal_runs(*both(net, partition(net, parts), steps=3), 1e-10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=2000)
@given(st.data())
def test_many_random_nets_train_as_on_one_worker(data: st.DataObject):
    parts = data.draw(st.integers(1, 4))
    net = data.draw(nets(parts))
    assert_equal_runs(*both(net, partition(net, parts), steps=3), 1e-10)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_uneven_rows_that_the_job_sets(strategy: str):
    net = net_of("convnet", strategy, 3)
    rows = [Rows(0, 1, 10), Rows(1, 8, 10), Rows(8, 10, 10)]
    values, batches = initial(net), batches_of(net, 3, CLASSES)
    run = run_partitioned(partition(net, 3, rows), values, batches, rows)
    assert_equal_runs(run, run_whole(net, values, batches), 1e-12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_phases_give_the_same_metrics(strategy: str):
    parts = 3
    train, test = net_of("zoo", strategy, parts), net_of("zoo", strategy, parts, Phase.kTest)
    axes = {part.param: part.axis for part in partition(train, parts).parts.values()}
    cut = partition(test, parts, axes=axes)
    assert {part.param: part.axis for part in cut.parts.values()} == axes
    values, (batch,) = initial(test), batches_of(test, 1, CLASSES)
    metrics, expected = forward_partitioned(cut, values, batch), forward_whole(test, values, batch)
    reported = metric_values(metrics)
    assert list(reported) == list(metric_values(expected))
    assert metrics.keys() == expected.keys()
    for name, figure in metric_values(expected).items():
        np.testing.assert_allclose(reported[name], figure, 1e-12, err_msg=name)


@pytest.mark.parametrize("dim", [0, 1])
def test_pairs_with_a_label_for_each(dim: int):
    layers = [dense(name, "data", 8).replace(partition_dim=dim) for name in ("a", "b")]
    net = build(*layers, layer("loss", "kContrastiveLoss", "a", "b", "data"), shape=(6,), rows=6)
    values, batches = initial(net), batches_of(net, STEPS, 2)
    assert_equal_runs(run_partitioned(partition(net, 3), values, batches), run_whole(net, values, batches), 1e-12)


def test_gradients_of_gathered_activations_are_those_of_the_whole_batch():
    layers = [dense("a", "data", 40), layer("tanh", "kSTanh", "a"), dense("b", "tanh", 50)]
    net = build(*layers, layer("loss", "kSoftmaxLoss", "b", "data"), shape=(60,), rows=6)
    cut = partition(net, 3, gather=True)
    assert [part.name for part in cut.parts.values() if part.gathered] == list(net.params)
    assert_equal_runs(*both(net, cut), 1e-12)


@pytest.mark.skipif("DSINGA_SINGA_EXAMPLES" not in os.environ, reason="needs SINGA's examples in DSINGA_SINGA_EXAMPLES")
def test_singas_hybrid_example_unmodified():
    job = load(Path(os.environ["DSINGA_SINGA_EXAMPLES"]) / "cifar10/hybrid.conf")
    net = create_net(job.neuralnet, Phase.kTrain, {"data": RecordInfo((3, 32, 32), 100, mean=np.float32(0.1))})
    cut = partition(net, 2)
    assert [name for name, way in cut.cuts.items() if way.dim == 1] == ["ip1"]
    assert_equal_runs(*both(net, cut, steps=3), 1e-12)


def test_a_deadlock_of_workers_is_detected():
    net = net_of("convnet", "hybrid", 2)
    cut = partition(net, 2)
    turned = replace(cut, locals=tuple(receiving_first(local) for local in cut.locals))
    refused(lambda: both(net, turned, steps=1), "worker 0 waits for", "worker 1 waits", error=Deadlock)


@pytest.mark.parametrize(("at_once", "in_memory"), [(1, 3), (2, 3), (3, None), (1, 1), (1, 2), (3, 2)])
def test_workers_take_turns(at_once, in_memory):
    cut, order, computing, most = partition(net_of("convnet", "rows", 3), 3), [], [], []
    begun, in_turns = [], in_memory in (1, 2)

    def compute(worker: int, ctx: Context) -> float:
        begun.append(worker)
        assert max(begun) - min(begun) < (in_memory or 3)
        for turn in range(3):
            computing.append(worker)
            most.append(len(computing))
            order.append((turn, worker))
            computing.remove(worker)
            ctx.peers.take_turns()
        begun.remove(worker)
        return 3.0 if in_turns else float(ctx.all_reduce("sum", np.float32(worker)))

    assert run_in_threads(cut, kernels({}), compute, at_once=at_once, in_memory=in_memory) == [3.0, 3.0, 3.0]
    assert max(most) <= at_once
    if at_once == 1:
        by_worker = sorted(order, key=lambda each: each[1])
        assert order == {1: by_worker, 3: sorted(order)}.get(in_memory, order)


def test_workers_that_begin_after_others_cannot_be_awaited():
    cut = partition(net_of("convnet", "rows", 3), 3)
    words = "'own sum'.*worker 2 begins after them.*leave micro_batches out"
    refused(
        lambda: run_in_threads(cut, kernels({}), lambda k, ctx: ctx.all_reduce("own sum", np.ones(1)), in_memory=2),
        words, error=Deadlock,
    )  # fmt: skip


def test_a_worker_that_fails_ends_the_others():
    def compute(worker: int, ctx: Context) -> None:
        if worker == 1:
            raise ValueError("no luck")
        ctx.all_reduce("sum", np.float32(worker))

    cut = partition(net_of("convnet", "rows", 3), 3)
    refused(lambda: run_in_threads(cut, kernels({}), compute, at_once=1), "no luck", error=ValueError)


def receiving_first(net: NeuralNet) -> NeuralNet:
    """Return the net with its receiving bridges moved to the front, which causes a deadlock."""
    order = sorted(range(len(net.nodes)), key=lambda position: not isinstance(net.nodes[position].layer, BridgeDst))
    moved = {old: new for new, old in enumerate(order)}
    turned = [net.nodes[k]._replace(sources=tuple(moved[source] for source in net.nodes[k].sources)) for k in order]
    return NeuralNet(tuple(turned), net.params, net.phase)
