"""Training with servers on the emulated device: slices on the device, graphs in pieces, the bits of eager kernels."""

import logging
import re
from typing import Any

import numpy as np
import pytest

import dsinga.ops
from dsinga.addons.gpu import captured_exchange
from dsinga.base.errors import Diverged
from dsinga.cluster.server import Shard, Slice, SliceSpec
from dsinga.cluster.server.gradient_accumulator import Push
from dsinga.job import ClusterConf, Job, UpdatePlace
from dsinga.ops import Processor
from dsinga.training import create_updater
from tests.addons.gpu.test_gpu_captured_iterations import (
    DENSE,
    KINDS,
    LINEAR,
    SETTINGS,
    UPDATERS,
    WARM_UPS,
    job_of,
    quick,
    with_updater,
)
from tests.support import emulated_cupy
from tests.support import emulated_graphs as graphs
from tests.support.device_worker import cudnn, device_groups
from tests.support.small_job import assert_same

STEPS = 4
CLUSTERS = {
    "workers": ClusterConf(nworkers_per_group=2, nservers_per_group=2),
    "groups": ClusterConf(nworker_groups=2, nservers_per_group=2),
    "replicas": ClusterConf(nworkers_per_group=2, update=UpdatePlace.kWorker),
}


def trained(
    job: Job, on_gpu: bool, captured: bool = False, steps: int = STEPS
) -> tuple[dict[str, Any], list[Any], int]:
    """Return params with the updater's state, metrics, and the number of copies from the device beside its kernels."""
    emulated_cupy.log.clear()
    with device_groups(job, on_gpu, captured) as groups:
        metrics = groups.train(0, steps)
        streams = [worker._ops.streams.down for workers in groups.groups for worker in workers]
        return groups.params(), metrics, sum(what == "copy" and at in streams for at, what, _ in emulated_cupy.log)


@pytest.mark.parametrize("kind", quick("kAdamW", [*KINDS, *SETTINGS]))
def test_servers_on_the_device_give_the_bits_of_those_in_host_memory(kind: str):
    updater = f"type: kSGD {SETTINGS[kind]}" if kind in SETTINGS else f"type: {kind} {UPDATERS.get(kind, '')}"
    for name in ("workers", "groups"):
        job = job_of(with_updater(updater), cluster=CLUSTERS[name])
        expected, actual = trained(job, on_gpu=False), trained(job, on_gpu=True)
        assert expected[2] == 2 * 2 * STEPS
        assert not actual[2], "gradients were copied to the host"
        assert actual[1] == expected[1]
        assert_same(actual[0], expected[0])


def test_a_checkpoint_copies_values_and_states_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(dsinga.ops._loaded, "cupy", emulated_cupy.load(cudnn()))
    updater = create_updater(job_of(with_updater("type: kAdam")).updater)
    specs = [SliceSpec(Slice(id, name, 0, 5, 0), whole_param=name) for id, name in enumerate("vw")]
    gradients = np.random.default_rng(1).normal(size=(3, 2, 5)).astype(np.float32)

    def shard(start: int, values: dict[int, Any], state: Any = None) -> Shard:
        result = Shard(specs, updater, start=start, gpu=Processor(1, 0))
        result.put(values, state)
        return result

    def push(to: Shard, step: int) -> None:  # by a worker that computes elsewhere
        to.push(Push(0, 0, step, 0), dict(enumerate(gradients[step])))

    first = {id: np.ones(5, np.float32) for id in range(2)}
    unbroken = shard(0, first)
    for step in range(2):
        push(unbroken, step)
    emulated_cupy.log.clear()
    copy = unbroken.snapshot(2, 60.0)
    assert sum(what == "copy" for _, what, _ in emulated_cupy.log) == 2 * (1 + 2)  # a value and two states
    assert not any(what == "kernel" for _, what, _ in emulated_cupy.log)
    resumed = shard(2, copy.values, copy.state)
    for each in (unbroken, resumed):
        push(each, 2)
    (expected, states), (values, more) = unbroken.snapshot(3, 60.0), resumed.snapshot(3, 60.0)
    for id in range(2):
        np.testing.assert_array_equal(values[id], expected[id])
        assert_same(more[id], states[id])
        assert (values[id] != first[id]).all()


def launched() -> int:
    """Return how many graphs were launched since the log was cleared."""
    return sum(what == "graph" for _, what, _ in emulated_cupy.log)


def compare(job: Job, on_gpu: bool = False, steps: int = 6) -> None:
    """Assert that graphs in pieces give the bits of eager iterations, and that there were some."""
    expected = trained(job, on_gpu, steps=steps)
    actual = trained(job, on_gpu, captured=True, steps=steps)
    assert launched() == PIECES * len(actual[1]) // steps * (steps - WARM_UPS)
    assert actual[1] == expected[1]
    assert_same(actual[0], expected[0])


