"""Workers of a group: how they exchange, what they wait for, and how a run goes on that was cut otherwise."""

from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client

from dsinga import RunError
from dsinga.api import train
from dsinga.base.registry import register
from dsinga.cluster.placing.prepare import prepare_run
from dsinga.job import AlgConf, Compression, Job, loads
from dsinga.training import bp
from tests.support.small_job import JOB, assert_close, assert_same, place_layers, with_topology

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


def test_a_run_resumes_with_another_cut(stores: Path, threads: Client, tmp_path: Path) -> None:
    """Checkpoints have whole params, not their parts."""
    train(small(stores, "feature", 3).replace(train_steps=10), threads, workspace=tmp_path, progress=False)
    resumed = train(small(stores, "hybrid", 2, 2), threads, workspace=tmp_path, resume=True, progress=False)
    assert_close(resumed.params, train(small(stores, "batch"), progress=False).params, 1e-5)


def test_gradients_are_exchanged_as_the_settings_say(stores: Path, processes: Client) -> None:
    job = small(stores, "hybrid", 2, 2, compression=Compression.kOneBit, pull="kDeferred")
    with dask.config.set({"dsinga.overlap": False}), prepare_run(job, processes, [str(stores)]) as prepared:
        options = prepared.config.options
    assert (options.compression, options.pull.name, options.overlap) == (Compression.kOneBit, "kDeferred", False)


@pytest.mark.ci
@pytest.mark.parametrize("options", [{"compression": "kOneBit"}, {"compression": "kTopK", "topk_share": 0.1}])
def test_threads_and_processes_compress_to_the_same_bits(
    stores: Path, threads: Client, processes: Client, options: dict[str, Any]
) -> None:
    job = small(stores, "batch", 2, 2, **options).replace(train_steps=40)
    result = train(job, threads, progress=False)
    assert_same(result.params, train(job, processes, progress=False).params)
    losses = result.history.phase("train")[:, "loss"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_part_with_a_sole_user_stays_with_its_server(stores: Path, processes: Client) -> None:
    with prepare_run(small(stores, "hybrid", 3, 3), processes, [str(stores)]) as prepared:
        pass
    homes = {slice_.param: prepared.placement.servers[0][slice_.server] for slice_ in prepared.config.slices}
    for part in range(3):
        assert prepared.config.parts[f"w2@{part}"].users == (part,)
        assert homes[f"w2@{part}"] == prepared.placement.workers[0][part]


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
