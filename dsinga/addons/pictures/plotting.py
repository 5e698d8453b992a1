"""Draws images, wrong predictions, confusion matrices, curves of scores and of learning rates with Matplotlib.

All functions raise UserError without Matplotlib (``pip install 'dsinga[plot]'``), and return its axes. For the metrics
of a run, use :meth:`dsinga.monitor.History.plot`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.pictures.history_plot import new_axes, plot_curves, single_axes
from dsinga.addons.pictures.history_plot import plot_returns as returns
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.job import Job, LRGenConf, UpdaterConf
from dsinga.layers.metrics.score_curves import average_precision, binary_columns, counts_by_score, roc_auc
from dsinga.training import schedule

__all__ = [
    "confusion_matrix", "images", "learning_rates", "precision_recall_curve", "returns", "roc_curve",
    "wrong_predictions",
]  # fmt: skip


def learning_rates(schedules: Any, steps: int = 0, *, ax: Any = None) -> Any:
    """Draw the learning rate of each step, from 0 to ``steps`` - 1.

    Args:
        schedules: a schedule such as ``nn.CosineDecay(0.1, 1000)``, an optimizer, or a job; or a mapping from names for
            the legend to these.
        steps: the number of steps; defaults to a job's ``train_steps``.
        ax: Matplotlib axes; new ones by default.

    Raises UserError for an object without a learning rate, and without ``steps``, unless a job has them.
    """
    by_name = schedules if isinstance(schedules, Mapping) else {"": schedules}
    curves = {name: _rates(item, steps) for name, item in by_name.items()}
    return plot_curves(curves, "step", "learning rate", ax)


def _rates(item: Any, steps: int) -> list[tuple[float, float]]:
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
    """Draw the ROC curve: true positive rate by false positive rate, as the threshold of the score falls.

    Args:
        labels: 0 and 1 (N,) for one score a record, classes (N,) for a score of each class, or 0 and 1 (N, labels).
        scores: (N,), (N, 1) or, with a column for each class or label, (N, columns), such as ``model.predict(x)``. Of
            two classes the second is drawn, of more each one against the others.
        classes: the columns' names; their numbers by default.
        ax: Matplotlib axes; new ones by default.
        options: further arguments of Matplotlib's ``Axes.plot``.

    The legend has the area under each curve. Raises UserError if the arrays do not match.
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

    For arguments, result and errors see :func:`roc_curve`. The average precision is the area under the steps.
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


COLOURS = 3  # channels of an image in colour
MOST_CLASSES = 2000  # of a confusion matrix
MOST_COUNTED = 30  # most classes of a confusion matrix with counts written into it
SHORT_TITLE = 14  # characters that have room above an image


class ClassPredictions(NamedTuple):
    """The true and predicted classes of records, (N,), scores (N, classes) if known, and the classes' names."""

    true: np.ndarray
    predicted: np.ndarray
    scores: np.ndarray | None
    classes: Sequence[str] | range


def images(images: Any, titles: Sequence[Any] = (), *, columns: int = 10, **options: Any) -> np.ndarray:
    """Draw images side by side, all on the same scale of brightness.

    Args:
        images: an array (N, height, width), (N, 1, height, width), or (N, 3, height, width) for colours. Colours are
            uint8 or between 0 and 1; other numbers are scaled to this range.
        titles: for each image.
        columns: images in a row.
        options: further arguments of Matplotlib's ``Axes.imshow``, such as ``cmap="gray_r"`` for ink on paper.

    Raises UserError if there is no image, or the array has another shape.
    """
    check_whole("columns", columns, 1)
    pixels = _pixels(images)
    lines = max((str(title).count("\n") + 1 for title in titles if str(title)), default=0)
    axes = new_axes(len(pixels), columns, 1.0, 1.0 + 0.16 * lines)
    if pixels.ndim == 3:
        options = {"cmap": "gray", "vmin": pixels.min(), "vmax": pixels.max()} | options
    for axis in axes.flat:
        axis.axis("off")
    for axis, image in zip(axes.flat, pixels, strict=False):
        axis.imshow(image, **options)
    for axis, title in zip(axes.flat, titles, strict=False):
        axis.set_title(str(title), fontsize=8)
    return axes


