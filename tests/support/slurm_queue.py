"""Batch jobs of the tests: submitting, waiting, and the params that they leave."""

import contextlib
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dsinga.checkpoint import latest, read_params
from dsinga.monitor import RECOVERY, History, read_metrics

# Seconds that a job of the tests may take, with a minute of waiting for the queue.
JOB_SECONDS = 110.0
POLL_SECONDS = 0.25

_local_params: dict[int, dict[str, np.ndarray]] = {}  # by number of steps


class Slurm:
    """The queue, seen from a folder with the scripts; ``environment`` is that of the jobs."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self.folder = folder
        self.steps = 400  # of a run
        self.workers = f"dask-worker-{uuid.uuid4().hex[:8]}"  # the name of jobs, which those of other tests do not have
        self._environment = environment
        self._jobs: list[str] = []

    def run(self, *command: str, seconds: float = JOB_SECONDS) -> str:
        """Run a command in the folder to its end and return what it prints."""
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=seconds
        )
        assert done.returncode == 0, f"{command} failed with\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command in the folder; it is ended with the block."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def submit(self, script: str) -> str:
        """Submit a script and return the id of its job."""
        self._jobs.append(self.run("sbatch", "--parsable", script).strip())
        return self._jobs[-1]

    def wait(self, job: str) -> None:
        """Wait until a job and all its array tasks have left the queue; fail unless all have succeeded."""
        self.until(lambda: not self.state(job), f"job {job} to end")
        ends = [line.split("=")[1] for line in self.show(job).split() if line.startswith("JobState=")]
        assert set(ends) == {"COMPLETED"}, f"{ends}: {self.output()}"

    def state(self, job: str) -> str:
        """Return the state of a job in the queue, of all of its array tasks, "" if it has left the queue."""
        lines = self.run("squeue", "--noheader", "--me", "--format", "%A %F %T").splitlines()
        return " ".join(line.split()[2] for line in lines if job in line.split()[:2])

    def show(self, job: str) -> str:
        """Return what SLURM knows of a job."""
        return self.run("scontrol", "show", "job", job)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + JOB_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"waited {JOB_SECONDS:g} s for {what}: {self.output()}"
            threading.Event().wait(POLL_SECONDS)

    def output(self) -> str:
        """Return what the jobs have printed."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.out")))

    def params(self, workspace: str) -> dict[str, np.ndarray]:
        """Return the params that a run has left at its end."""
        path = latest(self.folder / workspace / "checkpoint")
        assert path is not None, self.output()
        return read_params(path)

    def last_step(self, workspace: str) -> int:
        """Return the step of the last checkpoint of a run."""
        path = latest(self.folder / workspace / "checkpoint")
        assert path is not None, self.output()
        return int(path.name.removeprefix("step"))

    def recoveries(self, workspace: str) -> History:
        """Return the rows of recoveries of a run, which must have each step once."""
        rows = read_metrics(self.folder / workspace / "metrics.jsonl")
        steps = rows.phase("train")[:, "step"]
        assert steps == list(range(100, self.steps + 1, 100))
        return rows.phase(RECOVERY)

    def local_params(self) -> dict[str, np.ndarray]:
        """Return the params of a run of as many steps without a cluster, which is trained once for all tests."""
        if self.steps not in _local_params:
            self.run("python", "-c", "import fit; fit.fit(None, 'local')")
            _local_params[self.steps] = self.params("local")
        return _local_params[self.steps]

    def lengthen(self, steps: int) -> None:
        """Let runs take so many steps."""
        self.change("fit.py", f"train_steps={self.steps}", f"train_steps={steps}")
        self.steps = steps

    def change(self, script: str, old: str, new: str) -> None:
        """Replace a part of a script."""
        path = self.folder / script
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def delay_workers(self, seconds: int) -> None:
        """Let the first Dask worker of the batch script start so many seconds late, each further one later."""
        (self.folder / "late.sh").write_text(f'sleep $(({seconds} + 3 * SLURM_PROCID))\nexec "$@"\n')
        self.change("train.sh", "srun dask worker", "srun bash late.sh dask worker")

    def cancel_all(self) -> None:
        """Cancel all jobs that were submitted here."""
        if self._jobs:
            self.run("scancel", *self._jobs)
