"""Checkpoints of a run of reinforcement learning, from which it goes on with the same bits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsinga.checkpoint import directory
from dsinga.errors import UserError
from dsinga.rl.on_policy import LearningLoop

FOLDER = "checkpoint"  # of the workspace


def write_checkpoint(workspace: Path, loop: LearningLoop, run: Mapping[str, Any], keep: int = 0) -> Path:
    """Write ``<workspace>/checkpoint/step<N>`` after N steps of the environments; return its path.

    ``run`` is what the run goes on from besides ``loop``. Only the ``keep`` newest checkpoints stay, unless 0.
    Raises RunError where the disk cannot be written.
    """
    algorithm, root = loop.agent.algorithm, workspace / FOLDER
    state = {"learning": loop.state(), "run": run}
    meta = {"algorithm": type(algorithm).__name__}
    path = directory.write_checkpoint(
        root, loop.statistics.steps, algorithm.params, algorithm.updater.state, meta, state
    )
    directory.remove_old_checkpoints(root, keep)
    return path


def restore_checkpoint(
    source: Path, loop: LearningLoop, expected: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """Take over the checkpoint ``source``, or the newest undamaged one in the workspace ``source``.

    Return what was given as ``run``, and sentences about damaged checkpoints. Raises UserError where there is none, and
    where ``run`` has other values than ``expected``.
    """
    faults: list[str] = []
    if directory.is_checkpoint(source):
        checkpoint = directory.read_checkpoint(source)
    else:
        newest = directory.read_newest_checkpoint(source / FOLDER)
        if newest is None:
            raise UserError(f"there is no checkpoint to resume from in {source}; train without resume first")
        _, checkpoint, faults = newest
    if "learning" not in checkpoint.loop:
        raise UserError(f"{source} has no checkpoint of rl.train; agent.restore reads those of agent.save")
    run = checkpoint.loop["run"]
    for name, value in expected.items():
        if run.get(name, value) != value:
            raise UserError(
                f"the saved run had {name} {run[name]!r}, this one has {value!r}; resume with the same, or begin a new "
                "run with agent.restore(folder of the saved run)"
            )
    loop.restore(checkpoint.loop["learning"])
    return run, faults


def has_checkpoint(workspace: str | os.PathLike[str]) -> bool:
    """Whether a workspace has a checkpoint."""
    return directory.latest(Path(workspace) / FOLDER) is not None
