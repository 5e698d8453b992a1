"""Early stopping with the best params on real data: interrupted, resumed, the same bits and the same history."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client

import dsinga
from dsinga.api import train
from dsinga.checkpoint import latest, read_params
from dsinga.data import import_records, open_store, write_store
from dsinga.job import ClusterConf, Job, load, loads
from tests.support.extension_runs import Acting, rows
from tests.support.small_job import assert_same

DIGITS = Path(__file__).parents[2] / "datasets" / "digits" / "job.conf"

RULES = """
validate_freq: 20 validate_steps: 3 checkpoint_freq: 30
extension { type: kEarlyStopping monitor: "val/loss" patience: 6 }
extension { type: kReduceOnPlateau monitor: "val/loss" patience: 3 factor: 0.3 }
extension { type: kKeepBest monitor: "val/loss" }
"""

# Of few records, so that the net soon learns them by heart.
MNIST = """
name: "mnist"
seed: 3
train_steps: 2000
disp_freq: 50
test_freq: 100
test_steps: 20
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "few.zarr" batchsize: 100 shape: 784 std_value: 255 } }
  layer { name: "data" type: kRecordInput include: kVal
    store_conf { path: "held-out.zarr" batchsize: 500 shape: 784 std_value: 255 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test_data.zarr" batchsize: 500 shape: 784 std_value: 255 } }
  layer { name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 200 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "act" type: kReLU srclayers: "hidden" }
  layer { name: "ip" type: kInnerProduct srclayers: "act" innerproduct_conf { num_output: 10 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def check_interrupted_runs(job: Job, client: Client, folder: Path) -> None:
    """Train once without and once with interruptions, by two workers and two servers."""
    job = job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2))
    unbroken = train(job, client, workspace=folder / "unbroken", progress=False)
    assert unbroken.step < job.train_steps
    assert "val/loss has not improved" in unbroken.stopped
    print(unbroken.stopped, *unbroken.remarks, sep="\n")

    def interrupt(loop) -> None:
        raise KeyboardInterrupt

    for resume, step in ((False, 70), (True, unbroken.step - 5)):
        with pytest.raises(KeyboardInterrupt):
            train(
                job, client, workspace=folder / "cut", resume=resume, extensions=[Acting(10**6, interrupt, step)],
                progress=False,
            )  # fmt: skip
        print("interrupted after", step, "steps; the last checkpoint is", latest(folder / "cut" / "checkpoint"))
    resumed = train(job, client, workspace=folder / "cut", resume=True, progress=False)
    assert (resumed.step, resumed.stopped, resumed.remarks) == (unbroken.step, unbroken.stopped, unbroken.remarks)
    assert_same(resumed.params, unbroken.params)
    assert rows(resumed) == rows(unbroken)
    assert_same(read_params(folder / "cut" / "checkpoint"), read_params(folder / "unbroken" / "checkpoint"))
    best = min(row["loss"] for row in unbroken.history.phase("val"))
    print("the best loss of a validation is", best)
    if job.name == "digits":
        assert dsinga.evaluate(job, resumed.params, "val", client)["loss"] == pytest.approx(best, rel=1e-6)


@pytest.mark.slow
def test_digits(threads: Client, tmp_path: Path) -> None:
    text = DIGITS.read_text() + RULES
    job = loads(text, str(DIGITS))
    job.updater.learning_rate.base_lr = 0.1  # so that it soon does no better
    check_interrupted_runs(job, threads, tmp_path)


@pytest.mark.data
def test_mnist(client: Client, tmp_path: Path, real_data: Path) -> None:
    import_records("mnist", real_data / "mnist", tmp_path)
    store = open_store(str(tmp_path / "train_data.zarr"))
    for name, records in {"few": range(2000), "held-out": range(50_000, 51_500)}.items():
        write_store(tmp_path / f"{name}.zarr", [store.read(records)])
    (tmp_path / "job.conf").write_text(MNIST + RULES)
    check_interrupted_runs(load(tmp_path / "job.conf"), client, tmp_path)
