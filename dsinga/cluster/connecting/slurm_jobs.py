"""The jobs of Dask workers in SLURM's queue: their states, and which of them have ended."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from typing import Any

# Seconds between two questions to SLURM, which answers them for all users of a cluster.
QUERY_SECONDS = 20.0
# Seconds that SLURM may take to answer.
ANSWER_SECONDS = 10.0


class SlurmJobs:
    """The jobs of this user in SLURM's queue, asked for now and then.

    The processes given are those of a dask-jobqueue cluster (attributes ``job_id``, ``submit_command``,
    ``log_directory``, ``job_name``); others have no job.
    """

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None
        self._asked_at = -math.inf
        self._seen_at: dict[str, float] = {}  # when a job was first described: it is in the queue since before

    def describe(self, process: Any) -> str:
        """Return the job of a worker in words, "job 17: pending (Resources)", or "" if it has none."""
        job = getattr(process, "job_id", None)
        if not job:
            return ""
        state = (self._active(process) or {}).get(str(job))
        return f"job {job}: {state}" if state else f"job {job}"

    def ended(self, process: Any) -> str:
        """Return a text that says that the job of a worker has ended, and where its log is, or "" if it has not."""
        job, active = getattr(process, "job_id", None), self._active(process)
        if not job or active is None or str(job) in active or self._asked_at <= self._seen_at[str(job)]:
            return ""
        folder = process.log_directory
        log = f"{folder}/{process.job_name or 'worker'}-{job}.err" if folder else f"slurm-{job}.out"
        return f"the job {job}, whose log is {log}, has ended"

    def _active(self, process: Any) -> dict[str, str] | None:
        """Return the state of this user's jobs by id; None where SLURM is not there, or does not answer."""
        if getattr(process, "submit_command", None) != "sbatch" or not shutil.which("squeue"):
            return None
        self._seen_at.setdefault(str(process.job_id), time.monotonic())
        if time.monotonic() - self._asked_at >= QUERY_SECONDS:
            self._asked_at, self._states = time.monotonic(), _query()
        return self._states


def _query() -> dict[str, str] | None:
    """Return the state of each job of this user that waits or runs, as "running" or "pending (Resources)"."""
    command = ["squeue", "--me", "--noheader", "--format", "%A %T %r"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    states = {}
    for line in answer.splitlines():
        job, state, reason = line.split(maxsplit=2)
        states[job] = state.lower() if reason in ("None", "(null)") else f"{state.lower()} ({reason})"
    return states
