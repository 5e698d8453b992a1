"""Cuts runs by signals and resumes them: ``python -m tools.faults.cuts FACE CLUSTER WORKSPACE SIGNAL ...``.

A case, of four words, trains by a face of dsinga in a process of its own, which gets the signal after the step CUT.
Then another process checks what was kept: with a workspace, the run that goes on has the bits of an unbroken one.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dsinga
from dsinga import nn
from dsinga.checkpoint import latest, read_params
from dsinga.cluster import connect
from dsinga.data import write_store
from dsinga.extensions import Extension, LoopView
from dsinga.job import Job
from tools.faults.forked import Ended, run_forked
from tools.faults.moments import AfterStep
from tools.faults.verdicts import run_dsinga

CUT, LAST = 7, 30  # the step after which the signal comes, and the last one
SEARCHES = {"seed": [0, 1, 2]}
SECONDS = 280.0  # all that a test may take
NONE, CLIENT, WORKERS, PROCESSES = "none", "client", "workers", "processes"  # where there are Dask workers
INTERRUPTED = 130
UNBROKEN = "unbroken.npz"  # what an unbroken run has returned

JOB = """name: "cut"
train_steps: 30
disp_freq: 5
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.1 } }
extension { user_type: "Cut" freq: 1 }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "blobs.zarr" batchsize: 30 shape: 2 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kGaussian std: 0.1 } } param { name: "b" } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


class Case(NamedTuple):
    """A face of dsinga, where its Dask workers are, whether it has a workspace, and the signal that comes."""

    face: str
    cluster: str
    workspace: bool
    number: int

    @property
    def status(self) -> int:
        """The exit status with which the process has to end."""
        if self.number == signal.SIGINT:
            return INTERRUPTED
        return 75 if self.face.startswith("dsinga ") else -self.number


SIGNALLED = AfterStep(CUT)  # this process


@dsinga.register("extension", "Cut")
class Cut(Extension):
    """Sends the signal of a case from the training loop."""

    def __init__(self, conf: Any = None):
        self.trigger = SIGNALLED.trigger

    def run(self, loop: LoopView) -> None:
        """Send the signal if it is time."""
        SIGNALLED.run(loop)


