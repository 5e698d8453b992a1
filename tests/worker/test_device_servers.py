"""Training with servers on the emulated device: slices on the device, graphs in pieces, the bits of called kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsinga.ops
from dsinga.job import ClusterConf, Job, UpdatePlace
from dsinga.ops.processor import Processor
from dsinga.server import Shard, Slice, SliceSpec
from dsinga.server.gradient_accumulator import Push
from dsinga.training import create_updater
from dsinga.worker import captured_exchange
from tests.support import emulated_cupy
from tests.support.device_worker import cudnn, device_groups
from tests.support.small_job import assert_same
from tests.worker.test_captured_iterations import KINDS, SETTINGS, UPDATERS, WARM_UPS, job_of, quick, with_updater

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


def test_a_checkpoint_copies_values_and_states_once_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
):
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


@pytest.mark.parametrize("on_gpu", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_graphs_in_pieces_give_the_bits_of_called_iterations(name: str, on_gpu: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(captured_exchange, "GROUP_BYTES", 1)  # a graph for each layer with params, and each way
    steps = 6
    job = job_of(with_updater("type: kAdam"), cluster=CLUSTERS[name])
    expected = trained(job, on_gpu, steps=steps)
    actual = trained(job, on_gpu, captured=True, steps=steps)
    assert launched() == 3 * 2 * (steps - WARM_UPS)
    assert actual[1] == expected[1]
    assert_same(actual[0], expected[0])
