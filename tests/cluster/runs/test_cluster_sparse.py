"""Sparse gradients of embedding tables: the same bits by every transport, and only their rows are sent and updated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import cluster
from dsinga.api import roots, train
from dsinga.base.registry import register
from dsinga.cluster.graph_grain import find_grain
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job, loads
from dsinga.layers.dense.embedding import Embedding
from dsinga.loop.initial_state import RunOptions
from tests.support.observers import Silent, train_observed
from tests.support.small_job import WORDS, assert_close, assert_same

# Words 0 to 29 occur; the table has 50 rows, of which no step looks up more than 24.
CODES, ROWS, STEPS = 30, 50, 8
JOB = """
name: "words"
train_steps: 8
disp_freq: 1
updater { type: kSGD momentum: 0.9 weight_decay: 0.01 learning_rate { type: kFixed base_lr: 0.1 } }
""" + WORDS.replace("STORE", 'path: "words.zarr" batchsize: 6 shape: 4').replace("num_output: 10", "num_output: 5")


@register("layer", "DenseGradient")
class DenseGradient(Embedding):
    """An embedding whose gradient is dense."""

    def compute_gradient(self, *arguments):
        for_sources, (weight,) = super().compute_gradient(*arguments)
        return for_sources, (weight.dense(),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("words"), np.random.default_rng(3)
    write_store(folder / "words.zarr", [(rng.integers(0, CODES, (60, 4)).astype(np.uint8), rng.integers(0, 5, 60))])
    return folder


@pytest.fixture
def words(folder: Path) -> Job:
    return loads(JOB, str(folder / "words.conf"))


def on(job: Job, workers: int, servers: int = 1, **more: Any) -> Job:
    return job.replace(cluster=ClusterConf(nworkers_per_group=workers, nservers_per_group=servers, **more))


def params(job: Job, client: Client, **options: Any) -> dict[str, np.ndarray]:
    return train(job, client, progress=False, **options).params


def dense(job: Job) -> Job:
    """Return the job with dense gradients."""
    (embed,) = [layer for layer in job.neuralnet.layer if layer.name == "embed"]
    embed.type, embed.user_type = embed.type.__class__["kUserLayer"], "DenseGradient"
    return job


TABLE = {"match": "table", "base_lr": 0.4, "momentum": 0, "weight_decay": 0, "clip_low": -0.02, "clip_high": 0.03}


class TestParamSettings:
    """Settings for the table hold for its rows, and leave the rest of the net alone."""

    @pytest.mark.parametrize("more", [{}, {"slicing": "kBlock"}, {"update": "kWorker"}], ids=str)
    def test_the_bits_are_those_of_dense_gradients(self, words: Job, threads: Client, more: dict[str, str]) -> None:
        words.updater.param_settings = [TABLE]
        found = params(on(words, 3, 2, **more), threads)
        assert_same(found, params(on(dense(words), 3, 2, **more), threads))
        assert_close(found, params(on(words, 1), threads), 1e-5)


@pytest.fixture(scope="module")
def single(folder: Path, threads: Client) -> dict[str, np.ndarray]:
    return params(on(loads(JOB, str(folder / "words.conf")), 1), threads)


@pytest.fixture(scope="module")
def expected(folder: Path, threads: Client) -> dict[str, np.ndarray]:
    """The params of three workers and two servers in one process."""
    return params(on(loads(JOB, str(folder / "words.conf")), 3, 2), threads)


class TestMomentum:
    """Momentum and weight decay change the rows that are looked up."""

    @pytest.mark.parametrize("clip_norm", [0.0, 0.02])
    def test_workers_change_nothing(self, words: Job, threads: Client, single, clip_norm: float) -> None:
        words.updater.clip_norm, words.blocks = clip_norm, 3
        one, many = params(on(words, 1), threads), params(on(words, 3, 2), threads)
        assert_same(many, one)
        assert (abs(one["table"] - single["table"]).max() > 1e-3) == bool(clip_norm)

    @pytest.mark.parametrize(
        "more",
        [
            {},
            pytest.param({"pull": "kDeferred"}, marks=pytest.mark.ci),
            pytest.param({"update": "kWorker"}, marks=pytest.mark.ci),
            {"update": "kWorker", "pull": "kDeferred"},
        ],
        ids=str,
    )
    def test_every_transport_gives_the_same_bits(self, words: Job, processes: Client, expected, more) -> None:
        assert_same(params(on(words, 3, 2, **more), processes), expected)

    def test_both_grains_give_the_same_bits(self, words: Job, threads: Client, expected) -> None:
        words = on(words, 3, 2)
        found = cluster.train(words, threads, Silent(), RunOptions(roots=roots(words, None)), grain=find_grain("graph"))
        assert_same(found.params, expected)

    def test_compression_leaves_sparse_rows_as_they_are(
        self, words: Job, threads: Client, processes: Client, single
    ) -> None:
        words = on(words, 3, 2, compression="kTopK", topk_share=0.5)
        found = params(words, threads)
        assert_same(params(words, processes), found)
        assert_close({"table": found["table"]}, {"table": single["table"]}, 0.2)

    def test_two_layers_share_a_table(self, words: Job, threads: Client) -> None:
        """One looks words up, the other multiplies by the table: the sum of their gradients is dense."""
        layers = {layer.name: layer for layer in words.neuralnet.layer}
        layers["ip"].innerproduct_conf.num_output = 3
        tied = loads(JOB.replace("num_output: 5", f"num_output: {ROWS}"), "tied").neuralnet.layer[2]
        tied.name, tied.srclayers = "tied", ["ip"]
        tied.param[0].name, tied.param[0].share_from, tied.param[0].init = "again", "table", None
        tied.param[1].name = "b2"
        layers["loss"].srclayers = ["tied", "data"]
        words.neuralnet.layer, words.blocks = [*words.neuralnet.layer[:-1], tied, layers["loss"]], 3
        one, many = params(on(words, 1), threads), params(on(words, 3, 2), threads)
        assert_same(many, one)
        assert (one["table"][CODES:] != 0).all()


@pytest.mark.parametrize(
    ("more", "freq"),
    [
        ({}, 4),
        pytest.param({}, 12, marks=pytest.mark.ci),
        ({"pull": "kDeferred"}, 12),
        pytest.param({"update": "kWorker"}, 4, marks=pytest.mark.ci),
        ({"update": "kWorker"}, 12),
    ],
    ids=str,
)
def test_a_worker_that_only_validates_pulls_the_newest_rows(
    words: Job, threads: Client, more: dict[str, str], freq: int
) -> None:
    """Whether or not servers still know which rows have changed since its last pull."""
    words = on(words.replace(train_steps=12, validate_steps=2, validate_freq=freq), 2, 2, **more)
    expected = train(words, threads, progress=False)
    data, embed, *layers = words.neuralnet.layer
    placed = embed.replace(include=["kTrain"], location=0), embed.replace(include=["kVal"], location=1)
    words.neuralnet.layer = [data, *placed, *layers]
    found = train(words, threads, progress=False)
    assert_close(found.params, expected.params, 1e-5)
    np.testing.assert_array_equal(found.params["table"][CODES:], expected.params["table"][CODES:])
    losses, expected_losses = (result.history.phase("val")[:, "loss"] for result in (found, expected))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)


@pytest.mark.parametrize(
    "more",
    [{"nworker_groups": 2}, {"nworker_groups": 2, "nserver_groups": 2, "sync_freq": 2}],
    ids=["Downpour", "Hogwild"],
)
def test_several_groups_train_rows_too(words: Job, threads: Client, more: dict[str, int]) -> None:
    words.train_steps = 60
    result = train(on(words, 1, 1, **more), threads, progress=False)
    losses = result.history.phase("train")[:, "loss"]
    assert losses[-1] < 0.8 * losses[0]
    first = params(on(words.replace(train_steps=1), 1), threads)["table"]
    np.testing.assert_allclose(result.params["table"][CODES:], first[CODES:], rtol=1e-6)


def test_only_rows_are_sent(words: Job, processes: Client) -> None:
    """A worker sends its rows and gets those of all workers; a row is 3 numbers and its index."""
    words = on(words, 2)
    found = [train_observed(job(), processes, Silent()).timings for job in (words.replace, lambda: dense(words))]
    rows, all_rows = ([timing["crossing"] for timing in timings[2:]] for timings in found)
    others = 2 * 4 * (5 * 12 + 5)
    assert others < max(rows) <= others + (12 + 24) * 16
    assert set(all_rows) == {others + 2 * 4 * 3 * ROWS}
