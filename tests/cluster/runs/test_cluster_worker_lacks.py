"""Workers without dsinga, with another version, without oneDNN, without records: one message before a run."""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import dask.config
import pytest
import zarr
from distributed import Client, LocalCluster, Status

from dsinga import RunError, UserError, build_net, evaluate, train
from dsinga.api import roots
from dsinga.base.version import __version__
from dsinga.cluster.dask.worker_calls import run_on_workers
from dsinga.cluster.dask.worker_memory import share
from dsinga.cluster.preflight import worker_lacks
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.preflight.worker_lacks import OLDEST_DASK, Lack, describe_lacks, describe_mixed_bf16, find_lacks
from dsinga.job import Job, Phase
from dsinga.ops import get_ops
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import initial_values
from tests.support.executed_pages import ROOT
from tests.support.worker_processes import OLDER_DSINGA, WITHOUT_DSINGA, WITHOUT_ONEDNN, worker_processes

pytestmark = pytest.mark.process
PRELOADS = {"ready": "", "without": WITHOUT_DSINGA, "older": OLDER_DSINGA, "numpy": WITHOUT_ONEDNN}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a scheduler without workers, which tries for an hour to reach a worker that has gone."""
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1h"}),
        LocalCluster(n_workers=0, dashboard_address=":0", scheduler_kwargs={"dashboard": False}) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def addresses(client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The addresses of a worker for each entry of PRELOADS."""
    with worker_processes(client, PRELOADS, tmp_path_factory.mktemp("workers")) as addresses:
        yield addresses


class UsersUpdater:
    """Stands for an object of a class of the user's."""