@contextlib.contextmanager
def dask_workers(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the arguments that let a face use Dask workers."""
    if kind == CLIENT:
        with connect(workers=2) as client:
            yield {"client": client, "workers": 2}
    elif kind == PROCESSES:
        from distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster) as client:
            yield {"client": client, "workers": 2}
    else:
        yield {"workers": 2} if kind == WORKERS else {}


def resumed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for a face that resumes if there is something to resume from."""
    return {**options, **({"resume": "auto"} if options.get("workspace") else {})}


def run_command(options: Mapping[str, Any]) -> Any:
    """Train by the command line."""
    words = [f"--{name}={value}" for name, value in resumed(options).items()]
    status = run_dsinga(["train", "job.conf", *words])
    if status:
        sys.exit(status)
    return read_params(options["workspace"]) if options.get("workspace") else None


def run_search_command(options: Mapping[str, Any]) -> Any:
    """Search by the command line."""
    words = [f"--{name}={value}" for name, value in options.items() if name != "workers"]
    more = ["--resume"] if options.get("workspace") and os.path.exists(options["workspace"]) else []
    status = run_dsinga(["search", "job.conf", "--set", "seed=0,1,2", *words, *more])
    if status:
        sys.exit(status)
    return read_scores(Path(options["workspace"])) if options.get("workspace") else None


def run_train(options: Mapping[str, Any]) -> Any:
    """Train by ``dsinga.train``."""
    return dsinga.train("job.conf", **resumed(options), progress=False).params


def run_search(options: Mapping[str, Any]) -> Any:
    """Search by ``dsinga.search``."""
    options = dict(options)
    resume = bool(options.get("workspace")) and os.path.exists(options["workspace"])
    result = dsinga.search("job.conf", SEARCHES, **options, resume=resume, progress=False)
    if options.get("workspace"):
        return read_scores(Path(options["workspace"]))
    return {str(row["number"]): np.asarray(row["score"]) for row in result}


def records() -> tuple[np.ndarray, np.ndarray]:
    """Return records and labels."""
    labels = np.arange(300) % 3
    return np.random.default_rng(0).normal(labels[:, None], 0.1, (300, 2)).astype(np.float32), labels


def run_fit(options: Mapping[str, Any]) -> Any:
    """Train by ``fit`` of a model."""
    model = nn.Sequential([nn.Input((2,)), nn.Dense(3)])
    model.compile(nn.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    model.fit(*records(), batch_size=30, train_steps=LAST, **resumed(options), callbacks=[Cut()], progress=False)
    return model.result.params


def run_estimator(options: Mapping[str, Any]) -> Any:
    """Train by ``fit`` of an estimator."""
    from dsinga import estimators

    net: Job = dsinga.load("job.conf")
    options = {name: value for name, value in options.items() if name == "client"}
    return estimators.Classifier(net).fit(*records(), **options).params_


def run_agent(options: Mapping[str, Any]) -> Any:
    """Train an agent by ``rl.train``."""
    from dsinga import rl
    from tests.support.rl_cases import actor_critic

    spaces = rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))
    agent = rl.Agent(rl.PPO(actor_critic(), spaces, seed=0), seed=0)
    options = {name: value for name, value in options.items() if name != "workers"}
    settings: dict[str, Any] = {"environments": 2, "rollout_steps": 4, "evaluation_episodes": 0, "log_every": 8}
    result = rl.train(
        agent,
        "CartPole-v1",
        steps=80,
        **settings,
        **resumed(options),
        progress=False,
        extensions=[lambda n, _: SIGNALLED.look(n)],
    )
    return result.params


# What the processes of all faces import, of some faces, and of those with Dask workers: imported once for all.
MODULES = ["dsinga.commands.cli", "dsinga.ops.onednn"]
MODULES_OF_FACES = {"estimator.fit": ["dsinga.estimators"], "rl.train": ["tests.support.rl_cases", "gymnasium.envs"]}
MODULES_OF_DASK = ["dsinga.cluster.run.driver", "distributed.http.scheduler.prometheus"]
MODULES_OF_DASK += ["distributed.http.worker.prometheus"]
FACES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "dsinga train": run_command,
    "dsinga search": run_search_command,
    "train": run_train,
    "search": run_search,
    "model.fit": run_fit,
    "estimator.fit": run_estimator,
    "rl.train": run_agent,
}


def read_scores(workspace: Path) -> dict[str, np.ndarray]:
    """Return the scores of a search by number, from its table."""
    with open(workspace / "search.csv", newline="") as file:
        return {row["number"]: np.asarray(float(row["score"])) for row in csv.DictReader(file)}


def cut_run(case: Case, folder: Path) -> int:
    """Train by a face, and be ended by the signal."""
    os.chdir(folder)
    logging.basicConfig(level=logging.INFO)
    SIGNALLED.number = case.number
    with contextlib.ExitStack() as stack:
        try:
            options = stack.enter_context(dask_workers(case.cluster))
            FACES[case.face]({**options, **({"workspace": "work"} if case.workspace else {})})
        except KeyboardInterrupt as interrupt:
            print(f"interrupted: {interrupt}", flush=True)
            return INTERRUPTED
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def run_unbroken(case: Case, folder: Path) -> int:
    """Train by a face without a signal, and keep what is returned for :func:`check_kept`."""
    os.chdir(folder)
    with dask_workers(CLIENT if case.cluster == PROCESSES else case.cluster) as options:  # processes start slowly
        np.savez(UNBROKEN, **FACES[case.face]({**options, "workspace": "work"}))
    return 0


