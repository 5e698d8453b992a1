"""Runs that are logged to a local folder of MLflow, read through MLflow's client."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dsinga.addons.trackers.mlflow import job_params
from dsinga.extensions import MLflow, create_extensions
from dsinga.job import Job, loads, to_text
from dsinga.testing import SimulatedLoop
from tests.support.refusals import refused

JOB = """
name: "net" train_steps: 30
updater { type: kAdam learning_rate { type: kFixed base_lr: 0.05 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "train.zarr" batchsize: 20 } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "test.zarr" batchsize: 10 } }
  layer { name: "ip(1)" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { init { type: kUniform low: -2 } } param { } }
}
"""


@pytest.fixture(autouse=True)
def mlflow_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def metrics_of(phase: str, step: int) -> dict[str, float]:
    return {"loss": 1 / step}


def client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=str(folder / "mlruns"))


def runs(folder: Path, experiment: str = "Default") -> list[Any]:
    id = client(folder).get_experiment_by_name(experiment).experiment_id
    return list(client(folder).search_runs([id]))


def simulated(folder: Path, **more: Any) -> SimulatedLoop:
    loop = SimulatedLoop([MLflow(str(folder / "mlruns"))], metrics_of, train_steps=30, workspace=folder, **more)
    loop.view.job = loads(JOB)
    return loop


def assert_metrics(folder: Path, run_id: str, loop: SimulatedLoop) -> None:
    for name in ("train/loss", "val/loss"):
        phase, _, metric = name.partition("/")
        rows = [(row["step"], row[metric]) for row in loop.rows if row["phase"] == phase]
        assert [(found.step, found.value) for found in client(folder).get_metric_history(run_id, name)] == rows


def test_a_run_has_params_metrics_artifacts_and_a_status(tmp_path: Path) -> None:
    loop = simulated(tmp_path).run()
    (run,) = runs(tmp_path)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "net")
    assert run.data.params == job_params(loop.view.job)
    assert_metrics(tmp_path, run.info.run_id, loop)
    text = client(tmp_path).download_artifacts(run.info.run_id, "job.conf", str(tmp_path))
    assert Path(text).read_text() == to_text(loop.view.job)


def test_params_are_the_fields_of_the_job_by_path() -> None:
    params = job_params(loads(JOB))
    assert params["updater.learning_rate.base_lr"] == "0.05"
    assert params["updater.type"] == "kAdam"
    assert params["layer.data.kTrain.store_conf.batchsize"] == "20"
    assert params["layer.data.kTest.store_conf.batchsize"] == "10"
    assert params["layer.ip_1_.innerproduct_conf.num_output"] == "3"
    assert params["layer.ip_1_.param.0.init.low"] == "-2.0"
    assert "seed" not in params, "fields that have their default are left out"
    assert len(job_params(Job(name="x" * 9000))["name"]) == 6000


def test_a_resumed_run_goes_on_with_its_run_of_mlflow(tmp_path: Path) -> None:
    unbroken = simulated(tmp_path).run()
    resumed = simulated(tmp_path).run(unbroken.checkpoints[14])
    (run,) = runs(tmp_path)
    assert_metrics(tmp_path, run.info.run_id, resumed)
    simulated(tmp_path).run()
    assert len(runs(tmp_path)) == 2, "a new run of ours is a new one of MLflow"


def test_a_run_that_fails_has_that_status(tmp_path: Path) -> None:
    def broken(phase: str, step: int) -> dict[str, float]:
        if step == 12:
            raise RuntimeError("the disk is full")
        return {"loss": step}

    with pytest.raises(RuntimeError, match="the disk is full"):
        SimulatedLoop([MLflow(str(tmp_path / "mlruns"), "experiment", "named")], broken).run()
    (run,) = runs(tmp_path, "experiment")
    assert (run.info.status, run.info.run_name) == ("FAILED", "named")


def test_a_server_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlruns").write_text("not a folder")
    refused(lambda: simulated(tmp_path).run(), r"extension MLflow: MLflow at \S+mlruns failed")


def test_a_job_names_it(tmp_path: Path) -> None:
    uri = tmp_path / "mlruns"
    text = f'train_steps: 5 extension {{ type: kMLflow uri: "{uri}" experiment: "digits" run_name: "first" }}'
    loop = SimulatedLoop([create_extensions(loads(text))[-1]], metrics_of, train_steps=30, workspace=tmp_path)
    loop.view.job = loads(JOB)
    loop.run()
    (run,) = runs(tmp_path, "digits")
    assert run.info.run_name == "first"


def test_without_its_package_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    refused(MLflow, r"^MLflow needs mlflow-skinny: pip install 'dsinga\[mlflow\]'$")
