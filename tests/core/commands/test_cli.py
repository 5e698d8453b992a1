"""The command line: its output, its files and its errors."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import ops
from dsinga.base.errors import UserError
from dsinga.base.version import __version__
from dsinga.cluster.connecting import embedded
from dsinga.commands.cli import main
from dsinga.data import open_store, write_store
from tests.support.device_array import load_backends
from tests.support.small_disk import files_of_at_most

JOB = """name: "cli"
train_steps: 20
test_freq: 10
test_steps: 2
disp_freq: 10
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "train.zarr" batchsize: 20 shape: 8 std_value: 255 } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "test.zarr" batchsize: 20 shape: 8 std_value: 255 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w1" init { type: kUniform low: -0.1 high: 0.1 } }
    param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip1" srclayers: "data" }
}
cluster { workspace: "work" }
"""

USER_FILE = """import dsinga

@dsinga.register("importer", "powers")
def powers(source):
    import numpy
    from dsinga.data import Batch, StoreContents
    return {"": StoreContents([Batch(numpy.array([[1.0, 2.0, 4.0]]), None)])}
"""

Dsinga = Callable[..., subprocess.CompletedProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with job.conf and its stores."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 100), ("test", 50)):
        labels = rng.integers(0, 3, count)
        data = rng.integers(0, 40, (count, 8)) + 80 * (np.arange(8) % 3 == labels[:, None])
        write_store(tmp_path / f"{name}.zarr", [(data.astype(np.uint8), labels)])
    (tmp_path / "job.conf").write_text(JOB)
    return tmp_path


@pytest.fixture
def dsinga(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Dsinga:
    """Run the command line in the folder, in this process."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["dsinga", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, out.getvalue(), err.getvalue())

    return run


