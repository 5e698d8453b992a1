"""Evaluating and predicting: every record once, in order, whatever the cluster."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dsinga import RunError, UserError, cluster
from dsinga.api import evaluate, predict, predict_with_labels, roots, train
from dsinga.cluster import inference as inference
from dsinga.cluster.dask.run_tasks import RoundLength
from dsinga.cluster.inference import RoundResult
from dsinga.data import RecordStore, open_store, write_store
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, Phase, loads
from dsinga.layers import Context, Records, Rows
from dsinga.ops import get_ops
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import forward, initial_values
from tests.support.block_nets import NETS
from tests.support.cpu_instructions import AVX512
from tests.support.refusals import refused
from tests.support.small_job import linear, with_topology


@pytest.fixture
def params(job: Job, stores: Path) -> dict[str, np.ndarray]:
    return initial_values(CheckedJob(job, roots(job, None)).net(Phase.kTest).params, seed=3)


@pytest.fixture
def whole(job: Job, stores: Path, params: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, tuple[float, float]]]:
    """The feature of ip and the metrics of one forward pass over all 150 test records at once."""
    net = CheckedJob(job, roots(job, None)).net(Phase.kTest)
    store = open_store(str(stores / "test.zarr"))
    ctx = Context(get_ops(), Phase.kTest, Rows(0, 150, 150))
    outputs, metrics = forward(net, params, {"data": Records(*store.read(range(150)))}, ctx, ["ip"])
    return outputs["ip"].feature, metrics


@AVX512
@pytest.mark.parametrize("name", sorted(NETS.keys() - {"mlp", "windows"}))
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_row_does_not_depend_on_the_rows_computed_with_it(name: str, precision: str, threads: Client) -> None:
    model, (x, y), _ = NETS[name]()
    model.predict(x[:1])  # for the shapes
    layer, options = model.output_layers()[0], {"train_steps": 1, "precision": precision}
    alone = np.concatenate([model.features(x[row : row + 1], layer) for row in range(len(x))])
    for size in (1, 2, 9, 16, 47):
        job = model.job(x, y, batch_size=size, **options)
        found = predict(job, model.params, layer, data=x)
        alone = found if precision == "bf16" and size == 1 else alone
        np.testing.assert_array_equal(found, alone)
    np.testing.assert_array_equal(predict(job, model.params, layer, data=x, client=threads), alone)


@pytest.mark.parametrize("layer", ["data", "ip", "loss"])
def test_labels_come_with_the_feature_of_any_layer(job: Job, threads: Client, params, stores: Path, layer: str) -> None:
    batches = list(predict_with_labels(job, params, layer, client=threads))
    expected = open_store(str(stores / "test.zarr")).read_labels(range(150))
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), expected)


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 20, dtype=np.float32), np.arange(60).reshape(20, 3)])
def test_a_store_of_features_keeps_the_type_of_the_labels(tmp_path: Path, threads: Client, labels: np.ndarray) -> None:
    job = linear("batchsize=8")
    job.neuralnet.layer.pop()  # the loss, whose labels are classes
    params = {"w": np.ones((3, 3), np.float32), "b": np.zeros(3, np.float32)}
    data = np.ones((20, 3), np.float32), labels
    write_store(tmp_path / "out.zarr", predict_with_labels(job, params, "ip", client=threads, data=data))
    store = RecordStore(tmp_path / "out.zarr")
    assert store.label_dtype == labels.dtype
    np.testing.assert_array_equal(store.read_labels(range(20)), labels)


def test_batches_of_any_shapes_are_joined_and_split_again() -> None:
    rng = np.random.default_rng(0)
    shapes = [(3, 2), (1, 2), (0, 2), (4, 5), (2, 2)]
    batches = [Records(rng.random(shape), None if shape[1] == 5 else np.arange(shape[0])) for shape in shapes]
    joined = inference.join_batches(batches)
    assert [part.sizes for part in joined] == [[3, 1, 0], [4], [2]]
    result = RoundResult({"ip": joined}, [{"loss": (number, 1.0)} for number in range(5)], [0.0] * 5)
    assert result.nbytes >= sum(batch.data.nbytes for batch in batches)
    for number, (features, metrics) in enumerate(result.batches()):
        assert metrics == {"loss": (number, 1.0)}
        np.testing.assert_array_equal(features["ip"].data, batches[number].data)
        np.testing.assert_array_equal(features["ip"].labels, batches[number].labels)


@pytest.mark.parametrize("most_bytes", [inference.ROUND_BYTES, 1])
def test_rounds_of_any_length_give_the_same_bits(job: Job, threads: Client, params, monkeypatch, most_bytes: int):
    rng = np.random.default_rng(0)
    x, y = rng.random((120, 1, 8, 8), np.float32), rng.integers(0, 10, 120)
    job.neuralnet.layer[1].store_conf.batchsize = [2]
    local = LocalNet(job, x, y, workers=1)
    features = local.predict(params, x, "ip", batchsize=2)
    monkeypatch.setattr(inference, "ROUND_BYTES", most_bytes)
    monkeypatch.setattr(inference, "ROUND_SECONDS", 3600)  # whatever else the machine does meanwhile
    rounds: list[int] = []

    class RecordedLength(RoundLength):
        def learn(self, seconds: Sequence[float]) -> None:
            rounds.append(len(seconds))
            super().learn(seconds)

    monkeypatch.setattr(inference, "RoundLength", RecordedLength)
    np.testing.assert_array_equal(predict(job, params, "ip", client=threads, data=x), features)
    assert sum(rounds) == 60
    assert rounds == [1] * 60 if most_bytes == 1 else len(rounds) < 20
    assert evaluate(job, params, client=threads, data=(x, y)) == local.evaluate(params, x, y, batchsize=2)


def test_mistakes_are_named_with_their_remedies(job: Job, threads: Client, params) -> None:
    refused(lambda: list(predict_with_labels(job, params, "ip1", client=threads)), "no layer 'ip1'.*did you mean 'ip'")
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as local, Client(local) as client:
        batches = predict_with_labels(job, params, "ip", "train", client=client)
        next(batches)
        client.sync(local.scheduler.remove_worker, next(iter(local.scheduler.workers)), stimulus_id="test")
        refused(
            lambda: list(batches), "Dask workers that had the net and its params were lost: inproc://", error=RunError
        )


def test_params_that_do_not_fit_are_refused(job: Job, threads: Client, params) -> None:
    params["w2"] = params["w2"][:3]
    refused(lambda: evaluate(job, params, client=threads), "'w2'", r"has \(3, 128")
    del params["w2"]
    refused(lambda: evaluate(job, params, client=threads), r"'w2' of shape \(10, 128\), which the given params lack")


def with_outputs(job: Job, folder: Path) -> Job:
    """Return the job with output layers that write o.csv and o.zarr in ``folder``."""
    layers = f"""
      layer {{ name: "top" type: kArgSort srclayers: "ip" include: kTest argsort_conf {{ topk: 3 }} }}
      layer {{ name: "text" type: kCSVOutput srclayers: "top" include: kTest
        store_conf {{ path: "{folder}/o.csv" }} }}
      layer {{ name: "records" type: kRecordOutput srclayers: "ip" include: kTest
        store_conf {{ path: "{folder}/o.zarr" }} }}"""
    more = loads(f"neuralnet {{ {layers} }}").neuralnet.layer
    return job.replace(neuralnet=job.neuralnet.replace(layer=[*job.neuralnet.layer, *more]))


def test_output_layers_write_their_files(job: Job, client: Client, params, whole, tmp_path: Path) -> None:
    job = with_outputs(job, tmp_path)
    for _ in range(2):  # a second time replaces the first
        assert evaluate(job, params, client=client)["accuracy"] <= 1
    best = np.loadtxt(tmp_path / "o.csv", delimiter=",", dtype=int)
    np.testing.assert_array_equal(best, np.argsort(-whole[0], axis=1)[:, :3])
    np.testing.assert_allclose(open_store(str(tmp_path / "o.zarr")).read(range(150))[0], whole[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("workers", "batches"), [pytest.param(1, 0, marks=pytest.mark.ci), pytest.param(2, 0, marks=pytest.mark.ci), (2, 2)]
)
def test_tests_in_training_write_the_files(
    job: Job, threads: Client, tmp_path: Path, workers: int, batches: int
) -> None:
    job = with_topology(with_outputs(job, tmp_path), workers).replace(train_steps=6, test_freq=3, test_steps=batches)
    result = train(job, threads, workspace=tmp_path / "run", progress=False)
    scores = predict(job, result.params, "ip", client=threads)  # those of the last test, after the last step
    rows = batches * sum(job.neuralnet.layer[1].store_conf.batchsize) or 150
    np.testing.assert_array_equal(
        np.loadtxt(tmp_path / "o.csv", delimiter=",", dtype=int), np.argsort(-scores[:rows], axis=1)[:, :3]
    )
    np.testing.assert_array_equal(open_store(str(tmp_path / "o.zarr")).read(range(rows))[0], scores[:rows])
    assert len(open_store(str(tmp_path / "o.zarr"))) == rows


def test_a_file_that_cannot_be_written_ends_training_with_a_checkpoint(job: Job, threads: Client, tmp_path: Path):
    job = with_outputs(job, tmp_path).replace(train_steps=6, test_freq=3)
    folder = tmp_path / "o.csv"

    def block(step: int, metrics: dict[str, float]) -> None:
        if step == 0:
            folder.unlink()
            folder.mkdir()

    with pytest.raises(UserError, match=r"o.csv cannot be written: .*3 steps were done; go on from .*step3"):
        train(job, threads, workspace=tmp_path / "run", progress=False, extensions=[block])
    assert (tmp_path / "run" / "checkpoint" / "step3").is_dir()


@pytest.mark.process
def test_predicting_goes_on_with_the_workers_that_are_left(job: Job, params, threads: Client, forked) -> None:
    expected = [batch.data for batch in predict_with_labels(job, params, "ip", "train", client=threads)]
    with cluster.connect(workers=2, separate_processes=True) as client:
        pids = sorted(client.run(os.getpid).values())
        batches = predict_with_labels(job, params, "ip", "train", client=client)
        first = next(batches)
        os.kill(pids[0], signal.SIGKILL)
        results = [batch.data for batch in (first, *batches)]
    assert len(results) == len(expected) > 6, "more batches than are computed ahead"
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)