draw_images = images  # in functions that have an argument of this name


def wrong_predictions(
    images: Any,
    labels: Any,
    predicted: Any,
    *,
    classes: Sequence[str] = (),
    count: int = 20,
    columns: int = 10,
    **options: Any,
) -> np.ndarray:
    """Draw wrongly predicted images, with their true and predicted classes.

    Args:
        images: an array of N images, as for :func:`images`.
        labels: the true classes (N,), as numbers or names.
        predicted: the predicted classes (N,), or scores (N, classes). The highest score is the prediction, and images
            with the highest ones come first.
        classes: names of the classes 0, 1, ...; by default their numbers, or the sorted names among labels.
        count: the most images to draw.
        columns: the number of images in a row.
        options: further arguments of Matplotlib's ``Axes.imshow``.

    Raises UserError if the arrays do not match.
    """
    check_whole("count", count, 1)
    predictions = _by_number(labels, predicted, classes)
    if len(images) != len(predictions.true):
        raise UserError(f"there are {len(images)} images and {len(predictions.true)} labels; give as many of both")
    wrong = np.flatnonzero(predictions.true != predictions.predicted)
    if predictions.scores is not None:
        wrong = wrong[np.argsort(-predictions.scores[wrong].max(axis=1), kind="stable")]
    if not len(wrong):
        axes = new_axes(1, 1, 3.0, 1.0)
        axes[0, 0].text(0.5, 0.5, "no wrong prediction", ha="center", va="center")
        axes[0, 0].axis("off")
        return axes
    titles = [_title(predictions, row) for row in wrong[:count]]
    return draw_images(np.asarray(images)[wrong[:count]], titles, columns=columns, **options)


def confusion_matrix(labels: Any, predicted: Any = None, *, classes: Sequence[str] = (), ax: Any = None) -> Any:
    """Draw the counts of records by true class (row) and predicted class (column).

    Colours show the counts' roots, so that single mistakes stay visible.

    Args:
        labels: the true classes (N,), as numbers or names. Without ``predicted``, the result of ``evaluate``, or the
            counts in its "confusion".
        predicted: the predicted classes (N,), or scores (N, classes), the highest being the prediction.
        classes: names of the classes 0, 1, ...; by default their numbers, or the sorted names among labels.
        ax: Matplotlib axes; new ones by default.

    Raises UserError if the arrays do not match.
    """
    if predicted is None:
        counts = _counts(labels)
        size, class_names = len(counts), classes or range(len(counts))
        if len(class_names) != size:
            raise UserError(f"there are {size} classes, but {len(class_names)} names; give each class a name")
    else:
        predictions = _by_number(labels, predicted, classes)
        size, class_names = len(predictions.classes), predictions.classes
    if size > MOST_CLASSES:
        raise UserError(f"the classes are numbered up to {size - 1:,}; a confusion matrix has at most {MOST_CLASSES:,}")
    if predicted is not None:
        counts = np.zeros((size, size), int)
        np.add.at(counts, (predictions.true, predictions.predicted), 1)
    inches = min(max(3.0, 1.0 + 0.36 * size), 12.0)
    axis = single_axes(ax, inches, inches)
    axis.imshow(np.sqrt(counts), cmap="Blues")
    for row, column in zip(*counts.nonzero(), strict=True) if size <= MOST_COUNTED else ():
        colour = "white" if counts[row, column] > counts.max() / 4 else "black"  # the root is above one half
        axis.text(column, row, counts[row, column], ha="center", va="center", color=colour, fontsize=8)
    names = [str(name) for name in class_names]
    axis.set_xticks(range(size), names, rotation=90 if max(map(len, names)) > 2 else 0)
    axis.set_yticks(range(size), names)
    axis.set(xlabel="predicted", ylabel="true")
    return axis


