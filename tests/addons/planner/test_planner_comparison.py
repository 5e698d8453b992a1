"""A finished run beside its prediction, and the workspaces that are refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dsinga
from dsinga import models
from dsinga.addons.planner import pricing
from dsinga.addons.planner.link import FREE_BARRIER
from dsinga.addons.planner.planning import compare
from dsinga.addons.planner.simulate import Prediction
from dsinga.base.errors import UserError
from dsinga.job import ClusterConf, Job
from dsinga.loop.timings_file import PARTS, Places, RunTimings, read_timings, write_timings
from tests.support.planner_nets import MACHINE
from tests.support.refusals import refused

SECONDS = {"total": 10e-3, "compute": 4e-3, "update": 1e-3, "exchange": 5e-3, "data": 1e-3}


@pytest.fixture(autouse=True)
def fixed_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing, "measure_machine", lambda *_: MACHINE)
    monkeypatch.setattr(pricing, "measure_barrier", lambda: FREE_BARRIER)


def job(**changes: object) -> Job:
    return models.mlp([16], 8, 3, batchsize=4).replace(train_steps=6, **changes)


def trained(workspace: Path, workers: int = 1, grain: str = "round", **changes: object) -> None:
    random = np.random.default_rng(0)
    data = random.normal(size=(16, 8)).astype(np.float32), random.integers(3, size=16)
    dsinga.train(
        job(**changes), data={"train": data, "test": data}, workers=workers, workspace=workspace, grain=grain,
        progress=False,
    )  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_the_parts_of_a_run_stand_beside_their_prediction(tmp_path: Path, workers: int) -> None:
    trained(tmp_path, workers)
    comparison = dsinga.compare_with_plan(job(), tmp_path, progress=False)
    names = ["computing layers", "updating params", "exchange and waiting", "reading records"]
    assert [part.name for part in comparison.parts] == names
    assert comparison.iteration.predicted == pytest.approx(
        dsinga.plan(job(), workers=workers, progress=False).curve[0].prediction.seconds if workers == 1 else
        sum(part.predicted for part in comparison.parts)
    )  # fmt: skip
    assert all(part.measured > 0 for part in comparison.parts[:2])
    run = read_timings(tmp_path)
    assert len(run.places.workers) == workers
    parts = sum(run.seconds[name] for name in ("compute", "update", "data"))  # of medians: may be more than the total
    assert comparison.iteration.measured == pytest.approx(max(run.seconds["total"], parts))
    assert comparison.figures()["parts"][-1]["part"] == "iteration"


def test_the_sentence_names_the_part_with_the_largest_miss() -> None:
    run = RunTimings("job", "", Places(), {}, 7, SECONDS)
    comparison = compare(Prediction(6e-3, 4.2e-3, 0.8e-3, 0, 0, 0), run, "here")
    assert [(part.predicted, part.measured) for part in comparison.parts] == [
        (4.2e-3, 4e-3), (0.8e-3, 1e-3), (pytest.approx(1e-3), pytest.approx(4e-3)), (0.0, 1e-3),
    ]  # fmt: skip
    assert comparison.verdict == (
        "the prediction is -40% off; the largest miss is exchange and waiting: 4.00 ms, 3.00 ms more than predicted"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "kBF16"}, "is of another job: its layers, batch size, updater, exchange or precision differ"),
        ({"cluster": ClusterConf(compression="kBF16")}, "is of another job"),
        ({"name": "elsewhere", "precision": "kBF16"}, "is of the job 'mlp'"),
    ],
)
def test_a_run_of_another_job_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    trained(tmp_path)
    refused(lambda: dsinga.compare_with_plan(job(**changes), tmp_path, progress=False), message)


def test_a_run_as_task_graphs_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 2, "graph")
    with pytest.raises(UserError, match="sent iterations as task graphs, which no plan predicts; train without it"):
        dsinga.compare_with_plan(job(), tmp_path, progress=False)


def test_workspaces_without_timings_are_refused(tmp_path: Path) -> None:
    refused(lambda: dsinga.compare_with_plan(job(), tmp_path / "none", progress=False), "there is no workspace")
    with pytest.raises(UserError, match=r"has no timings\.json, which a run writes at its end"):
        dsinga.compare_with_plan(job(), tmp_path, progress=False)
    (tmp_path / "timings.json").write_text("{}")
    refused(lambda: dsinga.compare_with_plan(job(), tmp_path, progress=False), "is damaged")
    write_timings(tmp_path, "job", "", Places(), {}, [dict.fromkeys(PARTS, 0.1)])
    content = json.loads((tmp_path / "timings.json").read_text())
    (tmp_path / "timings.json").write_text(json.dumps({**content, "seconds": {**content["seconds"], "total": -1}}))
    refused(lambda: dsinga.compare_with_plan(job(), tmp_path, progress=False), "is damaged")


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": dict.fromkeys(PARTS, math.inf)},
        {"seconds": dict.fromkeys(PARTS, math.nan)},
        {"cuts": [1]},
        {"cuts": {"fc": [0]}},
        {"cuts": {"fc": ["0", 0]}},
        {"places": {"hosts": 0}},
        {"places": {"workers": 3}},
        {"places": {"workers": []}},
        {"places": {"groups": "2"}},
        {"places": {"unpredicted": 1}},
    ],
)
def test_damaged_timings_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    write_timings(tmp_path, "job", "", Places(), {"fc": (0, 0)}, [dict.fromkeys(PARTS, 0.1)])
    assert read_timings(tmp_path).cuts == {"fc": [0, 0]}
    content = json.loads((tmp_path / "timings.json").read_text())
    (tmp_path / "timings.json").write_text(json.dumps(content | changes))
    refused(lambda: read_timings(tmp_path), r"timings\.json is damaged")


def test_warm_up_iterations_are_left_out(tmp_path: Path) -> None:
    slow, quick = dict.fromkeys(PARTS, 9.0), dict.fromkeys(PARTS, 1.0)
    write_timings(tmp_path, "job", "", Places(), {}, [*[slow] * 10, *[quick] * 11])
    run = read_timings(tmp_path)
    assert (run.steps, run.seconds["total"]) == (11, 1.0)
