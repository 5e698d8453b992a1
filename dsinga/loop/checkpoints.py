"""Writes the checkpoints of a run to its workspace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dsinga.checkpoint import latest_step, remove_old_checkpoints, write_checkpoint
from dsinga.engine.engine import Snapshot
from dsinga.job import Job, redact_job, to_text


class Checkpoints:
    """The folder of the checkpoints of a run.

    ``topology`` is the topology in words, ``check`` is called before each checkpoint is written, and raises RunError
    where it must not be; ``saved`` is called after each one that was written.
    """

    def __init__(
        self,
        job: Job,
        topology: str,
        folder: Path,
        saved: Callable[[], None] | None = None,
        check: Callable[[], None] | None = None,
    ):
        self._job, self._folder, self._saved, self._check = job, folder, saved, check
        self._meta = {"job": to_text(redact_job(job)), "seed": job.seed, "topology": topology}

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, and remove those checkpoints that the job does not keep.

        Raises RunError.
        """
        if self._check is not None:
            self._check()
        params, state, loop = snapshot.params, dict(snapshot.state or {}), dict(snapshot.loop or {})
        write_checkpoint(self._folder, snapshot.step, params, state, self._meta, loop)
        remove_old_checkpoints(self._folder, self._job.checkpoint_keep)
        if self._saved is not None:
            self._saved()

    def write_newer(self, snapshot: Snapshot) -> None:
        """Write a snapshot from which a run can resume, unless there is a checkpoint of its step or a later one."""
        if snapshot.loop is not None and snapshot.state is not None and latest_step(self._folder) < snapshot.step:
            self.write(snapshot)