def _counts(table: Any) -> np.ndarray:
    if hasattr(table, "keys"):  # a dict, or the evaluation of a model
        if "confusion" not in table:
            raise UserError(
                'these results have no "confusion"; compile the model with metrics=["confusion"], or give the job a '
                "kConfusionMatrix layer"
            )
        table = table["confusion"]
    counts = np.asarray(table)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.dtype.kind not in "iu":
        raise UserError(f"counts must be whole numbers (classes, classes), not {counts.dtype} of shape {counts.shape}")
    return counts


def _pixels(images: Any) -> np.ndarray:
    """Convert images for Matplotlib: (N, height, width), or (N, height, width, 3) for colours."""
    try:
        pixels = np.asarray(images)
    except ValueError as error:  # of numpy, for a list of images that differ
        raise UserError(f"images must have one size ({error!s:.100})") from None
    if pixels.ndim == 4 and pixels.shape[1] == 1:
        pixels = pixels[:, 0]
    is_coloured = pixels.ndim == 4 and pixels.shape[1] == COLOURS
    if not len(pixels.shape) or not pixels.size or not (pixels.ndim == 3 or is_coloured):
        raise UserError(
            f"images must be an array (N, height, width), (N, 1, height, width) or (N, {COLOURS}, height, width), not "
            f"of shape {pixels.shape}; reshape it, with the channels before height and width"
        )
    if not is_coloured:
        return pixels
    low, high = pixels.min(), pixels.max()
    if pixels.dtype != np.uint8 and (low < 0 or high > 1):
        pixels = (pixels - low) / ((high - low) or 1)
    return pixels.transpose(0, 2, 3, 1)


def _by_number(labels: Any, predicted: Any, classes: Sequence[str]) -> ClassPredictions:
    names = [str(name) for name in classes]
    true, chosen, scores = np.asarray(labels), np.asarray(predicted), None
    if chosen.ndim == 2 and chosen.shape[1] > 1:
        scores, chosen = chosen, chosen.argmax(axis=1)
    if true.ndim != 1 or true.shape != chosen.shape or not len(true):
        raise UserError(
            f"labels must be class numbers (N,), and predictions (N,) or scores (N, classes), not of shapes "
            f"{true.shape} and {np.shape(predicted)}"
        )
    are_numbers = [array.dtype.kind in "iu" for array in (true, chosen)]
    if names:
        true, chosen = _numbers(true, names), _numbers(chosen, names)
    elif are_numbers[0] != are_numbers[1]:
        raise UserError(
            f"labels are {true.dtype} and predictions {chosen.dtype}; give both as class numbers, or as names, or the "
            "names as classes="
        )
    elif not all(are_numbers):
        values, numbers = np.unique(np.concatenate([true, chosen]), return_inverse=True)
        true, chosen, names = numbers[: len(true)], numbers[len(true) :], [str(value) for value in values]
    size = max(int(true.max()), int(chosen.max()), -1 if scores is None else scores.shape[1] - 1, len(names) - 1) + 1
    if min(true.min(), chosen.min()) < 0 or len(names) not in (0, size):
        raise UserError(
            f"class numbers are from {min(true.min(), chosen.min())} to {size - 1}, where {len(names) or 'no'} "
            "classes have names; the first class is 0, and each class needs a name"
        )
    return ClassPredictions(true, chosen, scores, names or range(size))


def _numbers(array: np.ndarray, names: Sequence[str]) -> np.ndarray:
    if array.dtype.kind in "iu":
        return array
    places = {name: number for number, name in enumerate(names)}
    for name in map(str, array):
        if name not in places:
            raise UserError(f"{name!r} is not among the classes{nearest_or_listed(name, names, 'these are')}")
    return np.array([places[name] for name in map(str, array)])


def _title(predictions: ClassPredictions, row: int) -> str:
    true, chosen = (predictions.classes[numbers[row]] for numbers in (predictions.true, predictions.predicted))
    title = f"{true}, not {chosen}"
    title = title if len(title) <= SHORT_TITLE else f"{true}\nnot {chosen}"
    scores = predictions.scores
    are_probabilities = scores is not None and scores.min() >= 0 and scores.max() <= 1
    return f"{title}\n{scores[row].max():.2f}" if scores is not None and are_probabilities else title
