"""Where a resumed run goes on in the data: at the same record, also with batches of another size."""

from __future__ import annotations

import logging
from pathlib import Path

from dsinga.base.advice import option, short_path
from dsinga.base.errors import UserError
from dsinga.checkpoint import latest
from dsinga.checkpoint.metadata import DamagedFile, read_metadata
from dsinga.job.checks import check_schedules
from dsinga.loop.checkpoints import check_loop_state, offset_to_resume
from dsinga.loop.initial_state import find_checkpoint
from dsinga.reading.checked_job import CheckedJob, rows_per_step

_log = logging.getLogger(__name__)


def place_in_data(checked: CheckedJob, workspace: Path | None, resume: bool | Path) -> tuple[CheckedJob, bool | Path]:
    """Return the job that goes on at the same record with batches of another size, and the checkpoint to resume from.

    Steps count on, and ``epochs`` are those of records: the job's ``train_steps`` follow. Both are returned as they are
    where all batches have one size. Raises UserError where the job has fewer epochs than the checkpoint.
    """
    job = checked.job
    rows = 0 if job.reinforcement else rows_per_step(job)
    newest = resume if isinstance(resume, Path) else latest(workspace / "checkpoint") if resume and workspace else None
    if newest is None or not rows or _is_at(newest, rows):
        return checked, resume
    path, checkpoint = find_checkpoint(workspace, resume)
    check_loop_state(path, checkpoint.loop)
    offset = offset_to_resume(checkpoint.step, checkpoint.loop, rows)
    job = job.with_record_offset(offset)
    if job.epochs:
        epochs = checked.with_job(job).epochs
        steps = epochs.end(job.epochs)
        if steps < checkpoint.step:
            least, done = epochs.done(checkpoint.step - 1) + 1, epochs.at(checkpoint.step)
            raise UserError(
                f"{path} is beyond the job's {job.epochs} epochs: the run has done {done:g}; give "
                f"{option('epochs', str(least))} or more"
            )
        job = job.replace(train_steps=steps)
        check_schedules(job)
    _log.info(
        "%s: the run goes on with %d records a step, after %d records", short_path(path), rows,
        offset + checkpoint.step * rows,
    )  # fmt: skip
    return checked.with_job(job), path


def _is_at(path: Path, rows: int) -> bool:
    """Return whether steps of so many rows, from step 0 on, lead to the place of a checkpoint; False for damaged ones.

    Its other files are not read: they may have gigabytes.
    """
    try:
        metadata = read_metadata(path)
    except DamagedFile:
        return False
    check_loop_state(path, metadata.loop)
    return offset_to_resume(metadata.step, metadata.loop, rows) == 0
