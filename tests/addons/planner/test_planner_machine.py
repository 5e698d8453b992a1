"""The measured model of this machine: layers in a timed net have the times that they took there."""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dsinga.addons.planner import layer_timing, net_timing
from dsinga.addons.planner.layer_timing import run_concurrently, time_layer
from dsinga.addons.planner.machine import MachineModel, describe_work, measure_machine, work_of
from dsinga.addons.planner.net_timing import NetTime, time_net
from dsinga.addons.planner.rate_store import (
    BUSY,
    Figures,
    ProcessorTimes,
    RateStore,
    disturbed,
    rates_file,
    read_processor_times,
)
from dsinga.addons.planner.search import by_features, by_layer, by_rows
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.partitioning import partition
from dsinga.job import NetConf, Phase, UpdaterConf
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.training import create_updater
from tests.support.plain_nets import dense, layer, mlp, net_of, small_convnet
from tests.support.refusals import refused

UPDATER = create_updater(UpdaterConf(type="kSGD"))


class RecordingStore(RateStore):
    """Keeps the figures that it was asked for, by key."""

    def __init__(self) -> None:
        super().__init__()
        self.figures: dict[str, Figures] = {}

    def get(self, key, measure, what=""):
        self.figures[key] = super().get(key, measure, what)
        return self.figures[key]


def measured_model(net: NeuralNet, workers: int, store: RateStore) -> MachineModel:
    return measure_machine(net, UPDATER, get_ops(), 1, workers, store)


