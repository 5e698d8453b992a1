"""Pictures by Matplotlib: images, wrong predictions, confusion matrices, curves of scores and of learning rates.

They need Matplotlib: ``pip install 'dsinga[plot]'``. The metrics of a run are drawn by its history,
:meth:`dsinga.monitor.History.plot`. Each function returns Matplotlib's axes, as pandas does.
"""

from collections.abc import Mapping
from typing import Any

from dsinga.addons.pictures.curve_plots import plot_precision_recall_curve as precision_recall_curve
from dsinga.addons.pictures.curve_plots import plot_roc_curve as roc_curve
from dsinga.addons.pictures.history_plot import plot_curves
from dsinga.addons.pictures.history_plot import plot_returns as returns
from dsinga.addons.pictures.record_plots import plot_confusion_matrix as confusion_matrix
from dsinga.addons.pictures.record_plots import plot_images as images
from dsinga.addons.pictures.record_plots import plot_wrong_predictions as wrong_predictions
from dsinga.base.errors import UserError
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
