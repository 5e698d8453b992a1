"""Blocks: the same bits on any number of workers, in every face, after a resume and a loss."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.cluster import connect
from dsinga.cluster.on_workers.worker_actor import WORKERS
from dsinga.estimators import Classifier
from dsinga.job import loads
from dsinga.nn import LocalNet
from dsinga.ops.factored_gradient import FactoredGradient
from tests.support.block_nets import BATCH, NETS, TIMES, adam, bits, fitted
from tests.support.refusals import refused_with
from tests.support.small_job import assert_same


@pytest.fixture
def client(threads: Client) -> Client:
    """Three Dask workers of this process."""
    return threads


@pytest.mark.parametrize("name", NETS)
def test_any_number_of_workers_gives_the_same_bits(name, client):
    alone, turns = fitted(name, blocks=5), {} if name == "resnet" else {"micro_batches": 2}
    assert bits(fitted(name, blocks=5, client=client)) == bits(alone)
    assert bits(fitted(name, blocks=5, client=client, workers=2, **turns)) == bits(alone)
    for count in (2, 5) if turns else ():
        assert bits(fitted(name, blocks=5, micro_batches=count)) == bits(alone)
    whole = fitted(name)  # the batch, up to rounding
    for param, array in alone.params.items():
        np.testing.assert_allclose(array, whole.params[param], atol=1e-3)


def test_a_thread_computes_its_blocks_as_one_worker(client):
    seen: set[tuple[int, ...]] = set()

    def look(step, metrics):
        seen.add(tuple(sorted(key.worker for key in WORKERS)))

    fitted("mlp", blocks=4, client=client, workers=2, callbacks=[look])
    assert seen == {(0, 2)}


OPTIONS = {"precision": "kBF16"}, {"skip_bad_batches": True}, {"cluster": nn.Cluster(servers=2)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["convnet", "resnet"])
def test_options_keep_the_bits(name, options, client):
    alone = fitted(name, blocks=4, micro_batches=1 if name == "resnet" else 3, **options | {"cluster": None})
    assert bits(fitted(name, blocks=4, workers=3, client=client, **options)) == bits(alone)


def test_gradients_of_large_weights_are_added_by_parts(client, monkeypatch):
    x = np.random.default_rng(0).normal(size=(31, 1030)).astype(np.float32)
    sums, plus = list[int](), FactoredGradient.plus
    monkeypatch.setattr(FactoredGradient, "plus", lambda *terms: sums.append(1) or plus(*terms))

    def trained(**options: Any) -> nn.Model:
        model = nn.Sequential([nn.Input((1030,)), nn.Dense(1024, activation="tanh"), nn.Dense(3)])
        model.compile(adam(), "mse")
        model.fit(x, x[:, :3], batch_size=31, train_steps=3, blocks=3, seed=1, progress=False, **options)
        return model

    alone = trained()
    assert len(sums) == 2 * 3
    assert bits(trained(client=client, workers=2)) == bits(alone)


def test_task_graphs_and_sites_have_blocks(client):
    model, data, _ = NETS["convnet"]()
    fields = {"batch_size": BATCH, "train_steps": 4, "blocks": 2, "seed": 1}
    model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy")
    alone = dsinga.train(model.job(*data, **fields), progress=False)
    graphs = dsinga.train(model.job(*data, **fields), client, grain="graph", progress=False)
    assert_same(graphs.params, alone.params)
    job = model.job(*data, **fields, cluster=nn.Cluster(sites=2, sync_freq=2))
    with connect(workers=4) as four, connect(workers=2) as two:
        assert_same(*(dsinga.train(job, each, progress=False).params for each in (four, two)))


def rows_of(workspace: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (workspace / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def test_a_run_goes_on_with_another_number_of_workers(client, tmp_path):
    options = {"blocks": 4, "epochs": None, "validation_data": None, "disp_freq": 1}
    unbroken = fitted("resnet", train_steps=6, workspace=tmp_path / "unbroken", **options)
    fitted("resnet", train_steps=3, workspace=tmp_path / "run", **options)
    resumed = fitted("resnet", train_steps=6, workspace=tmp_path / "run", resume=True, client=client, **options)
    assert bits(resumed)[:2] == bits(unbroken)[:2]
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "unbroken")
    options |= {"train_steps": 9, "workspace": tmp_path / "run", "resume": True, "blocks": 2}
    refused_with(lambda: fitted("resnet", **options), "blocks: 4", "resume with")


def test_a_job_file_and_an_estimator_have_blocks(client):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 5)).astype(np.float32), random.integers(3, size=60)
    settings = {"blocks": 4, "random_state": 0, "epochs": 3, "batchsize": 16, "warm_start": True}
    here, there = (Classifier(**settings).fit(x, y, client=each).fit(x, y, client=each) for each in (None, client))
    assert_same(here.params_, there.params_)
    model = nn.Sequential([nn.Input((5,)), nn.Dense(3)])
    model.compile("adam", "sparse_categorical_crossentropy")
    text = dsinga.job.to_text(model.job(batch_size=20, train_steps=4, blocks=4))
    assert "blocks: 4" in text
    text = text.replace("batchsize: 20", "batchsize: [9, 3, 7, 1]")
    results = [dsinga.train(loads(text), each, data=(x, y), progress=False) for each in (None, client)]
    assert_same(*(result.params for result in results))


@pytest.mark.parametrize("sizes", [[BATCH], [7, 3, 5, 1]], ids=str)
def test_an_own_loop_has_the_bits_of_train(sizes):
    model, (x, y), _ = NETS["convnet"]()
    model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy")
    job = model.job(x, y, batch_size=BATCH, train_steps=3, blocks=4, micro_batches=2, seed=1)
    store = job.neuralnet.layer[0].store_conf
    store.shuffle, store.batchsize = False, sizes
    net = LocalNet(job, x, y)
    params, updater = net.initial_params(), net.updater()
    for step in range(3):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        updater.step(params, net.backward(params, x[rows], y[rows], step=step).gradients)
    assert_same(params, dsinga.train(job, progress=False).params)


def test_find_learning_rate_and_search_have_blocks(client):
    job = NETS["mlp"]()[0].job(*NETS["mlp"]()[1], batch_size=BATCH, blocks=4, train_steps=4)
    found = [dsinga.find_learning_rate(job, client=each, steps=10, progress=False) for each in (None, client)]
    assert found[0].losses == found[1].losses


CUT = {
    "Muon": (nn.Muon(0.01), "kMuon updates whole params, but 'dense_weight' is cut by features"),
    "clip_norm": (nn.SGD(0.01, clip_norm=1.0), "with blocks, clip_norm is for whole params, but 'dense_"),
}


@pytest.mark.parametrize("case", CUT)
def test_an_updater_of_whole_params_is_refused_everywhere(case, client):
    optimizer, text = CUT[case]
    for each in (None, client):
        model = nn.Sequential([nn.Dense(6, partition_dim=1), nn.Dense(2)])
        model.compile(optimizer, "mse")
        refused_with(lambda m=model, c=each: m.fit(np.ones((8, 3)), np.ones((8, 2)), blocks=2, client=c), text)


REFUSED = {
    "more workers than blocks": ({"blocks": 2, "workers": 3}, "3 workers cannot share 2 blocks"),
    "more turns than blocks": ({"blocks": 2, "micro_batches": 4}, "use at most 2 micro_batches"),
    "more blocks than rows": ({"blocks": 17}, "at most 16 blocks"),
    "TF32 on a CPU": ({"blocks": 2, "precision": "tf32"}, "precision kTF32 is for GPUs"),
    "asynchronous": ({"blocks": 2, "cluster": nn.Cluster(groups=2)}, "2 asynchronous worker groups update params in"),
    "a rest": ({"blocks": 2, "cluster": nn.Cluster(compression="kTopK")}, "compression: kTopK keeps a rest in each"),
}


def test_an_own_loop_has_no_other_number_of_workers_than_blocks():
    model, data, _ = NETS["convnet"]()
    job = model.job(*data, batch_size=BATCH, train_steps=1, blocks=4)
    refused_with(
        lambda: LocalNet(job, *data, workers=2), "for the job's 4 blocks, not for 2 workers", "leave workers out"
    )


@pytest.mark.parametrize("case", REFUSED)
def test_blocks_that_do_not_fit_are_refused(case):
    options, text = REFUSED[case]
    refused_with(lambda: fitted("mlp", **options), text)


NEED_ALL = {
    "takes its statistics over the whole batch": (
        lambda: nn.BatchNormalization(name="first"),
        "or set synchronized: false",
    ),
    "is not cut by rows": (lambda: nn.Dense(8, partition_dim=1, name="first"), "or give it partition_dim: 0"),
    "gathers the rows of all blocks": (lambda: nn.Dense(64, name="first"), "or fullc_gather"),
}


@pytest.mark.parametrize("why", NEED_ALL)
def test_a_layer_that_needs_all_blocks_cannot_take_turns(why, client, tmp_path):
    make, remedy = NEED_ALL[why]
    model = nn.Sequential([nn.Input((64,)), make(), nn.Dense(4)])
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = np.zeros((BATCH, 64), np.float32), np.zeros(BATCH, np.int64)
    cluster = nn.Cluster(fullc_gather=True) if "gathers" in why else None
    job = model.job(x, y, batch_size=BATCH, train_steps=1, blocks=4, micro_batches=2, cluster=cluster)
    net = LocalNet(job, x, y)
    calls = [
        lambda: net.backward(net.initial_params(), x, y),
        *(lambda each=each: dsinga.train(job, each, workspace=tmp_path, progress=False) for each in (client, None)),
    ]
    for call in calls[: 2 if cluster else 3]:
        refused_with(call, f"layer 'first': {why}", "leave micro_batches out", remedy)
    assert not [*tmp_path.iterdir()]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_lost_and_new_processes_keep_the_bits(name):
    options = {"blocks": 8, "epochs": None, "train_steps": 200, "validation_data": None, "disp_freq": 50}
    alone = fitted(name, **options)
    for workers in (1, 2, 3, 5, 8):
        with connect(workers=workers) as threads:
            assert bits(fitted(name, client=threads, **options)) == bits(alone)
    with connect(workers=3, separate_processes=True) as client:
        pids = [*client.run(os.getpid).values()]

        def disturb(step: int, _: Any) -> None:
            if step == 50:
                os.kill(pids[0], signal.SIGKILL)
            if step == 100:
                client.cluster.scale(5)

        disturbed = fitted(name, callbacks=[disturb], client=client, **options)
    assert any(row["phase"] == "recovery" for row in disturbed.result.history)
    assert bits(disturbed)[:2] == bits(alone)[:2]