def timed(net: NeuralNet) -> NetTime:
    return time_net(net, [], UPDATER, get_ops(), 1, 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_layer_outside_timed_nets_is_scaled_by_the_net_cut_by_rows(workers: int) -> None:
    """The scale is the time of that net over the sum of the times that its layers take alone."""
    net, store = mlp(8, 20, 10, inputs=12), RecordingStore()
    machine = measured_model(net, workers, store)
    work = work_of(mlp(32, 20, 10, inputs=12).stages[1], workers)
    time = machine.time_layer(work)
    net_figures = next(figures for key, figures in store.figures.items() if ": net " in key)
    stages = partition(net, workers, cuts=by_rows(net, workers)).locals[0].stages
    *net_figures, update = net_figures
    alone = {key.partition(": ")[2]: figures for key, figures in store.figures.items()}
    sum_alone = sum(sum(alone[describe_work(work_of(stage))][:2]) for stage in stages)
    scale = (sum(net_figures[0::4]) + sum(net_figures[1::4])) / sum_alone
    seconds_alone = alone[describe_work(work)][:2]
    assert (time.forward, time.backward) == pytest.approx([scale * seconds for seconds in seconds_alone])
    assert machine.rates.update == update
    assert all(rate > 0 for rate in machine.rates)


def test_a_layer_of_a_timed_net_has_its_time_there() -> None:
    net = small_convnet()
    cut = partition(net, 2, cuts=by_features(net, 2))
    store = RecordingStore()
    machine = measured_model(net, 1, store)
    times = machine.time_net(cut, 0)
    by_name = {stage.layer.name: (stage, time) for stage, time in zip(cut.locals[0].fused.stages, times, strict=True)}
    stage, time = by_name["fc3"]
    assert machine.time_layer(work_of(stage)) == time
    assert machine.time_net(cut, 0) == times
    assert sum(": net " in key for key in store.figures) == 2  # the net cut by rows gives the rate of updates


@pytest.mark.skipif(bool(get_ops().lacks_bf16()), reason="the processor has no bfloat16")
def test_rates_of_both_precisions_are_kept_apart() -> None:
    net, store = small_convnet(), RecordingStore()
    for precision in ("float32", "bf16"):
        machine = measure_machine(net, UPDATER, get_ops().for_worker(precision=precision), 1, 1, store)
        conv2 = net.stages[net.position("conv2")]
        machine.time_layer(work_of(mlp(32, 20, 10, inputs=12).stages[1]))
        assert machine.time_layer(work_of(conv2)).forward > 0
    nets = [key for key in store.figures if ": net " in key]
    assert len(nets) == 2
    assert sum(" in bf16," in key for key in store.figures) == sum(" in float32," in key for key in store.figures) > 1


@pytest.mark.parametrize("strategy", [by_rows, by_features, by_layer])
def test_times_the_net_of_each_worker_without_the_others(strategy) -> None:
    """The messages that bridges wait for, labels among them, are made up."""
    net = small_convnet()
    for local in partition(net, 3, cuts=strategy(net, 3)).locals:
        times = timed(local).stages
        for stage, time in zip(local.stages, times, strict=True):
            assert time.forward > 0
            bridge = isinstance(stage.layer, (BridgeSrc, BridgeDst))
            in_parts = stage.rows is not None and stage.rows.stop - stage.rows.start < stage.rows.total
            assert time.sums_forward == int(stage.layer.name == "bn" and in_parts)
            assert bridge or (time.backward > 0) == stage.backward


def test_codes_and_labels_of_steps_cross_bridges() -> None:
    """A bridge hands an embedding valid codes instead of random numbers."""
    net = net_of(
        layer("embedding", "kEmbedding", "data", embedding_conf={"vocab_size": 10, "feature_dim": 4}),
        layer("cell", "kGRU", "embedding", gru_conf={"dim_hidden": 6}),
        dense("out", "cell", 10),
        layer("loss", "kSoftmaxLoss", "out", "data"),
        batch=4,
        shape=(5,),
    )
    for local in partition(net, 2, cuts=by_layer(net, 2)).locals:
        assert all(time.forward > 0 for time in timed(local).stages)


def test_a_table_has_valid_codes_beside_numbers() -> None:
    net = net_of(
        layer("codes", "kIndex", "data", index_conf={"index": "3:5"}),
        layer("categories", "kCategories", "codes", categories_conf={"size": [4, 30]}),
        layer("inputs", "kConcate", "data", "categories", concate_conf={"concate_dim": 1}),
        dense("out", "inputs", 2),
        layer("loss", "kSoftmaxLoss", "out", "data"),
        batch=4,
        shape=(5,),
    )
    assert all(time.forward > 0 for time in timed(net).stages)
    assert time_layer(work_of(net.stages[net.position("categories")]), get_ops(), 1, 1).forward > 0


def test_a_share_of_each_class_is_a_label_that_crosses_bridges() -> None:
    info = RecordInfo((12,), 4, label_shape=(10,), label_dtype=np.dtype(np.float32))  # as those that kMixup makes
    layers = [layer("data", "kRecordInput"), dense("out", "data", 10), layer("loss", "kSoftmaxLoss", "out", "data")]
    net = create_net(NetConf(layer=layers), Phase.kTrain, {"data": info})
    for local in partition(net, 2, cuts=by_layer(net, 2)).locals:
        assert all(time.forward > 0 for time in timed(local).stages)
    assert time_layer(work_of(net.stages[-1]), get_ops(), 1, 1).backward > 0


def test_an_error_of_a_thread_is_raised_and_not_that_of_the_barrier_it_breaks() -> None:
    barrier, numbers = threading.Barrier(3, timeout=60), iter(range(3))

    def wait() -> None:
        if next(numbers) == 2:
            raise ValueError("a fault of one thread")
        barrier.wait()

    refused(lambda: run_concurrently(wait, barrier), "a fault of one thread", error=ValueError)


@pytest.mark.parametrize(("limit", "runs"), [(layer_timing.LIMIT_SECONDS, 6), (0.0, 2)])
def test_a_slow_layer_is_timed_by_fewer_runs(monkeypatch: pytest.MonkeyPatch, limit: float, runs: int) -> None:
    monkeypatch.setattr(layer_timing, "RUNS", 6)
    monkeypatch.setattr(layer_timing, "LIMIT_SECONDS", limit)
    counts = []

    def make_runs() -> list[Callable[[], object]]:
        counts.append([0, 0])
        mine = counts[-1]

        def run(number: int) -> None:
            mine[number] += 1

        return [partial(run, 0), partial(run, 1)]

    assert len(layer_timing.median_seconds(make_runs, 2)) == 2
    assert counts == [[runs, runs], [runs, runs]]


def test_a_slow_net_is_timed_by_fewer_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    iterations = []
    iterate = net_timing.TimedNet.iterate
    monkeypatch.setattr(net_timing.TimedNet, "iterate", lambda net: iterations.append(net) or iterate(net))
    monkeypatch.setattr(net_timing, "MIN_ITERATIONS", 6)
    monkeypatch.setattr(net_timing, "LIMIT_SECONDS", 0.0)
    timed(mlp(8, 20, 10, inputs=12))
    assert len(iterations) == net_timing.WARM_UP + 1


# Measured rates are kept in a file of this machine, unless other work disturbed a measurement.
def must_not_measure() -> Sequence[float]:
    raise AssertionError("measured again")


def test_a_rate_is_measured_once_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "rates.json"
    store = RateStore(path)
    assert store.get("conv", lambda: (1.5, 2.5)) == (1.5, 2.5)
    assert store.get("conv", must_not_measure) == (1.5, 2.5)
    store.save()
    assert RateStore(path).get("conv", must_not_measure) == (1.5, 2.5)
    assert [file.name for file in path.parent.iterdir()] == ["rates.json"]


def test_two_stores_that_measure_at_the_same_time_keep_both_rates(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    first, second = RateStore(path), RateStore(path)
    first.get("a", lambda: (1,))
    second.get("b", lambda: (2,))
    first.save()
    second.save()
    both = RateStore(path)
    assert both.get("a", must_not_measure) == (1.0,)
    assert both.get("b", must_not_measure) == (2.0,)


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"versions": {}, "figures": {"a": [1]}}', '{"versions": null}', "\udcff"]
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(content, errors="surrogateescape")
    store = RateStore(path)
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()
    assert RateStore(path).get("a", must_not_measure) == (3.0,)


def test_a_folder_that_cannot_be_made_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = RateStore(tmp_path / "file" / "rates.json")
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()


def test_without_a_path_nothing_is_written() -> None:
    store = RateStore()
    assert store.get("a", lambda: (3,)) == (3,)
    store.save()


@pytest.mark.skipif(sys.platform != "linux", reason="the convention of Linux")
def test_the_file_is_in_the_cache_folder_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert rates_file().parent == tmp_path / "dsinga"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert rates_file().parent == tmp_path / ".cache" / "dsinga"
    assert rates_file(tmp_path / "own").parent == tmp_path / "own"


def attempts_of(busy: Sequence[bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[float, ...]]:
    """Return figures 1, 2, ... of attempts to measure, during which the machine is busy or not, in this order."""
    watched = iter(busy)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.start_watching", lambda: lambda: next(watched))
    return ((float(number),) for number in itertools.count(1))


def test_a_rate_is_measured_again_if_the_machine_was_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True, False], monkeypatch)
    store = RateStore(tmp_path / "rates.json")
    assert store.get("conv", lambda: next(figures)) == (2.0,)
    assert store.warning == ""
    store.save()
    assert RateStore(store.path).get("conv", must_not_measure) == (2.0,)