class Deadly:
    """Ends the process that loads it."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.ci
def test_each_worker_is_named_with_what_it_lacks_and_the_remedy(client, addresses, job: Job):
    with pytest.raises(UserError) as error:
        train(job, client, workers=len(PRELOADS), progress=False)
    first, without, older = sorted(str(error.value).splitlines(), key=lambda line: "0.0.9" in line)
    assert first == "the Dask cluster is not ready for this run:"
    pip = f"{sys.executable} -m pip install dsinga=="
    assert f"- the Dask worker {addresses['without']} has no dsinga; install it there with `{pip}" in without
    assert 'client.register_plugin(distributed.PipInstall(["dsinga==' in without
    assert f"- the Dask worker {addresses['older']} has dsinga 0.0.9, the driver " in older
    assert "restart_workers=True)), or give the driver version 0.0.9" in older
    params = initial_values(build_net(job).params, job.seed)
    with pytest.raises(UserError, match="not ready") as refused:
        evaluate(job, params, client=client)
    assert sorted(str(refused.value).splitlines()) == sorted(str(error.value).splitlines())


@pytest.mark.ci
def test_a_worker_without_dsinga_lacks_the_records_and_code_too(client, addresses, job: Job, stores: Path):
    reader = CheckedJob(job, roots(job, None)).reader(Phase.kTrain)
    ready = sorted([addresses["ready"], addresses["numpy"]])
    check_workers_ready(client, ready, readers=[reader])
    with pytest.raises(UserError) as error:
        check_workers_ready(client, ready, objects={"the updater": UsersUpdater()}, readers=[reader])
    trouble = f"cannot load the updater: ModuleNotFoundError: No module named {__name__!r}"
    assert str(error.value) == (
        f"the Dask workers {', '.join(ready)} {trouble}; "
        f'install the module of its class there, or send it to all by client.upload_file("{__file__}")'
    )
    moved = stores.rename(stores.with_name("moved"))
    try:
        with pytest.raises(UserError) as error:
            check_workers_ready(client, [addresses["ready"], addresses["without"]], readers=[reader])
    finally:
        moved.rename(stores)
    path = stores / "train.zarr"
    lacks = [line for line in str(error.value).splitlines() if "cannot read" in line]
    remedy = "put the records where every worker finds them by the same path or URL"
    assert sorted(lacks) == sorted(
        [
            f"- the Dask worker {addresses['ready']} cannot read {path}: there is no store at {path}; {remedy}",
            f"- the Dask worker {addresses['without']} cannot read {path}: there is nothing there; {remedy}",
        ]
    )


@pytest.mark.ci
def test_other_records_under_the_same_path_are_refused(client, addresses, job: Job, stores: Path):
    reader = CheckedJob(job, roots(job, None)).reader(Phase.kTrain)
    path, aside = stores / "train.zarr", stores / "aside.zarr"
    path.rename(aside)
    (stores / "test.zarr").rename(path)
    try:
        with pytest.raises(UserError, match=r"it has 150 records of shape \(1, 8, 8\) .*, the driver 1000 records of"):
            check_workers_ready(client, [addresses["ready"]], readers=[reader])
    finally:
        path.rename(stores / "test.zarr")
        aside.rename(path)


@pytest.mark.ci
@pytest.mark.skipif(get_ops().name != "onednn", reason="this machine has no oneDNN")
def test_a_worker_without_onednn_is_a_warning_once(client, addresses, caplog, monkeypatch):
    monkeypatch.setattr(worker_lacks, "_warn_once", logging.getLogger("dsinga").warning)
    check_workers_ready(client, [addresses["numpy"]])
    assert re.fullmatch(
        f"the Dask worker {addresses['numpy']} computes with numpy, several times slower than with oneDNN: the kernel "
        "backend 'onednn' needs oneDNN 3 .*: pip install onednn-cpu-gomp",
        caplog.messages[-1],
    )
    check_workers_ready(client, [addresses["numpy"], addresses["ready"]])
    mixed = caplog.messages[-1]
    others = "computes with numpy, others with onednn( with numba)?: the run is as slow as the .*DSINGA_OPS=numpy in"
    assert re.match(f"the Dask worker {addresses['numpy']} {others}", mixed)
    assert "pip install onednn-cpu-gomp" in mixed


@pytest.mark.ci
def test_a_paused_worker_is_refused_because_its_tasks_would_not_start(client, addresses):
    def set_status(name: str, dask_worker=None) -> None:
        dask_worker.status = Status[name]

    ready = addresses["ready"]
    client.run(set_status, "paused", workers=[ready])
    try:
        with pytest.raises(UserError, match=f"the Dask worker {ready} is paused by Dask, .*; start it with"):
            check_workers_ready(client, [ready])
    finally:
        client.run(set_status, "running", workers=[ready])
    check_workers_ready(client, [ready])


@pytest.mark.ci
def test_a_worker_that_dies_meanwhile_is_noticed_at_once(client, addresses):
    """The scheduler would try for an hour to reach it (:func:`client`)."""
    doomed = addresses["numpy"]
    lost = f"the Dask worker {doomed} was lost"
    both = [doomed, addresses["ready"]]
    with pytest.raises(RunError, match=lost):
        check_workers_ready(client, [doomed], objects={"the updater": Deadly()})
    for check in (
        lambda: check_workers_ready(client, both),
        lambda: run_on_workers(client, both, os.getpid),
        lambda: share(client, [1, 2], both),
    ):
        with pytest.raises(RunError, match=lost):
            check()
    assert run_on_workers(client, [addresses["ready"]], os.getpid)[addresses["ready"]] != os.getpid()


REPORT = {
    "python": "{}.{}".format(*sys.version_info), "executable": "/venv/bin/python", "packages": {}, "dsinga": None,
    "import": "", "kernels": "", "no_kernels": "", "no_onednn": "", "no_bf16": "", "objects": {}, "stores": {},
}  # fmt: skip


VERSIONS = worker_lacks.versions()
OLDER = {"packages": {**VERSIONS, "dask": "2026.7.1", "distributed": "2025.12.0"}, "dsinga": __version__}
STORED = {"packages": {**VERSIONS, "zarr": "3.0.8"}, "stores": {"x.zarr": "AttributeError: no 'chunk_grid'"}}
STORED["dsinga"] = __version__
IMPORT = "ModuleNotFoundError: No module named 'zarr'"


@pytest.mark.parametrize(
    ("report", "predicate", "remedy"),
    [
        ({"python": "3.9"}, "runs Python 3.9, the driver 3.", ""),
        (OLDER, "has dask 2026.7.1, distributed 2025.12.0", f"dsinga needs {OLDEST_DASK} or newer: install dask "),
        (OLDER, "has dask 2026.7.1, distributed 2025.12.0", f" {dask.__version__}, distributed .*check=True"),
        (STORED, rf".*grid' \(it has zarr 3.0.8, the driver {zarr.__version__}\)", "the path"),
        ({"import": IMPORT}, f"cannot import dsinga: {IMPORT}", "with `/venv/bin/python -m pip install dsinga=="),
    ],
)
def test_what_a_worker_lacks_is_named_with_its_remedy(report: dict, predicate: str, remedy: str):
    (lack,) = find_lacks({**REPORT, **report}, {})
    assert re.match(predicate, lack.predicate)
    assert re.search(remedy, lack.remedy)


def test_many_workers_that_lack_the_same_are_counted():
    lack = Lack("has no dsinga", "install it")
    message = describe_lacks({"scheduler": [lack], **{f"tcp://{number}": [lack] for number in range(9)}})
    workers = "tcp://0, tcp://1, tcp://2, tcp://3 and 5 more"
    assert message == f"the Dask scheduler and the Dask workers {workers} have no dsinga; install it"
    assert describe_lacks({"tcp://0": []}) == ""


def test_versions_that_differ_are_named_with_those_of_the_driver(caplog):
    packages = worker_lacks.versions()
    other = {**REPORT, "packages": {**packages, "distributed": "2099.1.0"}}
    with caplog.at_level(logging.WARNING):  # Dask has set the level higher
        worker_lacks.warn_of_differences({"tcp://differs": other, "tcp://1": {**REPORT, "packages": packages}})
        reports = {name: {**REPORT, "kernels": f"onednn{numba}"} for name, numba in (("a", ""), ("b", " with numba"))}
        worker_lacks.warn_of_differences(reports)
    *messages, mixed = [record.getMessage() for record in caplog.records if record.name.startswith("dsinga")]
    assert re.match(
        "the Dask worker a computes with onednn, others with onednn with numba.* DSINGA_COMPILED=0 in", mixed
    )
    assert messages == [
        f"the Dask worker tcp://differs has distributed 2099.1.0, the driver distributed {packages['distributed']}; "
        "if tasks fail, give all the same versions (client.get_versions(check=True) shows all differences)"
    ]


def test_the_oldest_version_of_dask_is_that_of_the_package():
    requirements = (ROOT / "setup.cfg").read_text()
    assert f"    dask>={OLDEST_DASK}\n" in requirements
    assert f"    distributed>={OLDEST_DASK}\n" in requirements


@pytest.mark.parametrize(
    ("without", "has_bf16", "words"),
    [
        ("", None, ""),
        ("ab", None, ""),
        ("ab", False, ""),
        ("a", None, "the Dask worker a computes in float32 where others compute in kBF16"),
        ("ab", True, "the Dask workers a, b compute in float32 where others compute in kBF16"),
        ("a", False, "the Dask worker b computes in kBF16 where the workers of this run compute in float32"),
    ],
)
def test_processors_with_and_without_bfloat16_do_not_train_together(without, has_bf16, words):
    reports = {name: {"kernels": "onednn", "no_bf16": "it is old" if name in without else ""} for name in "ab"}
    message = describe_mixed_bf16(reports, has_bf16)
    assert message.startswith(words) if words else not message