@pytest.mark.parametrize(
    ("command", "output", "forbidden"),
    [
        (
            "--help",
            "  train       Train the job file CONF.",
            {"numpy", "rich", "dsinga.commands.training", "dsinga.addons"},
        ),
        ("--version", "dsinga, version", {"rich", "dask", "dsinga.job", "dsinga.commands.training", "dsinga.addons"}),
        ("show job.conf", "drawn to cli.svg", {"dask", "distributed"}),
        ("train job.conf", "after 20 steps", {"bokeh", "rich", "google.protobuf", "dsinga.addons.planner"}),
    ],
)
def test_a_command_imports_only_what_it_runs(folder, command, output, forbidden) -> None:
    process = [sys.executable, "-X", "importtime", "-m", "dsinga", *command.split()]
    ended = subprocess.run(process, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert output in ended.stdout
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", ended.stderr, re.MULTILINE))
    assert "dsinga.commands.cli" in imported
    assert not forbidden & imported


def test_the_version_names_the_kernels(dsinga: Dsinga, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSINGA_OPS", "numpy")
    done = dsinga("--version")
    first, second = done.stdout.splitlines()
    assert (done.returncode, first) == (0, f"dsinga, version {__version__}")
    assert re.fullmatch("the kernel backend 'numpy', on CPUs; (no loops are compiled.*|loops .* numba [0-9.]+)", second)


def test_train_test_predict(dsinga: Dsinga, folder: Path) -> None:
    trained = dsinga("train", "job.conf")
    assert trained.returncode == 0, trained.stderr
    assert "test loss" in trained.stdout
    assert "work" in trained.stdout
    rows = [json.loads(line) for line in (folder / "work/metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["phase"]) for row in rows] == [
        (0, "test"), (10, "train"), (10, "test"), (20, "train"), (20, "test"),
    ]  # fmt: skip
    assert all({"time", "loss", "accuracy"} <= row.keys() for row in rows)
    assert (folder / "work/checkpoint/step20").is_dir()

    tested = dsinga("test", "job.conf", "--checkpoint", "work/checkpoint/step20")
    assert tested.returncode == 0, tested.stderr
    assert json.loads(tested.stdout)["accuracy"] > 0.5

    out = dsinga("predict", "job.conf", "--checkpoint", "work", "--layer", "ip1", "--out", "ip1.zarr")
    assert out.returncode == 0, out.stderr
    assert "50 records" in out.stdout
    store = open_store(str(folder / "ip1.zarr"))
    assert (len(store), store.shape) == (50, (3,))
    assert store.has_labels

    again = dsinga("predict", "job.conf", "--checkpoint", "work", "--layer", "loss", "--out", "ip1.zarr")
    assert again.returncode == 2
    assert "ip1.zarr exists; --overwrite (overwrite=True in Python) replaces it" in again.stderr
    command = ["predict", "job.conf", "--checkpoint", "work", "--layer", "loss", "--out", "ip1.zarr", "--overwrite"]
    assert dsinga(*command).returncode == 0
    command[-2] = str(folder / "test.zarr")
    refused = dsinga(*command)
    assert refused.returncode == 2
    assert "the job reads" in refused.stderr
    assert "in layer 'data'; write the feature to another store" in refused.stderr
    assert open_store(str(folder / "test.zarr")).shape == (8,)


def test_retrieve_measures_the_ranking(dsinga: Dsinga, folder: Path) -> None:
    write_store(folder / "q.zarr", [(np.array([[1.0, 0], [0, 1]]), np.array([0, 1]))])
    write_store(folder / "d.zarr", [(np.array([[3.0, 1], [2, 1], [1, 3]]), np.array([0, 1, 1]))])
    ranked = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "1")
    assert ranked.returncode == 0, ranked.stderr
    lines = [line.rsplit(maxsplit=1) for line in ranked.stdout.splitlines()]
    assert lines[:2] == [["mean average precision", "1.0000"], ["precision at 1", "1.0000"]]
    euclidean = dsinga("retrieve", "q.zarr", "d.zarr", "--distance", "euclidean", "--at", "3")
    assert "mean average precision   0.7500" in euclidean.stdout  # (2, 1) is nearer to (1, 0) than (3, 1)

    write_store(folder / "bare.zarr", [(np.eye(2), None)])
    refused = dsinga("retrieve", "q.zarr", "d.zarr", "--at", "4")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: k must be between 1 and the 3 rows of the database, not 4\n"
    assert "bare.zarr has no labels" in dsinga("retrieve", "q.zarr", "bare.zarr").stderr
    assert "nowhere.zarr was not found" in dsinga("retrieve", "nowhere.zarr", "d.zarr").stderr


def test_resuming_a_finished_run_of_epochs_asks_for_more_epochs(dsinga: Dsinga) -> None:
    assert dsinga("train", "job.conf", "--epochs", "2").returncode == 0
    resumed = dsinga("train", "job.conf", "--epochs", "2", "--resume")
    assert resumed.stderr.endswith("go on with more, as in --epochs 4\n")
    beyond = dsinga("train", "job.conf", "--epochs", "1", "--resume")
    assert beyond.stderr.endswith("or more, with --epochs 2\n")


def test_params_are_found_in_the_workspace_or_at_the_checkpoint_path(dsinga: Dsinga, folder: Path) -> None:
    refused = dsinga("test", "job.conf")
    assert refused.returncode == 2
    assert refused.stderr == (
        "dsinga: there are no trained params: there is no checkpoint in work, and the job has no checkpoint_path; "
        "train first, or give --checkpoint PATH\n"
    )
    assert dsinga("train", "job.conf", "--set", "checkpoint_freq=10").returncode == 0
    named = dsinga("test", "job.conf", "--checkpoint", "work/checkpoint/step20")
    found = dsinga("test", "job.conf")
    assert (found.stderr, found.stdout) == ("params of work/checkpoint/step20\n", named.stdout)
    both = dsinga("test", "job.conf", "--set", "checkpoint_path=work/checkpoint/step10")
    assert both.stderr == "params of work/checkpoint/step20 (not of the job's checkpoint_path)\n"
    assert both.stdout == named.stdout
    (folder / "work").rename(folder / "moved")
    path = dsinga("predict", "job.conf", "--layer", "ip1", "--out", "x.zarr", "--set", "checkpoint_path=moved")
    assert (path.returncode, path.stderr) == (0, "params of moved\n")


def test_resuming_a_finished_run_says_that_nothing_is_left(dsinga: Dsinga, folder: Path) -> None:
    assert dsinga("train", "job.conf").returncode == 0
    resumed = dsinga("train", "job.conf", "--resume")
    assert resumed.returncode == 0
    sentence = (
        "nothing was left to do: the run has done its 20 train_steps; go on with more, as in --set train_steps=40"
    )
    assert sentence in resumed.stderr
    assert sentence in resumed.stdout
    beyond = dsinga("train", "job.conf", "--resume", "--set", "train_steps=10")
    assert beyond.returncode == 2
    assert beyond.stderr.endswith("the job's 10 train_steps; give 20 or more, with --set train_steps=20\n")


RULES = """disp_freq: 10
extension { type: kEarlyStopping monitor: "test/loss" patience: 1 min_delta: 100 }
extension { type: kKeepBest monitor: "test/loss" }
"""


def test_a_job_stops_early_and_says_so(dsinga: Dsinga, folder: Path) -> None:
    (folder / "job.conf").write_text(JOB.replace("disp_freq: 10\n", RULES))
    trained = dsinga("train", "job.conf")
    assert trained.returncode == 0, trained.stderr
    assert "training stopped after 10 of 20 steps: test/loss has not improved on its best" in trained.stdout
    assert "; the params are those after 10 steps, with the best test/loss" in trained.stdout
    assert "\ntraining stopped after 10 of 20 steps: " in trained.stderr
    tested = dsinga("test", "job.conf", "--checkpoint", "work/best.safetensors")
    assert tested.returncode == 0, tested.stderr
    resumed = dsinga("train", "job.conf", "--resume")
    assert "training stopped after 10 of 20 steps" in resumed.stdout
    assert [path.name for path in (folder / "work/checkpoint").iterdir()] == ["step10"]


BREAKING_FILE = """import dsinga
from dsinga.job import Settings, required


@dsinga.register("extension", "Breaking")
class Breaking(dsinga.extensions.Extension):
    class Conf(Settings):
        word: str = required("what it says")

    trigger = dsinga.extensions.AtEnd()

    def run(self, loop):
        raise ZeroDivisionError(self.settings.word)
"""


def test_a_users_extension_that_raises_shows_its_traceback(folder: Path) -> None:
    (folder / "own.py").write_text(BREAKING_FILE)
    rule = 'extension { user_type: "Breaking" freq: 7 [breaking_conf] { word: "a fault of its own" } }\ndisp_freq: 10'
    (folder / "job.conf").write_text(JOB.replace("disp_freq: 10", rule))
    command = [sys.executable, "-m", "dsinga", "train", "job.conf", "--import", "own.py"]
    failed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1
    assert 'own.py", line 13, in run' in failed.stderr
    said = "ZeroDivisionError: a fault of its own\nextension Breaking failed at step 7; 7 steps were done; go on from "
    assert said in failed.stderr
    assert (folder / "work/checkpoint/step7").is_dir()


def test_show_prints_and_draws(dsinga: Dsinga, folder: Path) -> None:
    shown = dsinga("show", "job.conf")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"ip1 +kInnerProduct +data +20 x 3 +w1 b1 +27", shown.stdout)
    assert "27 values in params" in shown.stdout
    assert re.search(r"^a worker needs about 12\d MiB to train: params 0.0, .*fixed 120.0$", shown.stdout, re.MULTILINE)
    assert (folder / "cli.svg").read_text().lstrip().startswith("<svg")


def test_show_says_why_iterations_on_gpus_are_no_graphs(dsinga: Dsinga, folder: Path) -> None:
    on_gpu = "show", "job.conf", "--set", "gpu=[0]"
    assert "CUDA graphs" not in dsinga(*on_gpu).stdout
    shown = dsinga(*on_gpu, "--set", "updater.clip_global_norm=1").stdout
    assert "on GPUs, training iterations are not captured as CUDA graphs: clip_global_norm adds up" in shown
    shown = dsinga(*on_gpu, "--set", "cluster.nworkers_per_group=2").stdout
    assert "on GPUs, a training iteration is several CUDA graphs, between which params are exchanged" in shown


def test_show_prints_the_parts_of_a_cut_net(dsinga: Dsinga, folder: Path) -> None:
    cut = ["--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "2"]
    options = "--set", "cluster.nworker_groups=2", "--set", "cluster.nserver_groups=2"
    shown = dsinga("show", "job.conf", "--svg", "parts.svg", *cut, *options)
    assert "topology: distributed Hogwild: 2 groups of 1 worker, 2 groups of 1 server, synchronised" in shown.stdout
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"ip1@0 +kInnerProduct +features 0-1 +20 x 2 +w1@0 b1@0 +18", shown.stdout)
    assert re.search(r"loss@1 +kSoftmaxLoss +rows 10-19 +10 x 3", shown.stdout)
    assert "worker 1: 9 values in params" in shown.stdout
    assert "between workers, an iteration: 190 numbers forward, 30 back" in shown.stdout
    assert "worker 1" in (folder / "parts.svg").read_text()
    tested = dsinga("show", "job.conf", "--phase", "test", *cut)
    assert "w1@1" in tested.stdout, tested.stderr
    assert ("worker 1 needs about" in shown.stdout, "needs about" in tested.stdout) == (True, False)
    refused = dsinga("show", "job.conf", "--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "4")
    assert refused.returncode == 2
    assert "layer 'ip1': has 3 features, which cannot be cut over 4 workers" in refused.stderr


def test_bench_runs_on_synthetic_records(dsinga: Dsinga, folder: Path) -> None:
    job = JOB.replace("train.zarr", "nowhere.zarr")
    (folder / "job.conf").write_text(job)
    measured = dsinga("bench", "job.conf", "--workers", "2", "--steps", "5", "--synthetic", "--profile", "--json")
    assert measured.returncode == 0, measured.stderr
    figures = json.loads(measured.stdout)
    assert figures.keys() == {
        "ms_per_iteration", "samples_per_second", "compute_ms", "exchange_ms", "data_ms", "crossing_mb", "peak_rss_mb",
        "profile",
    }  # fmt: skip
    assert [row["layer"] for row in figures["profile"]["rows"]] == ["data", "ip1", "loss", "loss", "ip1", "", ""]


def test_data_import_and_info(dsinga: Dsinga, folder: Path) -> None:
    (folder / "rows.csv").write_text("1,0.5,2\n0,1.5,3\n1,2.5,4\n")
    imported = dsinga("data", "import", "csv", "rows.csv", "rows.zarr")
    assert imported.returncode == 0, imported.stderr
    assert "3 records" in imported.stdout
    described = dsinga("data", "info", "rows.zarr")
    assert re.search(r"records +3\n", described.stdout)
    again = dsinga("data", "import", "csv", "rows.csv", "rows.zarr")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr


# One of each kind; the others are where each is found: tests/core/job, tests/core/net, tests/core/extensions.
BAD_JOBS = {
    "unknown field": ("train_steps: 20", "train_step: 20", r"job.conf:2: .*'train_step'.*did you mean 'train_steps'"),
    "unregistered layer": (
        "type: kInnerProduct",
        'type: kUserLayer user_type: "Swish"',
        r"job.conf:12: layer 'ip1': no layer is registered as 'Swish'; .* and --import FILE",
    ),
    "wrong shape": (
        "batchsize: 20 shape: 8",
        "batchsize: 20 shape: 9",
        r"job.conf:9: .*'data'.*the shape 9.*records of 8",
    ),
    "too few classes": ("num_output: 3", "num_output: 2", r"job.conf:15: .*'loss': label 2 is none of its 2 classes"),
    "missing store": ("train.zarr", "trian.zarr", r"trian.zarr was not found"),
    "syntax": ("updater {", "updater ((", r"job.conf:6:"),
    "unknown extension": (
        "disp_freq: 10",
        "extension { type: kEarlyStoping }",
        r"job.conf:5: ExtensionConf.type: .*'kEarlyStoping'; did you mean 'kEarlyStopping'",
    ),
}


@pytest.mark.parametrize("mistake", BAD_JOBS)
def test_a_bad_job_is_one_message_and_status_2(dsinga: Dsinga, folder: Path, mistake: str) -> None:
    correct, wrong, message = BAD_JOBS[mistake]
    (folder / "job.conf").write_text(JOB.replace(correct, wrong, 1))
    refused = dsinga("train", "job.conf")
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert re.search(message, refused.stderr), refused.stderr
    assert refused.stderr.startswith("dsinga: ")
    assert not (folder / "work").exists(), "nothing is written for a job that is refused"


# Shares the weight of ip1 in the test net alone, where its rows are columns.
DECODER = """  layer { name: "decode" type: kInnerProduct include: kTest srclayers: "ip1"
    innerproduct_conf { num_output: 8 transpose: true bias_term: false } param { share_from: "w1" } }
  layer { name: "rebuilt" type: kEuclideanLoss include: kTest srclayers: "decode" srclayers: "data" }
"""


def test_a_bad_partitioning_is_one_message_and_status_2(dsinga: Dsinga, folder: Path) -> None:
    (folder / "job.conf").write_text(JOB.replace('  layer { name: "loss"', f'{DECODER}  layer {{ name: "loss"'))
    before = sorted(folder.iterdir())
    cut = ["--set", "cluster.nworkers_per_group=2", "--set", "neuralnet.layer[ip1].partition_dim=1"]
    refused = dsinga("train", "job.conf", *cut)
    assert refused.returncode == 2, refused.stderr
    message = r"dsinga: .*layer 'decode': training cuts its params \('w1'\) in another way.*\n"
    assert re.fullmatch(message, refused.stderr), refused.stderr
    assert sorted(folder.iterdir()) == before, "nothing is written for a job that is refused"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nowhere.conf"], "nowhere.conf"),
        (["train", "job.conf", "--resume"], "no checkpoint to resume from"),
        (["train", "job.conf", "--workspace", "job.conf/below"], "the workspace job.conf/below cannot be written"),
        (["train", "job.conf", "--workers", "0"], "workers is 0; give a whole number of at least 1"),
        (["test", "job.conf", "--checkpoint", "train.zarr"], "train.zarr"),
        (["predict", "job.conf", "--checkpoint", "x", "--layer", "ip1", "--out", "o.zarr"], "no checkpoint 'x'"),
        (["show", "job.conf", "--phase", "tset"], "the phases are train, val, test"),
        (["data", "import", "minst", "a", "b"], "did you mean 'mnist'"),
        (["data", "info", "nowhere.zarr"], "nowhere.zarr was not found"),
        (["train", "job.conf", "--scheduler", "127.0.0.1:1"], "no Dask scheduler answers at 127.0.0.1:1"),
    ],
)
def test_bad_arguments_are_one_message_and_status_2(
    dsinga: Dsinga, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "CONNECT_SECONDS", 1)
    refused = dsinga(*arguments)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert message in refused.stderr


