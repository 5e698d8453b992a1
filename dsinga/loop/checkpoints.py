"""Writes a run's checkpoints, and checks that a job fits the checkpoint that it resumes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.advice import how_to_resume, job_field, short_path
from dsinga.base.arrays import NamedParams
from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.checkpoint import latest, latest_finite, latest_step, remove_old_checkpoints, write_checkpoint
from dsinga.data import RecordNames
from dsinga.data.array_kinds import is_number
from dsinga.engine.engine import Snapshot
from dsinga.extensions.best_value import BAD_STATE, checked_number
from dsinga.job import Job, Phase, loads, redact_job, to_text
from dsinga.job.epochs import offset_of
from dsinga.net import filter_layers, input_layers
from dsinga.net.layer_classes import SAMPLE_WEIGHT, layer_class
from dsinga.reading.checked_job import names_of_training


class Checkpoints:
    """Writes the checkpoints of a run to their folder, and removes old ones.

    ``check`` is called before each write and may raise RunError to forbid it. ``saved`` is called after each write.
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
        if job.epochs and job.record_offset:
            job = job.replace(train_steps=0)  # the steps of this run alone, which had batches of another size before
        self._meta = {"job": to_text(redact_job(job)), "seed": job.seed, "topology": topology}
        self._meta["records"] = _digests(job)
        self._names = names_of_training(job.neuralnet)

    def write(self, snapshot: Snapshot) -> None:
        """Write a checkpoint of a state, and remove old ones as the job says. Raises RunError."""
        if self._check is not None:
            self._check()
        params = NamedParams(snapshot.params, self._names)
        state, loop = dict(snapshot.state or {}), dict(snapshot.loop or {})
        write_checkpoint(self._folder, snapshot.step, params, state, self._meta, loop)
        remove_old_checkpoints(self._folder, self._job.checkpoint_keep)
        if self._saved is not None:
            self._saved()

    def write_newer(self, snapshot: Snapshot) -> None:
        """Write a checkpoint of a resumable state, unless there is one as new or newer."""
        if snapshot.loop is not None and snapshot.state is not None and latest_step(self._folder) < snapshot.step:
            self.write(snapshot)


def _digests(job: Job) -> dict[str, dict[str, str]]:
    """Return hashes of the meanings of records and labels, by layer, to compare them when a run resumes."""
    digests = {}
    for layer in input_layers(job.neuralnet, Phase.kTrain):
        if (store := layer.store_conf) is not None:
            classes, *orders = RecordNames.of(store.records)
            columns = [name for axes in orders for axis in axes[1:] for name in _labels(axis, len(axes) == 2)]
            texts = {"classes": "\n".join(classes), "columns": "\n".join(columns)}
            for definition in store.definition.values():
                texts |= definition.learnt()
            digests[layer.name] = {what: text and sha256(text.encode()).hexdigest() for what, text in texts.items()}
    return digests


def _labels(axis: Sequence[str], are_columns: bool) -> Sequence[str]:
    """Return the labels along an axis, to compare them; numbered points differ in their order only."""
    if len(axis) == 1:
        return ()
    if are_columns or not all(map(is_number, axis[1:])):
        return ("column", *axis[1:]) if are_columns else axis
    return axis[0], *map(str, np.argsort([float(label) for label in axis[1:]]))


def check_records(path: Path, digests: Mapping[str, Mapping[str, str]], job: Job) -> None:
    """Raise UserError if records mean something else than in the run of a checkpoint."""
    for name, known in _digests(job).items():
        for what, digest in digests.get(name, {}).items():
            if digest and known.get(what, digest) not in ("", digest):
                raise UserError(
                    f"{path} is of a run whose records of layer {name!r} have other {what}, or these in another order; "
                    "resume with its records, or with its job, which puts tables and Datasets in order, or start anew"
                )


