"""The scripts of docs/howto/slurm.md on a real SLURM; runs there have the bits of a run here."""

import csv
import signal

import pytest

from tests.support.slurm_queue import JOB_SECONDS, Slurm
from tests.support.small_job import assert_same

# A test may wait for several jobs; each such wait has a limit of its own.
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_a_batch_job_trains_though_its_workers_come_20_seconds_late(slurm: Slurm) -> None:
    slurm.delay_workers(20)
    slurm.wait(slurm.submit("train.sh"))
    assert "the job needs 4 workers, but the Dask cluster has no workers; waiting for others" in slurm.output()
    assert_same(slurm.params("run"), slurm.local_params())


def test_a_job_whose_time_is_over_is_requeued_and_goes_on(slurm: Slurm) -> None:
    """The signal that SLURM sends before the time limit is sent by scancel; a requeued job would be kept back."""
    slurm.lengthen(1500)
    job = slurm.submit("train.sh")
    checkpoints = slurm.folder / "run/checkpoint"
    slurm.until(lambda: (checkpoints / "step100").exists(), "a checkpoint")
    slurm.run("scancel", "--signal=TERM", "--batch", job)
    slurm.until(lambda: slurm.state(job) == "PENDING", "the job to be requeued")
    assert not (checkpoints / "step1500").exists()
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm.wait(job)
    assert "Restarts=1" in slurm.show(job)
    assert_same(slurm.params("run"), slurm.local_params())
    assert not slurm.recoveries("run")


def test_a_cancelled_job_is_not_requeued(slurm: Slurm) -> None:
    slurm.lengthen(100_000)
    job = slurm.submit("train.sh")
    slurm.until(lambda: (slurm.folder / "run/checkpoint/step100").exists(), "a checkpoint")
    slurm.run("scancel", job)
    slurm.until(lambda: not slurm.state(job), "the job to end")
    assert "JobState=CANCELLED" in slurm.show(job)


def test_workers_are_jobs_that_are_waited_for(slurm: Slurm) -> None:
    slurm.change("cluster.py", 'walltime="04', 'job_extra_directives=["--hold"], walltime="04')
    with slurm.started("python", "cluster.py") as driver:
        sentence = next(line for line in driver.stderr if "waiting for" in line)
        assert "waiting for 4 that SLURMCluster has requested (job " in sentence
        assert "pending (JobHeldUser)" in sentence
        slurm.run("scontrol", "release", f"jobname={slurm.workers}")
        out, err = driver.communicate(timeout=100)
    assert driver.returncode == 0, (out, err)
    assert_same(slurm.params("cluster"), slurm.local_params())


def test_a_job_that_ends_at_once_is_said(slurm: Slurm) -> None:
    slurm.change("cluster.py", 'queue="normal"', 'queue="normal", python="/nowhere/python"')
    with slurm.started("python", "cluster.py") as driver:
        _, err = driver.communicate(timeout=100)
    assert driver.returncode != 0
    assert "whose log is logs/dask-worker-" in err.splitlines()[-1]


def test_a_lost_job_is_replaced_and_the_run_goes_on(slurm: Slurm) -> None:
    slurm.lengthen(1500)
    with slurm.started("python", "adaptive.py") as driver:
        slurm.until(lambda: (slurm.folder / "adaptive/checkpoint/step100").exists(), "a checkpoint")
        workers = slurm.run("squeue", "--noheader", "--me", f"--name={slurm.workers}", "--format", "%A").split()
        assert len(workers) == 4
        slurm.run("scancel", workers[0])
        out, err = driver.communicate(timeout=100)
    assert driver.returncode == 0, (out, err)
    assert "was lost; started again" in err
    assert_same(slurm.params("adaptive"), slurm.local_params())
    assert "was lost" in slurm.recoveries("adaptive")[0, "lost"]


def test_jobs_that_end_during_the_run_are_left_in_order_and_replaced(slurm: Slurm) -> None:
    """The lifetimes of the script are shorter than the run, which Ctrl-C ends once a worker has been left."""
    slurm.lengthen(1_000_000)
    slurm.change("adaptive.py", '"225m"', '"10s"')
    slurm.change("adaptive.py", '"10m"', '"2s"')
    metrics = slurm.folder / "adaptive/metrics.jsonl"
    with slurm.started("python", "adaptive.py") as driver:
        slurm.until(lambda: metrics.exists() and '"phase": "recovery"' in metrics.read_text(), "a worker to be left")
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=JOB_SECONDS)
    assert "the run is ended" in err
    slurm.lengthen(slurm.last_step("adaptive"))
    assert_same(slurm.params("adaptive"), slurm.local_params())
    recoveries = slurm.recoveries("adaptive")
    assert set(recoveries[:, "steps_again"]) == {0}


def test_a_search_is_an_array_job(slurm: Slurm) -> None:
    job = slurm.submit("search.sh")
    slurm.wait(job)
    assert sorted(slurm.show(job).split().count(f"ArrayTaskId={task}") for task in range(3)) == [1] * 3
    slurm.run("python", "search.py")
    with (slurm.folder / "search/search.csv").open() as file:
        rows = {row["rate"]: row for row in csv.DictReader(file)}
    assert {*rows} == {"0.003", "0.03", "0.3"}
    train = "import dsinga, search; print(dsinga.train(search.job(0.3), progress=False).history[-1, 'loss'])"
    assert float(rows["0.3"]["score"]) == float(slurm.run("python", "-c", train))