PIECES = 3  # of the net of two layers: before the second one's value, up to its gradient, and the rest


@pytest.fixture
def each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let params be exchanged for each layer alone, however small it is."""
    monkeypatch.setattr(captured_exchange, "GROUP_BYTES", 1)


@pytest.mark.parametrize("on_gpu", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_graphs_in_pieces_give_the_bits_of_called_iterations(name: str, on_gpu: bool, each_layer: None):
    compare(job_of(with_updater("type: kAdam"), cluster=CLUSTERS[name]), on_gpu)


@pytest.mark.parametrize("how", ["compression: kTopK topk_share: 0.5", "pull: kDeferred", "clip_global_norm"])
def test_other_exchanges_in_pieces(how: str, each_layer: None):
    text = f"nworkers_per_group: 2 {'' if how == 'clip_global_norm' else how}"
    norm = ["updater.clip_global_norm=0.05"] if how == "clip_global_norm" else []
    compare(job_of(f"{LINEAR} cluster {{ {text} }}", *norm))


def test_dropout_and_normalisation_of_asynchronous_groups_in_one_piece():
    job = job_of(DENSE, cluster=CLUSTERS["groups"])
    expected, actual = (trained(job, True, captured) for captured in (False, True))
    assert launched() == 2 * (STEPS - WARM_UPS)
    assert actual[1] == expected[1]
    assert_same(actual[0], expected[0])


@pytest.mark.parametrize("name", ["workers", "groups"])
def test_a_checkpoint_changes_no_bit_of_graphs(name: str, each_layer: None):
    job = job_of(with_updater("type: kAdam"), cluster=CLUSTERS[name])
    expected = trained(job, True, True, 6)[0]
    with device_groups(job, True, True) as groups:
        for step in range(6):
            groups.train(step, step + 1)
            at_step = groups.params()
    assert_same(at_step, expected)


def test_copies_begin_between_graphs(each_layer: None):
    with device_groups(
        job_of(LINEAR, cluster=ClusterConf(nserver_groups=1, server_worker_separate=True)), False, True
    ) as groups:
        groups.train(0, 4)
        emulated_cupy.log.clear()
        groups.train(4, 5)
        down = groups.groups[0][0]._ops.streams.down
        events = [
            "graph" if what == "graph" else "download"
            for stream, what, _ in emulated_cupy.log
            if what == "graph" or (stream is down and what == "copy")
        ]
    assert events == ["graph", "graph", "download", "graph", "download"]


def test_a_step_that_is_not_finite_changes_nothing_on_servers(each_layer: None):
    rate = "type: kFixedStep base_lr: 0.1 fixedstep_conf { step: 0 step: 4 step_lr: 0.1 step_lr: 1e30 }"
    job = job_of(re.sub(r"type: kInverse.*\}", rate + " } }", LINEAR), cluster=CLUSTERS["groups"])
    messages, left = [], []
    for captured in (False, True):
        emulated_cupy.log.clear()
        with device_groups(job, True, captured) as groups:
            with pytest.raises(Diverged) as error:
                groups.train(0, 40)
            messages.append(str(error.value))
            left.append(groups.params())
    assert launched() > 2 * PIECES
    assert messages[1] == messages[0]
    assert_same(left[1], left[0])


def fails(*_: Any) -> Any:
    raise RuntimeError("the driver has no graphs")


def test_a_capture_that_fails_is_called_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, each_layer: None
):
    job = job_of(LINEAR, cluster=CLUSTERS["groups"])
    expected = trained(job, False)
    for place in ("begin_capture", "end_capture"):
        caplog.clear()
        with caplog.at_level(logging.INFO, "dsinga"), monkeypatch.context() as patch:
            if place == "end_capture":
                patch.setattr(emulated_cupy.Stream, "end_capture", lambda self: fails(graphs.end_capture()))
            else:
                patch.setattr(emulated_cupy.Stream, place, fails)
            actual = trained(job, False, captured=True)
        assert caplog.text.count("not captured as CUDA graphs: the driver has no graphs") == 2  # a line a worker
        assert not launched()
        assert actual[1] == expected[1]
        assert_same(actual[0], expected[0])


@pytest.mark.parametrize(
    ("text", "fields", "why"),
    [
        (DENSE, {}, "layer 'norm' adds up statistics of workers in host memory"),
        (LINEAR, {"skip_bad_batches": True}, "skip_bad_batches looks at all gradients"),
    ],
)
def test_what_is_called_says_why_once(text: str, fields: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture):
    job = job_of(text, cluster=CLUSTERS["workers"], **fields)
    expected = trained(job, False, steps=3)
    with caplog.at_level(logging.INFO, "dsinga"):
        actual = trained(job, False, True, steps=3)
    assert caplog.text.count(f"training iterations are not captured as CUDA graphs: {why}") == 2  # a line a worker
    assert not launched()
    assert actual[1] == expected[1]
    assert_same(actual[0], expected[0])
