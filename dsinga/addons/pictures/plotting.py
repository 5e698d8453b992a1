"""Pictures by Matplotlib: images, wrong predictions, confusion matrices, curves of scores and of learning rates.

They need Matplotlib: ``pip install 'dsinga[plot]'``. The metrics of a run are drawn by its history,
:meth:`dsinga.monitor.History.plot`. Each function returns Matplotlib's axes, as pandas does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.pictures.history_plot import plot_curves, single_axes
from dsinga.addons.pictures.history_plot import plot_returns as returns
from dsinga.addons.pictures.record_plots import plot_confusion_matrix as confusion_matrix
from dsinga.addons.pictures.record_plots import plot_images as images
from dsinga.addons.pictures.record_plots import plot_wrong_predictions as wrong_predictions
from dsinga.base.errors import UserError
from dsinga.base.score_curves import average_precision, binary_columns, counts_by_score, roc_auc
from dsinga.job import Job, LRGenConf, UpdaterConf
from dsinga.training import schedule

__all__ = [
    "confusion_matrix", "images", "learning_rates", "precision_recall_curve", "returns", "roc_curve",
    "wrong_predictions",
]  # fmt: skip


def learning_rates(schedules: Any, steps: int = 0, *, ax: Any = None) -> Any:
    """Draw the learning rate of each step, from 0 to ``steps`` - 1.

    Args:
        schedules: a schedule such as ``nn.CosineDecay(0.1, 1000)``, an optimizer, or a job, whose learning rate is
            drawn; or a mapping from names for the legend to these.
        steps: how many steps are drawn; by default the ``train_steps`` of a job.
        ax: the Matplotlib axes to draw on; by default they are new.

    Returns the axes. Raises UserError where Matplotlib is missing, for what has no learning rate, and without
    ``steps``, unless it is a job that has them.
    """
    by_name = schedules if isinstance(schedules, Mapping) else {"": schedules}
    curves = {name: _rates(item, steps) for name, item in by_name.items()}
    return plot_curves(curves, "step", "learning rate", ax)


def _rates(item: Any, steps: int) -> list[tuple[float, float]]:
    """Return (step, learning rate) for each step of a schedule, an updater or a job."""
    if isinstance(item, Job):
        steps, item = steps or item.train_steps, item.updater
    conf = item.learning_rate if isinstance(item, UpdaterConf) else item
    if not isinstance(conf, LRGenConf):
        raise UserError(f"a learning rate is that of a schedule, an optimizer or a job, not of {item!r}")
    if steps < 1:
        raise UserError("say how many steps are drawn, as in steps=1000")
    rate = schedule(conf)
    return [(step, rate(step)) for step in range(steps)]


MOST_CURVES = 12  # on one picture
INCHES = 4.0


def roc_curve(labels: Any, scores: Any, *, classes: Sequence[str] = (), ax: Any = None, **options: Any) -> Any:
    """Draw the share of right alarms by that of false alarms, as the threshold of the score falls.

    Args:
        labels: 0 and 1 (N,) for one score a record, classes (N,) for a score of each class, or 0 and 1 (N, labels).
        scores: (N,), (N, 1) or, with a column for each class or label, (N, columns), such as ``model.predict(x)``. Of
            two classes the second is drawn, of more each one against the others.
        classes: the names of the columns; by default their numbers.
        ax: the Matplotlib axes to draw on, such as those of another call; by default they are new.
        options: further arguments of Matplotlib's ``Axes.plot``.

    The legend has the area under each curve. Returns the axes. Raises UserError where Matplotlib is missing, or the
    arrays do not fit each other.
    """

    def curve(yes: np.ndarray, no: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.append(0, no / no[-1]), np.append(0, yes / yes[-1])

    axis = _draw("roc_auc", roc_auc, curve, labels, scores, classes, ax, options)
    axis.plot([0, 1], [0, 1], color="gray", linewidth=0.8, linestyle=":")
    axis.set(xlabel="share of false alarms", ylabel="share of right alarms")
    return axis


def precision_recall_curve(
    labels: Any, scores: Any, *, classes: Sequence[str] = (), ax: Any = None, **options: Any
) -> Any:
    """Draw precision by recall, as the threshold of the score falls; the legend has the average precision.

    Arguments, result and faults are those of :func:`roc_curve`. The steps are those whose area the average
    precision is.
    """

    def curve(yes: np.ndarray, no: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        precision = yes / (yes + no)
        return np.append(0, yes / yes[-1]), np.append(precision[0], precision)

    options = {"drawstyle": "steps-pre", **options}
    axis = _draw("average_precision", average_precision, curve, labels, scores, classes, ax, options)
    axis.set(xlabel="recall", ylabel="precision")
    return axis


def _draw(
    metric: str,
    area: Callable[[np.ndarray, np.ndarray], float],
    curve: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    labels: Any,
    scores: Any,
    classes: Sequence[str],
    ax: Any,
    options: dict[str, Any],
) -> Any:
    """Draw the curve of each column of scores, with its area in the legend; return the axes."""
    labels, scores = np.asarray(labels), np.asarray(scores)
    if scores.ndim not in (1, 2) or not len(scores) or len(labels) != len(scores):
        raise UserError(
            f"give as many labels as rows of scores, (N,) or (N, classes), not shapes {labels.shape} and {scores.shape}"
        )
    if np.isnan(scores).any():
        raise UserError("some scores are NaN; leave these records out")
    columns = binary_columns(metric, labels, scores)
    if len(columns) > MOST_CURVES:
        raise UserError(f"there are {len(columns)} curves, more than {MOST_CURVES}: give some columns of the scores")
    names = list(classes) or [str(number) for number in range(len(columns))]
    if len(columns) == 1 and len(names) == 2:
        names = names[1:]  # the second class is drawn
    if len(names) != len(columns):
        raise UserError(f"there are {len(columns)} curves, but {len(names)} names; give each a name")
    axis = single_axes(ax, INCHES, INCHES)
    for name, (answers, column) in zip(names, columns, strict=True):
        _, yes, no = counts_by_score(answers, column)
        if not yes[-1] or not no[-1]:
            raise UserError(
                f"all records have one answer for {name!r}, so that there is no curve; give records of both, or leave "
                "the column out"
            )
        text = f"{area(answers.astype(int), column):.3f}"
        label = text if len(columns) == 1 and not classes else f"{name}: {text}"
        axis.plot(*curve(yes, no), **{"label": label, **options})
    axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    axis.legend(loc="lower center" if metric == "average_precision" else "lower right", fontsize=8)
    return axis
