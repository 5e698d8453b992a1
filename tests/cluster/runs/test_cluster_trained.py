"""Epochs as the length of a run, and results in the place of params."""

import io
import json
from pathlib import Path

import pytest
from distributed import Client

from dsinga import UserError, api
from dsinga.api import train
from dsinga.extensions import KeepBest
from dsinga.job import ClusterConf, Job
from dsinga.monitor import show_progress
from tests.support.small_job import assert_same


def test_a_result_takes_the_place_of_its_params(job: Job, stores: Path, threads: Client):
    result = api.train(job.replace(train_steps=2), threads, progress=False, data_root=str(stores))
    expected = api.evaluate(job, result.params, client=threads, data_root=str(stores))
    assert api.evaluate(job, result, client=threads, data_root=str(stores)) == expected
    with pytest.raises(
        UserError, match="has no layer 'x'; its layers are data, conv, relu, norm, pool, drop, ip, loss"
    ):
        api.predict(job, result, "x", client=threads, data_root=str(stores))
    with pytest.raises(UserError, match=r"job must be a dsinga.Job or the path of a job file, not a Result"):
        api.evaluate(result, client=threads)  # type: ignore[arg-type]


def test_the_line_that_names_the_params_names_the_best_ones(
    job: Job, stores: Path, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    job = job.replace(train_steps=2, test_freq=1)
    where = {"client": threads, "data_root": str(stores)}
    api.train(job, workspace="small-workspace", progress=False, extensions=[KeepBest("test/loss")], **where)
    api.evaluate(job, **where)
    assert capsys.readouterr().err == (
        "params of small-workspace/checkpoint/step2 (the best ones are in small-workspace/best.safetensors)\n"
    )


def test_rows_at_the_end_of_each_epoch(job: Job, stores: Path, threads: Client, tmp_path: Path):
    by_epochs = job.replace(train_steps=0, disp_freq=0, seed=3, cluster=ClusterConf(nworkers_per_group=2))
    result = train(by_epochs, threads, epochs=3, data_root=str(stores), progress=False, workspace=tmp_path)
    assert result.step == result.job.train_steps == 30
    for phase in ("train", "test"):
        assert result.history.phase(phase)[:, ("step", "epoch")] == [(10, 1), (20, 2), (30, 3)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["epoch"] == 1
    assert "epoch" not in repr(result)
    by_steps = by_epochs.replace(train_steps=30)
    assert_same(train(by_steps, threads, data_root=str(stores), progress=False).params, result.params)


def test_frequencies_of_the_job_count(job: Job, stores: Path, threads: Client):
    often = job.replace(train_steps=0, epochs=1, disp_freq=4, test_freq=5, cluster=ClusterConf(nworker_groups=3))
    result = train(often, threads, data_root=str(stores), progress=False)
    assert result.history.phase("test")[:, ("step", "epoch")] == [(0, 0), (4, 1)]
    assert result.history.phase("train")[:, ("step", "epoch")] == [(4, 1)]  # ceil(1000 / 300) steps


def test_lines_name_the_epoch():
    out = io.StringIO()
    with show_progress(30, "small", out) as display:
        display.show_row({"step": 10, "epoch": 1.25, "phase": "test", "time": 1.0, "loss": 0.5})
    assert out.getvalue() == "step 10/30  epoch 1.25  test  loss 0.5\n"
