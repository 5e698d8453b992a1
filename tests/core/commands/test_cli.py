"""The command line: its output, its files and its errors."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsinga.base.version import __version__
from dsinga.cluster.connecting import embedded
from dsinga.data import open_store
from tests.support.command_line import JOB, Dsinga, check_hosts_and_resources
from tests.support.small_disk import files_of_at_most


@pytest.mark.parametrize(
    ("command", "output", "forbidden"),
    [
        ("--help", "  train       Train the job", {"numpy", "rich", "dsinga.commands.training", "dsinga.addons"}),
        ("--version", "dsinga, version", {"rich", "dask", "dsinga.job", "dsinga.commands.training", "dsinga.addons"}),
        pytest.param("show job.conf", "27 values in params", {"dask", "distributed"}, marks=pytest.mark.ci),
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
    sentence = "nothing was left to do: the run has done its 20 train_steps; go on with more, as in --set train_steps=4"
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


def test_show_prints_the_layers_and_the_memory(dsinga: Dsinga) -> None:
    shown = dsinga("show", "job.conf")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"ip1 +kInnerProduct +data +20 x 3 +w1 b1 +27", shown.stdout)
    assert "27 values in params" in shown.stdout
    assert re.search(r"^a worker needs about 12\d MiB to train: params 0.0, .*fixed 120.0$", shown.stdout, re.MULTILINE)


def test_show_prints_the_parts_of_a_cut_net(dsinga: Dsinga) -> None:
    cut = ["--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "2"]
    options = "--set", "cluster.nworker_groups=2", "--set", "cluster.nserver_groups=2"
    shown = dsinga("show", "job.conf", *cut, *options)
    assert "topology: distributed Hogwild: 2 groups of 1 worker, 2 groups of 1 server, synchronised" in shown.stdout
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"ip1@0 +kInnerProduct +features 0-1 +20 x 2 +w1@0 b1@0 +18", shown.stdout)
    assert re.search(r"loss@1 +kSoftmaxLoss +rows 10-19 +10 x 3", shown.stdout)
    assert "worker 1: 9 values in params" in shown.stdout
    assert "between workers, an iteration: 190 numbers forward, 30 back" in shown.stdout
    tested = dsinga("show", "job.conf", "--phase", "test", *cut)
    assert "w1@1" in tested.stdout, tested.stderr
    assert ("worker 1 needs about" in shown.stdout, "needs about" in tested.stdout) == (True, False)
    refused = dsinga("show", "job.conf", "--set", "neuralnet.layer[ip1].partition_dim=1", "--partitions", "4")
    assert refused.returncode == 2
    assert "layer 'ip1': has 3 features, which cannot be cut over 4 workers" in refused.stderr


# One of each kind; the others are where each is found: tests/core/job, tests/core/net, tests/core/extensions.
BAD_JOBS = {
    "unknown field": ("train_steps: 20", "train_step: 20", r"job.conf:2: .*'train_step'.*did you mean 'train_steps'"),
    "unregistered layer": ("type: kInnerProduct", 'user_type: "Swish"', r"job.conf:12: .* 'Swish'; .* and --import FI"),
    "wrong shape": ("20 shape: 8", "20 shape: 9", r"job.conf:9: .*'data'.*the shape 9.*records of 8"),
    "too few classes": ("num_output: 3", "num_output: 2", r"job.conf:15: .*'loss': label 2 is none of its 2 classes"),
    "missing store": ("train.zarr", "trian.zarr", r"trian.zarr was not found(.|\n)*did you mean 'train.zarr'"),
    "syntax": ("updater {", "updater ((", r"job.conf:6:"),
    "unknown extension": ("disp_freq: 10", "extension { type: kEarlyStoping }", "job.conf:5: .*mean 'kEarlyStopping'"),
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
        (["test", "job.conf", "--checkpoint", "metrics.jsonl"], "metrics, not params; give --checkpoint ."),
        (
            ["test", "job.conf", "--checkpoint", "x", "--phase", "val"],
            "no records of phase val; give --phase train",
        ),
        (["train", "job.conf", "--epochs", "0.5"], "not 0.5; for a part of an epoch write --set train_steps=N"),
        (["train", "job.conf", "--set", "train_steps", "10"], "write --set train_steps="),
        (["data", "info", "job.conf"], "is a job file; dsinga show job.conf"),
        (["show", "job.conf", "--phase", "tset"], "the phases are train, val, test"),
        (["data", "info", "nowhere.zarr"], "nowhere.zarr was not found"),
        (["train", "job.conf", "--scheduler", "127.0.0.1:1"], "no Dask scheduler answers at 127.0.0.1:1"),
    ],
)
def test_bad_arguments_are_one_message_and_status_2(dsinga, arguments, message, monkeypatch):
    monkeypatch.setattr(embedded, "CONNECT_SECONDS", 1)
    Path("metrics.jsonl").write_text("{}\n")
    refused = dsinga(*arguments)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert message in refused.stderr


def test_unknown_kernels_are_refused_before_training(dsinga: Dsinga, folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("DSINGA_OPS", "onedn")
    refused = dsinga("train", "job.conf")
    assert refused.returncode == 2
    assert "there is no kernel backend 'onedn' (from $DSINGA_OPS); did you mean 'onednn'?" in refused.stderr
    assert not (folder / "work").exists()


@pytest.mark.parametrize("command", [("train",), ("test",), ("predict", "--layer", "ip1", "--out", "out.zarr")])
def test_all_that_compute_on_a_cluster_take_hosts_and_resources(dsinga: Dsinga, command: tuple[str, ...]) -> None:
    assert dsinga("train", "job.conf").returncode == 0  # for its checkpoint
    check_hosts_and_resources(dsinga, *command)


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


def test_a_wrong_command_and_a_folder_of_a_job_are_answered(dsinga, tmp_path):
    assert "No such command 'trian'; did you mean 'train'?" in dsinga("trian").stderr
    assert "dsinga example digits" in dsinga("train").stderr
    assert "did you mean 'job.conf'?" in dsinga("train", "jbo.conf").stderr
    assert "updater.learning_rate.base_lr" in dsinga("train", "job.conf", "--set", "lr=0.1").stderr
    (tmp_path / "job.conf").write_text("")
    assert f"give the job file in it, '{tmp_path / 'job.conf'}'" in dsinga("train", str(tmp_path)).stderr
    (tmp_path / "x.npy").touch()
    for arguments, remedy in (
        (("fit", "job.conf"), "'fit'; write train"),
        (("train", "--train_steps", "10"), "'--train_steps'; write --set train_steps=VALUE"),
        (("train", "--gpu"), "'--gpu'; write --device gpu"),
        (("train", "--epoch", "3"), "'--epoch'; did you mean '--epochs'?"),
        (("train", "--zzz"), "'--zzz'\n"),
        (("data", "import", "npz", "x.npy", "x.zarr"), 'x.npy\', mmap_mode="r")'),
        (("data", "import", "parquet", "x.parquet", "x.zarr"), "dsinga.table('x.parquet', label=...)"),
    ):
        assert remedy in dsinga(*arguments).stderr