def check_kept(case: Case, folder: Path, unbroken: Path) -> int:
    """Check what a run that was cut has left, and that what goes on has the bits of the unbroken run in a folder."""
    os.chdir(folder)
    workspace = Path("work")
    assert not [*workspace.rglob("running.json")], "a workspace says that it is in use"
    if "search" in case.face:
        steps = [latest(path / "checkpoint") for path in workspace.glob("setting-*")]
        assert any(steps), "no run of the search has a checkpoint"
    else:
        path = latest(workspace / "checkpoint")
        assert path is not None, "no checkpoint was written"
        assert CUT <= int(path.name.removeprefix("step")), path
    with dask_workers(case.cluster) as options:
        params = FACES[case.face]({**options, "workspace": "work"})
    assert not [*workspace.rglob("running.json")]
    with np.load(unbroken / UNBROKEN) as expected:
        assert params.keys() == set(expected)
        for name, value in expected.items():
            assert params[name].tobytes() == value.tobytes(), name
    return 0


def check_cases(cases: list[Case], folder: Path) -> Iterator[tuple[Case, str]]:
    """Yield each case with what is wrong with it, "" if nothing is."""
    # Unbroken runs have numbers below 0; one serves all cases of its face and cluster.
    unbroken = {(case.face, case.cluster): case for case in cases if case.workspace}
    runs = dict(enumerate(cases)) | dict(enumerate(unbroken.values(), start=-len(unbroken)))
    folders = {number: folder / f"case{number}" for number in runs}
    for path in folders.values():
        path.mkdir()
        write_inputs(path)
    expected = {(case.face, case.cluster): folders[number] for number, case in runs.items() if number < 0}
    tasks = [
        (number, functools.partial(cut_run if number >= 0 else run_unbroken, case, folders[number]))
        for number, case in sorted(runs.items())
    ]
    left: dict[int, Callable[[], int]] = {}
    for ended in run_forked(tasks, folder, SECONDS, os.cpu_count() or 1):
        number, case = ended.number, runs[ended.number]
        if number < 0:
            assert ended.status == 0, ended.output
        elif ended.status != case.status:
            yield case, f"it ended with {ended.status}, not {case.status}: {ended.output}"
        elif case.workspace:
            place = expected[case.face, case.cluster]
            left[number] = functools.partial(check_kept, case, folders[number], place)
        else:
            yield case, ""
    ends: Iterator[Ended] = run_forked(left.items(), folder, SECONDS, os.cpu_count() or 1)
    for ended in ends:
        yield cases[ended.number], f"what was kept is wrong: {ended.output}" if ended.status else ""


def write_inputs(folder: Path) -> None:
    """Write the job and its records."""
    (folder / "job.conf").write_text(JOB, encoding="utf-8")
    write_store(folder / "blobs.zarr", [records()])


def import_modules(cases: list[Case]) -> None:
    """Import what the processes of these cases need."""
    modules = list(MODULES)
    for case in cases:
        modules += MODULES_OF_FACES.get(case.face, [])
        modules += MODULES_OF_DASK if case.cluster != NONE or "search" in case.face else []
    for name in dict.fromkeys(modules):
        importlib.import_module(name)


def main() -> int:
    """Check the cases that the arguments name, four words each; print what is wrong."""
    for name in ("HUP", "QUIT", "INT"):  # of nohup, and of shells that start a command in the background
        number = getattr(signal, f"SIG{name}")
        signal.signal(number, signal.default_int_handler if name == "INT" else signal.SIG_DFL)
    words = sys.argv[1:]
    cases = [
        Case(face, cluster, workspace == "True", signal.Signals[name])
        for face, cluster, workspace, name in zip(*(words[place::4] for place in range(4)), strict=True)
    ]
    import_modules(cases)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="dsinga-cuts-") as folder:
        for case, fault in check_cases(cases, Path(folder)):
            failed += bool(fault)
            name = signal.Signals(case.number).name
            print(f"{case.face}, {case.cluster}, workspace {case.workspace}, {name}: {fault or 'right'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