def test_a_users_file_registers_an_importer(dsinga: Dsinga, folder: Path) -> None:
    (folder / "own.py").write_text(USER_FILE)
    imported = dsinga("data", "import", "powers", "own.py", "powers.zarr", "--import", "own.py")
    assert imported.returncode == 0, imported.stderr
    assert "1 records" in imported.stdout
    refused = dsinga("train", "job.conf", "--import", "mine.py")
    assert refused.returncode == 2
    assert refused.stderr == "dsinga: mine.py cannot be imported: No such file or directory\n"


def test_a_function_that_calls_exit_does_not_end_a_command_in_silence(
    dsinga: Dsinga, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ends.py").write_text("import sys\ndef f(x):\n    sys.exit(0)\n")
    monkeypatch.syspath_prepend(folder)
    layer = 'layer { name: "loss" type: kFunction srclayers: "ip1" function_conf { function: "ends:f" } }'
    (folder / "job.conf").write_text(re.sub('layer { name: "loss".*', layer, JOB))
    ended = dsinga("show", "job.conf")
    assert (ended.returncode, ended.stderr) == (1, f"dsinga: {folder}/ends.py:3: sys.exit(0) has ended the command\n")


def test_a_missing_gpu_is_refused_before_training(dsinga: Dsinga, folder: Path, monkeypatch):
    def load_nothing() -> Any:
        raise UserError("no GPU was found")

    monkeypatch.setitem(ops.BACKENDS, "cupy", load_nothing)
    load_backends(monkeypatch, cupy=None)
    assert dsinga("train", "job.conf", "--workspace", "trained").returncode == 0
    trained = ("--checkpoint", "trained")
    for command, *options in (
        ("train",), ("bench",), ("test", *trained), ("predict", *trained, "--layer", "ip1", "--out", "out.zarr"),
    ):  # fmt: skip
        refused = dsinga(command, "job.conf", "--device", "gpu", *options)
        assert refused.returncode == 2
        assert (
            "cannot compute on a GPU: no GPU was found; to compute on CPU cores, leave out --device gpu"
            in refused.stderr
        )
        assert not (folder / "work").exists()
    assert dsinga("train", "job.conf").returncode == 0  # --device holds for its command only


def test_unknown_kernels_are_refused_before_training(dsinga: Dsinga, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("DSINGA_OPS", "onedn")
    refused = dsinga("train", "job.conf")
    assert refused.returncode == 2
    assert "there is no kernel backend 'onedn' (from $DSINGA_OPS); did you mean 'onednn'?" in refused.stderr
    assert not (folder / "work").exists()


def test_find_lr_suggests_a_rate_and_draws(dsinga: Dsinga, folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    run = dsinga("find-lr", "job.conf", "--picture", "rates.svg", "--set", "cluster.workspace=nowhere")
    assert run.returncode == 0, run.stderr
    sentence, command, drawn = run.stdout.splitlines()
    rate = re.match(r"the suggested learning rate is (\S+), a tenth of ", sentence)[1]  # type: ignore[index]
    assert command == f"dsinga train job.conf --set updater.learning_rate.base_lr={rate}"
    assert drawn == "drawn to rates.svg"
    assert (folder / "rates.svg").read_text().startswith("<svg")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "rates.svg"])


@pytest.mark.parametrize(
    "command",
    [
        ("train",), ("test",), ("predict", "--layer", "ip1", "--out", "out.zarr"), ("find-lr",), ("bench",),
        ("search", "--set", "seed=1,2"),
    ],
)  # fmt: skip
def test_all_that_compute_on_a_cluster_take_hosts_and_resources(dsinga: Dsinga, command: tuple[str, ...]) -> None:
    assert dsinga("train", "job.conf").returncode == 0  # for its checkpoint
    name, *options = command
    refused = dsinga(name, "job.conf", *options, "--hosts", "nowhere")
    assert refused.returncode == 2
    assert "no Dask worker is on 'nowhere'" in refused.stderr
    refused = dsinga(name, "job.conf", *options, "--resources", "GPU=1")
    assert refused.returncode == 2
    assert "no Dask worker has the resource GPU=1" in refused.stderr


def test_search_prints_the_best_setting_first_and_goes_on(dsinga: Dsinga, folder: Path) -> None:
    command = ["search", "job.conf", "--workers", "1", "--set", "updater.learning_rate.base_lr=0.1,1e-9,0.05"]
    searched = dsinga(*command, "--set", "seed=4", "--only", "1", "--workspace", "found")
    assert searched.returncode == 0, searched.stderr
    assert "best 1 (updater.learning_rate.base_lr=1e-09): test/loss" in searched.stdout
    searched = dsinga(*command, "--set", "seed=4", "--workspace", "found", "--resume")
    assert searched.returncode == 0, searched.stderr
    numbers = [line.split()[0] for line in searched.stdout.splitlines() if "finished" in line]
    assert numbers == ["0", "2", "1"]
    assert "metrics and checkpoints are in found/setting-*" in searched.stdout
    lines = (folder / "found" / "search.csv").read_text().splitlines()
    assert lines[0] == "number,updater.learning_rate.base_lr,state,score,steps,seconds,remark"
    assert (folder / "found" / "setting-1" / "checkpoint" / "step20").is_dir()


def test_a_search_fails_where_all_settings_do(dsinga: Dsinga) -> None:
    command = ("search", "job.conf", "--workers", "1", "--set")
    searched = dsinga(*command, "updater.learning_rate.base_lr=0.1,-1")
    assert searched.returncode == 0
    assert "1 of 2 settings failed, for the reasons in the column remark" in searched.stdout
    searched = dsinga(*command, "updater.learning_rate.base_lr=1e30,1e31", "--set", "updater.weight_decay=1e30")
    assert searched.returncode == 1
    assert "dsinga: all 2 settings failed, the first one with: " in searched.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what to try, as in --set updater.learning_rate.base_lr=0.01,0.1, or give --settings FILE"),
        (("--set", "seed=1,2", "--settings", "job.conf"), "give the values in job.conf or by --set, not both"),
        (("--set", "seed=1,2", "--monitor", "val_lss"), "there is no metric 'val/lss'"),
    ],
)
def test_a_search_without_settings_is_refused(dsinga: Dsinga, arguments: tuple[str, ...], message: str) -> None:
    refused = dsinga("search", "job.conf", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr


def test_a_damaged_checkpoint_is_passed_over_with_a_warning_or_named(dsinga: Dsinga, folder: Path) -> None:
    dsinga("train", "job.conf", "--set", "checkpoint_freq=10")
    newest = folder / "work" / "checkpoint" / "step20" / "checkpoint.json"
    newest.write_text(newest.read_text().replace('"step": 20', '"step": 12'))
    refused = dsinga("train", "--resume=work/checkpoint/step20", "job.conf")
    assert refused.returncode == 2
    assert "step20/checkpoint.json is damaged" in refused.stderr
    resumed = dsinga("train", "--resume", "job.conf")
    assert resumed.returncode == 0
    assert "the run goes on from the checkpoint before it, work/checkpoint/step10" in resumed.stderr
    assert dsinga("train", "job.conf", "--resume", "work/checkpoint/step10", "--set", "train_steps=30").returncode == 0
    assert (folder / "work" / "checkpoint" / "step30").is_dir()


def test_a_disk_that_is_full_at_the_end_is_an_error(dsinga: Dsinga, folder: Path) -> None:
    with files_of_at_most(1000):
        ended = dsinga("train", "job.conf")
    assert ended.returncode == 1
    assert "step20 cannot be written" in ended.stderr
    assert (folder / "work" / "metrics.jsonl").exists()
