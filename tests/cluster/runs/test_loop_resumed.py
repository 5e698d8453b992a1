"""The one suite of resuming: whatever is trained and however, a run that was cut and resumed is the unbroken one."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_checkpoint, read_params
from dsinga.extensions import EarlyStopping, Extension, KeepBest, ReduceOnPlateau
from dsinga.job import ClusterConf, Job, loads
from tests.cluster.runs.test_cluster_rbm import CD, DATA, machine
from tests.support.extension_runs import Acting, rows, validating
from tests.support.refusals import refused
from tests.support.small_job import JOB, WORDS, assert_same

STEPS, CUT = 12, 5
HYBRID = JOB.replace("innerproduct_conf {", "partition_dim: 1 innerproduct_conf {")
GATHERED = JOB.replace('srclayers: "drop"', 'srclayers: "sharp"').replace(
    '  layer { name: "ip"',
    """  layer { name: "fc" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 800 } }
  layer { name: "sharp" type: kReLU srclayers: "fc" }
  layer { name: "ip\"""",
)
UPDATER = "updater { type: kSGD momentum: 0.9 weight_decay: 0.001 learning_rate { type: kFixed base_lr: 0.01 } }"
# The rate of the net falls to a floor, that of a weight in stairs; the momentum grows to step 8; a bias stays.
MOVING = JOB.replace(
    UPDATER,
    """updater { type: kSGD momentum_conf { saturation_step: 8 }
  learning_rate { type: kExponential base_lr: 0.02 start_step: 3 minimum_lr: 0.002
    exponential_conf { change_freq: 2 gamma: 0.7 } }
  param_settings { match: "w2" learning_rate { type: kStep base_lr: 0.01 step_conf { change_freq: 4 gamma: 0.5 } } }
  param_settings { match: "b1" base_lr: 0 } }""",
)
# One cycle of the rate and of the momentum; that of a weight warms up before two schedules in a row.
CYCLE = JOB.replace(
    UPDATER,
    """updater { type: kSGD momentum_conf { one_cycle: true base_momentum: 0.95 final_momentum: 0.85 }
  learning_rate { type: kOneCycle base_lr: 0.03 onecycle_conf { change_freq: 12 } }
  param_settings { match: "w2" momentum: 0.9 learning_rate { type: kSequential warmup_steps: 3 sequential_conf {
    schedule { type: kPolynomial base_lr: 0.02 polynomial_conf { change_freq: 4 } }
    schedule { type: kCosineRestarts base_lr: 0.01 restarts_conf { change_freq: 2 t_mul: 2 } } boundary: 3 } } } }""",
)
EMA = "ema_conf { decay: 0.8 warmup: true every: 2 }"
AVERAGED = HYBRID.replace("updater {", f"updater {{ {EMA}")
CHAINS = f"{CD} neuralnet {{ {DATA} {machine(1, 'data', 24, 'persistent: true')} }}"
ROWS = """
updater { type: kSGD momentum: 0.9 weight_decay: 0.01 learning_rate { type: kFixed base_lr: 0.1 }
  param_settings { match: "table" momentum_conf { saturation_step: 7 } clip_norm: 0.05 } }
""" + WORDS.replace("STORE", 'path: "train.zarr" batchsize: 20 shape: 64')


class Kind(NamedTuple):
    """A kind of run: its job, its topology, the fixture of its client or "" for this process, its workspace."""

    job: str = JOB
    figures: Mapping[str, Any] = {}
    client: str = "threads"
    options: Mapping[str, Any] = {}
    workspace: str = ""