def test_a_rate_of_a_busy_machine_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True, True, False, False], monkeypatch)
    store = RateStore(tmp_path / "rates.json")
    assert store.get("conv", lambda: next(figures)) == (1.0,)
    assert store.get("conv", must_not_measure) == (1.0,)
    assert store.warning.startswith("the machine was busy with other work during 1 of 1 measurements")
    store.save()
    assert not store.path.exists()
    assert store.get("ip", lambda: next(figures)) == (3.0,)
    store.save()
    again = RateStore(store.path)
    assert again.get("ip", must_not_measure) == (3.0,)
    assert again.get("conv", lambda: (7,)) == (7.0,)


def test_what_is_measured_is_announced_at_once_and_that_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([False, True, True, True, True], monkeypatch)
    sentences: list[str] = []
    store = RateStore(announce=sentences.append)

    def measure() -> Sequence[float]:
        if not store.doubtful:
            assert sentences[-1] == "measuring the layer kReLU, 64x8, in 1 thread, measurement 1"
        return next(figures)

    for key in ("onednn, 1 at once x1: kReLU 64x8 { layer { } }", "a", "b"):
        store.get(key, measure, "the layer kReLU, 64x8, in 1 thread")
    assert sentences[1:] == [BUSY], "once, as soon as it is known"
    monkeypatch.setattr("dsinga.addons.planner.rate_store.ANNOUNCE_SECONDS", 0.0)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.start_watching", lambda: lambda: False)
    store.get("barrier", measure)
    assert sentences[2:] == ["measuring barrier, measurement 4"]


def test_second_attempts_end_where_they_have_taken_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = attempts_of([True] * 5, monkeypatch)
    store = RateStore()
    assert store.get("a", lambda: next(figures)) == (1.0,)
    monkeypatch.setattr("dsinga.addons.planner.rate_store.REPEAT_SECONDS", 0.0)
    assert store.get("b", lambda: next(figures)) == (3.0,)
    assert store.get("c", lambda: next(figures)) == (4.0,)
    assert store.doubtful == {"a", "b", "c"}


START = ProcessorTimes(100.0, 5000.0, 30.0)


@pytest.mark.parametrize(
    ("others", "own", "cores", "expected"),
    [
        (0.0, 1.0, 2, False),
        (0.1, 1.9, 2, False),  # the system's own work
        (1.0, 1.0, 2, True),
        (0.6, 1.4, 2, True),
        (1.0, 1.0, 4, False),  # cores are idle
        (3.0, 1.0, 4, True),
        (0.5, 0.5, 1, True),
    ],
)
def test_other_work_disturbs_where_no_core_is_idle(others: float, own: float, cores: int, expected: bool) -> None:
    end = ProcessorTimes(START.clock + 1, START.everybody + others + own, START.process + own)
    assert disturbed(START, end, cores) is expected


def test_a_tick_in_a_short_time_is_no_other_work() -> None:
    end = ProcessorTimes(START.clock + 0.02, START.everybody + 0.06, START.process + 0.03)
    assert not disturbed(START, end, 2)


def test_nothing_is_noticed_where_the_system_cannot_say() -> None:
    assert not disturbed(None, START, 1)
    assert not disturbed(START, None, 1)


def test_processor_times_grow() -> None:
    first, second = read_processor_times(), read_processor_times()
    if first is None or second is None:
        pytest.skip("the system does not say how its cores are used")
    assert all(early <= late for early, late in zip(first, second, strict=True))
