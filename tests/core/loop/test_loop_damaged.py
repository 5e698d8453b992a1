"""Checkpoints of format 1, which have no checksum, with changed states of the loop and of extensions."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsinga.api import train
from dsinga.base.errors import UserError
from dsinga.extensions import EarlyStopping, Extension, KeepBest, ReduceOnPlateau
from dsinga.job import Job
from tests.support.extension_runs import validating

BAD: list[tuple[list[str], Any, str]] = [
    (["rate_factors"], {"x": 1}, "is damaged: its loop has ValueError"),
    (["rate_factors"], {"3": "x"}, "is damaged: its loop has TypeError"),
    (["rate_factors"], 7, "is damaged: its loop has AttributeError"),
    (["metrics"], [], "is damaged: its loop has AttributeError"),
    (["metrics"], {"val/loss": "x"}, "is damaged: its loop has TypeError"),
    (["extensions"], [], "is damaged: its loop has AttributeError"),
    (["extensions", "KeepBest"], None, "is damaged: its loop has AttributeError"),
    (["extensions", "KeepBest", "extension"], [], "is not an object"),
    (["extensions", "KeepBest", "extension"], {"step": 3}, "of the extension KeepBest in the checkpoint does not"),
    (["extensions", "KeepBest", "trigger", "best"], "x", "state of the extension KeepBest in the checkpoint does not"),
    (["extensions", "EarlyStopping", "extension", "count"], "x", "extension EarlyStopping in the checkpoint does not"),
    (["extensions", "ReduceOnPlateau", "extension", "cooling"], [], "extension ReduceOnPlateau in the checkpoint does"),
]


def extensions() -> list[Extension]:
    """Return extensions with states."""
    return [EarlyStopping("val/loss", patience=9), ReduceOnPlateau("val/loss", patience=9), KeepBest("val/loss")]


def test_a_state_that_is_none_is_refused_in_one_message(job: Job, tmp_path: Path) -> None:
    job = validating(job, 1, 1, checkpoint_freq=5, train_steps=10)
    run = tmp_path / "run"
    train(job, workspace=run, extensions=extensions(), progress=False)
    path = run / "checkpoint" / "step10" / "checkpoint.json"
    fields = json.loads(path.read_text(encoding="utf-8")) | {"format": 1}
    del fields["checksum"]
    for keys, value, message in BAD:
        damaged = json.loads(json.dumps(fields))
        holder = damaged["loop"]
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = value
        path.write_text(json.dumps(damaged), encoding="utf-8")
        with pytest.raises(UserError, match=message):
            train(job, workspace=run, resume=path.parent, extensions=extensions(), progress=False)
    path.write_text(json.dumps(fields), encoding="utf-8")
    assert train(job, workspace=run, resume=path.parent, extensions=extensions(), progress=False).step == 10
