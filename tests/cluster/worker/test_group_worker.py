"""However a net is cut over the workers of a group, and however they exchange, it trains to the params of one."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from dsinga import RunError, cluster
from dsinga.api import Result, roots, train
from dsinga.base.registry import register
from dsinga.cluster import connect
from dsinga.cluster.placing.prepare import prepare_run
from dsinga.cutting.bridges import BridgeSrc
from dsinga.job import AlgConf, Compression, Job, Phase, PullTime, UpdatePlace, loads
from dsinga.loop.initial_state import RunOptions
from dsinga.training import bp
from tests.support.observers import Silent
from tests.support.small_job import JOB, assert_close, assert_same, place_layers, with_topology, without_restarts

STEPS = 20
BELOW_LOSS = ("conv", "relu", "norm", "pool", "drop", "ip")

# Layer to partition_dim, or to "at 1" for location 1.
STRATEGIES: dict[str, dict[str, int | str]] = {
    "batch": {},
    "feature": dict.fromkeys(BELOW_LOSS, 1),
    "none": dict.fromkeys(("data", *BELOW_LOSS, "loss"), -1),
    "by layer": {"conv": "at 0", "relu": "at 0", "ip": "at 1", "loss": "at 1"},
    "hybrid": {"ip": 1},
    "mixture": {"conv": 1, "norm": "at 1", "ip": 1, "loss": -1},
}


def small(stores: Path, strategy: str = "hybrid", workers: int = 1, servers: int = 1, **cluster: Any) -> Job:
    """Return the small job cut by a strategy, with tests during training."""
    job = loads(JOB, str(stores / "small.conf")).replace(train_steps=STEPS, test_freq=10, test_steps=2)
    place_layers(job, STRATEGIES[strategy])
    job = with_topology(job, workers, servers)
    assert job.cluster is not None
    return job.replace(cluster=job.cluster.replace(**cluster))


@pytest.fixture(scope="module")
def single(stores: Path, threads: Client) -> Result:
    """The small job trained by one worker."""
    return train(small(stores, "batch"), threads, progress=False)


@pytest.mark.parametrize(
    ("strategy", "workers", "servers", "client"),
    [
        *((strategy, 2, 1, "processes") for strategy in ("by layer", "hybrid", "mixture")),
        *((strategy, 3, 2, "threads") for strategy in ("batch", "feature", "none", "mixture")),
    ],
    indirect=["client"],
)
def test_a_cut_net_trains_and_tests_as_an_uncut_one(
    stores: Path, client: Client, single: Result, strategy: str, workers: int, servers: int
) -> None:
    result = train(small(stores, strategy, workers, servers), client, progress=False)
    assert_close(result.params, single.params, 1e-5)
    for phase in ("train", "test"):
        actual, expected = result.history.phase(phase), single.history.phase(phase)
        for metric in ("loss", "accuracy"):
            np.testing.assert_allclose(actual[:, metric], expected[:, metric], rtol=1e-5)


def test_a_run_resumes_with_another_cut(stores: Path, threads: Client, single: Result, tmp_path: Path) -> None:
    """Checkpoints have whole params, not their parts."""
    train(small(stores, "feature", 3).replace(train_steps=10), threads, workspace=tmp_path, progress=False)
    resumed = train(small(stores, "hybrid", 2, 2), threads, workspace=tmp_path, resume=True, progress=False)
    assert_close(resumed.params, single.params, 1e-5)


@pytest.mark.parametrize("update", [pytest.param(UpdatePlace.kServer, marks=pytest.mark.ci), UpdatePlace.kWorker])
def test_a_run_that_rounds_its_gradients_resumes_with_the_same_bits(
    stores: Path, processes: Client, tmp_path: Path, update: UpdatePlace
) -> None:
    job = small(stores, "batch", 2, 2, compression=Compression.kBF16, update=update)
    unbroken = train(job, processes, progress=False)
    train(job.replace(train_steps=10), processes, workspace=tmp_path, progress=False)
    resumed = train(job, processes, workspace=tmp_path, resume=True, progress=False)
    assert_same(resumed.params, unbroken.params)


@pytest.fixture(scope="module")
def expected(stores: Path, threads: Client) -> Result:
    """The small job, hybrid on two workers with two servers, with the default options of the exchange."""
    return train(small(stores, "hybrid", 2, 2), threads, progress=False)


class TestExchange:
    """The options of ClusterConf give the same bits, except for compression."""

    @pytest.mark.parametrize(
        "options",
        [{"pull": PullTime.kDeferred}, {"update": UpdatePlace.kWorker}, {"fullc_gather": True}],
        ids=["deferred pull", "update on the worker", "nothing to gather"],
    )
    def test_options_of_the_exchange_change_nothing(
        self, stores: Path, processes: Client, expected: Result, options: dict[str, Any]
    ) -> None:
        assert_same(train(small(stores, "hybrid", 2, 2, **options), processes, progress=False).params, expected.params)

    def test_without_overlap_nothing_changes(self, stores: Path, processes: Client, expected: Result) -> None:
        with dask.config.set({"dsinga.overlap": False}):
            with prepare_run(small(stores, "hybrid", 2, 2), processes, [str(stores)]) as prepared:
                assert not prepared.config.options.overlap
            assert_same(train(small(stores, "hybrid", 2, 2), processes, progress=False).params, expected.params)

    @pytest.mark.ci
    @pytest.mark.parametrize(
        "options",
        [
            {"compression": Compression.kOneBit},
            {"compression": Compression.kTopK, "topk_share": 0.1},
            {"compression": Compression.kBF16, "update": UpdatePlace.kWorker},
        ],
        ids=["signs", "largest", "bfloat16 both ways"],
    )
    def test_threads_and_processes_compress_to_the_same_bits(
        self, stores: Path, threads: Client, processes: Client, options: dict[str, Any]
    ) -> None:
        job = small(stores, "batch", 2, 2, **options).replace(train_steps=40)
        result = train(job, threads, progress=False)
        assert_same(result.params, train(job, processes, progress=False).params)
        losses = result.history.phase("train")[:, "loss"]
        assert losses[-1] < 0.5 * losses[0]


def wide(stores: Path, workers: int, gather: bool) -> Job:
    """Return the small job with a fully connected layer whose weight is larger than its activations, cut by rows."""
    job = small(stores, "batch", workers, workers, fullc_gather=gather).replace(train_steps=8, test_freq=4)
    layers = """neuralnet {
      layer { name: "fc" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 800 } }
      layer { name: "sharp" type: kReLU srclayers: "fc" }
    }"""
    position = [layer.name for layer in job.neuralnet.layer].index("ip")
    job.neuralnet.layer[position:position] = loads(layers).neuralnet.layer
    job.neuralnet.layer[position + 2].srclayers = ["sharp"]
    return job


@pytest.mark.parametrize("client", ["threads", pytest.param("processes", marks=pytest.mark.ci)], indirect=True)
def test_gathered_activations_train_as_gradients_do(stores: Path, client: Client) -> None:
    with prepare_run(wide(stores, 2, gather=True), client, [str(stores)]) as prepared:
        assert {name for name, part in prepared.config.parts.items() if part.gathered} == {"fc_weight", "fc_bias"}
    result = train(wide(stores, 2, gather=True), client, progress=False)
    assert_close(result.params, train(wide(stores, 1, gather=False), client, progress=False).params, 1e-5)


def test_a_part_with_a_sole_user_stays_with_its_server(stores: Path, processes: Client) -> None:
    with prepare_run(small(stores, "hybrid", 3, 3), processes, [str(stores)]) as prepared:
        pass
    homes = {slice_.param: prepared.placement.servers[0][slice_.server] for slice_ in prepared.config.slices}
    for part in range(3):
        assert prepared.config.parts[f"w2@{part}"].users == (part,)
        assert homes[f"w2@{part}"] == prepared.placement.workers[0][part]


def test_bytes_are_reported_for_every_step(stores: Path, client: Client) -> None:
    """Each worker sends its rows of ``drop`` and its labels to the other, which sends gradients back."""
    with prepare_run(small(stores, "hybrid", 2, 1), client, [str(stores)]) as prepared:
        pass
    sources = [node.layer for node in prepared.config.nets[Phase.kTrain].nodes if isinstance(node.layer, BridgeSrc)]
    assert sources
    outcome = cluster.train(small(stores, "hybrid", 2, 1), client, Silent(), RunOptions(roots=[str(stores)]))
    inproc = all(address.startswith("inproc") for address in prepared.placement.addresses)
    for row in outcome.timings[-5:]:
        assert (row["within"] > 50_000) if inproc else (row["crossing"] > 50_000)
        assert (row["crossing"] == 0) if inproc else (row["within"] > 0)


class KillInBridge(Silent):
    """An observer that kills a process a moment after a number of steps, in the middle of an iteration."""

    def __init__(self, pid: int, step: int):
        self._pid, self._step = pid, step
        self.killed = False

    def progress(self, row: dict[str, Any]) -> None:
        if row["step"] >= self._step and not self.killed:
            self.killed = True
            threading.Timer(0.05, os.kill, [self._pid, signal.SIGKILL]).start()


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize("strategy", ["hybrid", "by layer"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_between_bridges_ends_the_run(stores: Path, strategy: str, victim: int) -> None:
    job = without_restarts(small(stores, strategy, 2)).replace(train_steps=1_000_000, test_freq=0)
    with connect(workers=2, separate_processes=True) as client:
        address = list(cluster.available_workers(client))[victim]
        observer = KillInBridge(client.run(os.getpid)[address], 20)
        with pytest.raises(RunError, match="was lost") as raised:
            cluster.train(job, client, observer, RunOptions(roots=roots(job, None)))
        assert address in str(raised.value)
        assert observer.killed  # calls would wait for five minutes, longer than a test may take


def test_a_fault_of_one_worker_ends_those_that_wait_for_its_arrays(stores: Path, client: Client) -> None:
    @register("algorithm", "FailsBetweenBridges")
    def fails(net, values, records, ctx, push):
        if ctx.step == 5 and ctx.rows.start > 0:
            raise ZeroDivisionError("a fault of the second partition")
        return bp(net, values, records, ctx, push)

    job = small(stores, "hybrid", 2).replace(train_one_batch=AlgConf(user_alg="FailsBetweenBridges"))
    with pytest.raises(ZeroDivisionError, match="a fault of the second partition"):
        train(job, client, progress=False)  # a bridge would wait for five minutes, longer than a test may take


def test_a_wait_at_a_bridge_ends_and_says_what_it_waited_for(stores: Path, threads: Client) -> None:
    @register("algorithm", "SendsNothing")
    def sends_nothing(net, values, records, ctx, push):
        return {} if ctx.rows.start > 0 else bp(net, values, records, ctx, push)

    job = small(stores, "by layer", 2).replace(train_one_batch=AlgConf(user_alg="SendsNothing"))
    with (
        dask.config.set({"dsinga.timeout": "1s"}),
        pytest.raises(RunError, match=r"waited 1 s for '.*data.*' in step 0"),
    ):
        train(job, threads, progress=False)
