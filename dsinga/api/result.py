"""The result of a training run."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsinga.job import Job
from dsinga.monitor import NOT_METRICS, RECOVERY, History
from dsinga.net import NeuralNet

if TYPE_CHECKING:  # Dask is imported when there is something to run
    from dsinga.base.param_arrays import ParamArrays


@dataclass
class Result:
    """The result of a training run.

    Attributes:
        job: the job.
        params: float32 arrays by name.
        history: the metrics of the run.
        net: the training net.
        step: the number of steps done.
        workspace: the folder of metrics and checkpoints: a path, or a URL as a str; None without one.
        stopped: a sentence that says why training ended before ``train_steps``, "" if it did not.
        remarks: sentences of extensions about the result, such as which step's params these are.
        is_cut: whether it ended for a time only, as by kStopOnTime; a run with ``resume`` does the other steps.
        unsaved: why the workspace has no checkpoint of the last step, as after a write to a full disk; "" if it has.
    """

    job: Job
    params: ParamArrays
    history: History
    net: NeuralNet
    step: int
    workspace: Path | str | None
    stopped: str = ""
    remarks: Sequence[str] = ()
    unsaved: str = ""
    is_cut: bool = False

    def __repr__(self) -> str:
        last = {row["phase"]: row for row in self.history if row["phase"] != RECOVERY}
        ends = [f"{phase} {_figures(row)}" for phase, row in last.items()] or ["no metrics"]
        sentences = [sentence for sentence in (self.stopped, *self.remarks, self.unsaved) if sentence]
        return f"<Result of {self.job.name!r} after {self.step} steps: {'; '.join([*ends, *sentences])}>"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{self.history._repr_html_()}"


def _figures(row: dict[str, Any]) -> str:
    return ", ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in NOT_METRICS)