def check_training(path: Path, meta: Mapping[str, Any], job: Job) -> None:
    """Raise UserError if a job has other losses, other weights of records, or other blocks than a checkpoint's."""
    try:
        written = loads(str(meta["job"]))
    except (UserError, LookupError):  # components that are not registered here, or an older checkpoint
        return
    for what, before, now in zip(("losses", "weights of records"), _objective(written), _objective(job), strict=True):
        if before != now:
            raise UserError(
                f"{path} is of a run with other {what} ({listed(before)}) than the job ({listed(now)}); resume with "
                "those, or name it as checkpoint_path to start anew from its params"
            )
    if written.blocks != job.blocks:
        raise UserError(
            f"{path} is of a run with blocks: {written.blocks} (0: none), and the job has blocks: {job.blocks}, which "
            f"gives other bits; resume with blocks: {written.blocks}, or name it as checkpoint_path to start from its "
            "params"
        )


def _objective(job: Job) -> tuple[list[str], list[str]]:
    layers = filter_layers(job.neuralnet, Phase.kTrain)
    losses = [layer.type_name for layer in layers if layer_class(layer).is_loss]
    return losses, [layer.name for layer in layers if layer.name == SAMPLE_WEIGHT]


NO_CHECKPOINT = "no checkpoint was written"


def read_rate_factors(state: Mapping[str, Any]) -> dict[int, float]:
    """Read the factors of the learning rate from a checkpoint, by first step."""
    return {int(step): factor for step, factor in state.get("rate_factors", {}).items()}


def records_state(rows: int, offset: int) -> dict[str, int]:
    """Return the position in the records for a checkpoint: rows of a step, and their offset."""
    return {"rows": rows, "offset": offset}


def offset_to_resume(step: int, state: Mapping[str, Any], rows: int) -> int:
    """Return the ``record_offset`` that lets a job resume at the same record with another batch size."""
    records = state.get("records")
    return offset_of(step, records["rows"], records["offset"], rows) if records else 0


def check_loop_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raise UserError unless a checkpoint's state of the training loop has the right types."""
    try:
        for value in [*read_rate_factors(state).values(), *state.get("metrics", {}).values()]:
            checked_number(value)
        for value in state.get("records", {}).values():
            if type(value) is not int:
                raise TypeError(f"records has {str(value)[:40]!r}, which is no whole number")
        for name, parts in state.get("extensions", {}).items():
            if any(not isinstance(parts.get(part, {}), dict) for part in ("extension", "trigger")):
                raise TypeError(f"the state of the extension {name[:40]} is not an object")
    except BAD_STATE as error:
        raise UserError(
            f"{path / 'checkpoint.json'} is damaged: its loop has {type(error).__name__}: {str(error)[:200]}; "
            "resume from an earlier checkpoint"
        ) from None


def resume_hint(workspace: Path | None, step: int, kept: str = "") -> str:
    """Advise how to resume a run that ended after ``step`` steps."""
    path = latest(workspace / "checkpoint") if workspace else None
    if path is None and kept:
        return f"{step} steps were done; {kept}"
    if path is None:
        some = job_field("checkpoint_freq", "100")
        return f"{step} steps were done and {NO_CHECKPOINT}; have some with {some}"
    done = f"{step} steps were done; {kept}" if kept else f"{step} steps were done"
    return f"{done}; go on from {short_path(path)} with {how_to_resume()}"


def describe_last_good(workspace: Path | None) -> str:
    """Name the newest checkpoint of ``workspace`` that is intact and finite, for an error."""
    return describe_last_good_in(workspace / "checkpoint") if workspace else NO_CHECKPOINT


def describe_last_good_in(folder: Path) -> str:
    """Name the newest checkpoint in ``folder`` that is intact and finite, for an error."""
    if latest(folder) is None:
        return NO_CHECKPOINT
    path = latest_finite(folder)
    if path is None:
        return f"no checkpoint in {short_path(folder)} is intact and finite"
    return f"the last good checkpoint is {short_path(path)}"
