"""The state of a training loop in a checkpoint, and how a run goes on from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsinga.advice import how_to_resume, job_field, short_path
from dsinga.checkpoint import latest, latest_finite
from dsinga.errors import UserError
from dsinga.extensions.best_value import BAD_STATE, checked_number

NO_CHECKPOINT = "no checkpoint was written"


def read_rate_factors(state: Mapping[str, Any]) -> dict[int, float]:
    """Return the factors of the learning rate, by the step from which each applies, from the state of a loop."""
    return {int(step): factor for step, factor in state.get("rate_factors", {}).items()}


def check_loop_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raise UserError unless ``state``, of the checkpoint ``path``, has the types of a training loop's state.

    Checkpoints of format 1 have no checksum by which a change of it would have been noticed.
    """
    try:
        for value in [*read_rate_factors(state).values(), *state.get("metrics", {}).values()]:
            checked_number(value)
        for name, parts in state.get("extensions", {}).items():
            if any(not isinstance(parts.get(part, {}), dict) for part in ("extension", "trigger")):
                raise TypeError(f"the state of the extension {name[:40]} is not an object")
    except BAD_STATE as error:
        raise UserError(
            f"{path / 'checkpoint.json'} is damaged: its loop has {type(error).__name__}: {str(error)[:200]}; "
            "resume from an earlier checkpoint"
        ) from None


def resume_hint(workspace: Path | None, step: int) -> str:
    """Return a text that says how to resume a run that has ended after ``step`` steps."""
    path = latest(workspace / "checkpoint") if workspace else None
    if path is None:
        some = job_field("checkpoint_freq", "100")
        return f"{step} steps were done and {NO_CHECKPOINT}; have some with {some}"
    return f"{step} steps were done; go on from {short_path(path)} with {how_to_resume()}"


def describe_last_good(workspace: Path | None) -> str:
    """Return a text that names the newest checkpoint of ``workspace`` that is intact and has finite numbers only."""
    return describe_last_good_in(workspace / "checkpoint") if workspace else NO_CHECKPOINT


def describe_last_good_in(folder: Path) -> str:
    """Return a text that names the newest checkpoint in ``folder`` that is intact and has finite numbers only."""
    if latest(folder) is None:
        return NO_CHECKPOINT
    path = latest_finite(folder)
    if path is None:
        return f"no checkpoint in {short_path(folder)} is intact and finite"
    return f"the last good checkpoint is {short_path(path)}"