TWO = {"nworkers_per_group": 2, "nservers_per_group": 2}
KINDS = {
    "here": Kind(client=""),
    "records of a random start": Kind(JOB.replace("std_value", "random_skip: 300 std_value"), client=""),
    "processes": Kind(HYBRID, {"nworkers_per_group": 3, "nservers_per_group": 2}, client="processes"),
    "updates on workers in processes": Kind(HYBRID, {**TWO, "update": "kWorker"}, client="processes"),
    "gathered activations": Kind(GATHERED, {**TWO, "fullc_gather": True}),
    "rounded gradients": Kind(figures={**TWO, "compression": "kBF16"}, client="processes"),
    "rounded sums": Kind(figures={**TWO, "compression": "kBF16", "update": "kWorker"}, client="processes"),
    "graphs": Kind(figures=TWO, options={"grain": "graph"}),
    "micro-batches": Kind(f"micro_batches: 4 {JOB}", client=""),
    "gradients clipped together": Kind(
        JOB.replace("weight_decay: 0.001", "weight_decay: 0.1 decoupled_weight_decay: true clip_global_norm: 0.2"),
        {"nworkers_per_group": 3, "nservers_per_group": 2},
    ),
    "Muon": Kind(JOB.replace("type: kSGD momentum: 0.9", "type: kMuon"), TWO),
    "moving rates on workers": Kind(MOVING, {"nworkers_per_group": 2, "update": "kWorker"}),
    "one cycle": Kind(CYCLE, TWO),
    "averages here": Kind(AVERAGED, client=""),
    "averages": Kind(AVERAGED, TWO),
    "averages on workers": Kind(AVERAGED, {**TWO, "update": "kWorker"}),
    "averages of sparse rows": Kind(ROWS.replace("updater {", f"updater {{ {EMA}"), {"nworkers_per_group": 3}),
    "static params": Kind(JOB.replace('name: "w1"', 'name: "w1" static: true'), {"nworkers_per_group": 2}),
    "sparse rows": Kind(ROWS, {"nworkers_per_group": 3, "nservers_per_group": 2}),
    "persistent chains": Kind(CHAINS, {"nworkers_per_group": 2}),
    "a workspace at a URL": Kind(client="", workspace="memory://resumed/run"),
}


# Those whose state no other kind has, and one in processes.
QUICK = KINDS.keys() - {
    *("updates on workers in processes", "graphs", "gathered activations", "averages", "averages here", "one cycle"),
    *("gradients clipped together", "static params", "rounded gradients"),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, id=name, marks=[] if name in QUICK else [pytest.mark.ci]) for name, kind in KINDS.items()],
)
def test_a_run_that_was_cut_and_resumed_is_the_unbroken_one(
    kind: Kind, stores: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue(kind.client) if kind.client else None
    check_resumed(kind, stores, tmp_path, client)


def check_resumed(kind: Kind, stores: Path, folder: Path, client: Client | None) -> None:
    """Assert that a run that was cut and resumed is the unbroken one, of records in a folder of stores."""
    job = loads(f"{kind.job} checkpoint_freq: 4", str(stores / "job.conf"))
    job = job.replace(train_steps=STEPS, disp_freq=3, validate_freq=0, gpu=[], cluster=ClusterConf(**kind.figures))
    place = kind.workspace or folder
    whole = train(job, client, progress=False, **kind.options)
    train(job.replace(train_steps=CUT), client, workspace=place, progress=False, **kind.options)
    resumed = train(job, client, workspace=place, resume=True, progress=False, **kind.options)
    assert_same(resumed.params, whole.params)
    assert_same(read_params(place), whole.params)
    assert rows(resumed)[-2:] == rows(whole)[-2:]
    assert [row["step"] for row in resumed.history] == [3, CUT, 6, 9, 12]


@pytest.mark.parametrize(
    "figures",
    [
        pytest.param({"nserver_groups": 1}, id="Downpour", marks=pytest.mark.ci),
        pytest.param({"nserver_groups": 3}, id="Hogwild"),
    ],
)
def test_asynchronous_groups_go_on_where_they_were(job: Job, threads: Client, tmp_path: Path, figures: dict) -> None:
    job = job.replace(cluster=ClusterConf(nworker_groups=3, **figures), test_freq=1000, test_steps=2)
    assert train(job.replace(train_steps=30), threads, workspace=tmp_path, progress=False).step == 30
    resumed = train(job, threads, workspace=tmp_path, resume=True, progress=False)
    assert list(resumed.history.phase("train")[:, "step"]) == [10, 20, 30, 40, 50]
    assert resumed.history.phase("test")[-1, "accuracy"] > 0.9


def stop_rising() -> list[Extension]:
    """Return extensions that act on the small job: its accuracy soon does not grow by half any more."""
    return [
        EarlyStopping("val/accuracy", patience=4, min_delta=0.5),
        ReduceOnPlateau("val/loss", factor=0.5, patience=2, min_delta=0.5),
        KeepBest("val/loss"),
    ]


@pytest.mark.parametrize(
    ("workers", "cluster"), [(1, ""), pytest.param(3, "processes", marks=pytest.mark.ci)], ids=["here", "processes"]
)
def test_a_run_with_extensions_goes_on_from_any_checkpoint(
    request: pytest.FixtureRequest, job: Job, tmp_path: Path, workers: int, cluster: str
) -> None:
    """Stopped early, with the best params, with learning rates that have changed: bits and history."""
    client = request.getfixturevalue(cluster) if cluster else None
    job = validating(job, workers, checkpoint_freq=5)
    run = tmp_path / "run"
    unbroken = train(job, client, workspace=run, extensions=stop_rising(), progress=False)
    assert 4 < unbroken.step < 40
    assert unbroken.stopped.startswith(f"training stopped after {unbroken.step} of 40 steps: val/accuracy has not")
    last = read_checkpoint(run / "checkpoint" / f"step{unbroken.step}")
    assert last.loop["rate_factors"]
    steps = sorted(int(path.name[4:]) for path in (run / "checkpoint").iterdir())
    assert steps == [*range(5, unbroken.step, 5), unbroken.step]
    for step in steps[::2]:
        folder = tmp_path / f"from{step}"
        shutil.copytree(run, folder)
        for later in steps:
            if later > step:
                shutil.rmtree(folder / "checkpoint" / f"step{later}")
        resumed = train(job, client, workspace=folder, extensions=stop_rising(), resume=True, progress=False)
        assert_same(resumed.params, unbroken.params)
        assert rows(resumed) == rows(unbroken), f"resumed from step {step}"
        ends = [(result.step, result.stopped, result.remarks) for result in (resumed, unbroken)]
        assert ends[0] == ends[1]
        assert_same(read_checkpoint(folder / "checkpoint" / f"step{unbroken.step}").params, last.params)


def test_the_best_params_are_those_of_a_run_of_so_many_steps(job: Job, tmp_path: Path) -> None:
    result = train(
        validating(job), workspace=tmp_path, extensions=[KeepBest("val/accuracy", mode="min")],
        progress=False,
    )  # fmt: skip
    accuracies = [(row["accuracy"], row["step"]) for row in result.history.phase("val")]
    value, best = min(accuracies)
    assert result.remarks == (f"the params are those after {best} steps, with the best val/accuracy: {value:.4g}",)
    assert result.step == 40
    short = train(validating(job).replace(train_steps=best), progress=False) if best else None
    if short:
        assert_same(result.params, short.params)
    assert_same(read_params(tmp_path / "best.safetensors"), result.params)
    assert "the params are those after" in repr(result)


def test_extensions_may_come_and_go(job: Job, tmp_path: Path) -> None:
    job = validating(job)
    train(job.replace(train_steps=20), workspace=tmp_path, progress=False, extensions=[KeepBest("val/loss")])
    resumed = train(job, workspace=tmp_path, resume=True, progress=False, extensions=[Acting(30, print)])
    assert_same(resumed.params, train(job, progress=False).params)


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(job: Job, tmp_path: Path) -> None:
    job = validating(job)
    train(job.replace(train_steps=20), workspace=tmp_path, progress=False)
    about = tmp_path / "checkpoint" / "step20" / "checkpoint.json"
    fields = json.loads(about.read_text())
    del fields["loop"], fields["checksum"]
    about.write_text(json.dumps(fields | {"format": 1}))
    assert train(job, workspace=tmp_path, resume=True, progress=False, extensions=stop_rising()).step > 20


def test_what_cannot_be_resumed_is_refused(job: Job, tmp_path: Path) -> None:
    job = job.replace(train_steps=5)
    longer = job.replace(train_steps=10)
    refused(lambda: train(job, resume=True, progress=False), "resuming needs a workspace")
    refused(lambda: train(job, resume="auto", progress=False), 'resume="auto" needs a workspace')
    refused(lambda: train(job, workspace=tmp_path, resume=True, progress=False), "is no checkpoint to resume from in")
    train(job, workspace=tmp_path, progress=False)
    for changed, message in (
        (job.replace(train_steps=3), "step5 is beyond the job's 3 train_steps; give 5 or more, with train_steps=5"),
        (longer.replace(updater=job.updater.replace(type="kAdaGrad")), "resume with the updater that wrote it"),
        (longer.replace(updater=job.updater.replace(momentum=0.0)), "but the job's updater needs none: resume with"),
        (longer.replace(seed=1), "is of a run with seed: 0; resume with that seed"),
    ):
        with pytest.raises(UserError, match=message):
            train(changed, workspace=tmp_path, resume=True, progress=False)


def test_a_momentum_that_the_checkpoint_lacks_is_refused(job: Job, tmp_path: Path) -> None:
    plain = job.replace(train_steps=5, updater=job.updater.replace(momentum=0.0))
    train(plain, workspace=tmp_path, progress=False)
    refused(lambda: train(job, workspace=tmp_path, resume=True, progress=False), "'s updater needs 'history': resume")
