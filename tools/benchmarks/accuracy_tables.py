"""Accuracy on tables: the estimators beside boosted trees and the nets of other libraries, with the same splits.

    python -m tools.benchmarks.accuracy_tables --results FILE [--set NAME]... [--model NAME]... [--splits N]
    python -m tools.benchmarks.accuracy_tables --results FILE --print
    python -m tools.benchmarks.accuracy_tables --results FILE --page PAGE
    python -m tools.benchmarks.accuracy_tables --results FILE --small --model Ridge --model HistGradientBoosting ...

The first measures each model on each split of each set, in turn, and adds the figures to the file; what is there is not
measured again unless --again is given. The second prints the tables of a file in Markdown: the mean and the standard
deviation over the splits of the area under the curve (two classes), the accuracy (more) or R squared (a regression).
The third writes one table of a file, a row a set, into a page, between the marks that name this program. With --small
the sets are ten regressions of 263 to 8,645 records, most of which the package ISLP has (pip install --no-deps ISLP).
Peers are not needed by dsinga: run the first with a Python that has them, and this folder on its PYTHONPATH.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn import metrics

from tools.benchmarks.table import row_of
from tools.benchmarks.table_peers import PEERS, Frame, Predictions
from tools.benchmarks.table_sets import SETS, SMALL

LEAST_SPLITS = 3  # on which models are compared

Figures = dict[str, dict[str, dict[str, dict[str, float]]]]  # of a set, a model and a split: "score", "loss", "seconds"


def estimator(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int, **options: Any) -> Predictions:
    """Return what dsinga's ``Classifier`` or ``Regressor`` predicts; it takes the frames as they are."""
    from dsinga.estimators import Classifier, Regressor

    model = (Classifier if classes else Regressor)(random_state=seed, **options).fit(x, y)
    return np.asarray(model.predict_proba(tested) if classes else model.predict(tested))


def strong(x: Frame, y: np.ndarray, tested: Frame, classes: int, seed: int) -> Predictions:
    """Return what the estimators of ``preset="strong"`` predict."""
    return estimator(x, y, tested, classes, seed, preset="strong")


MODELS = {"dsinga": estimator, "dsinga, strong": strong, **PEERS}


def figures_of(predicted: np.ndarray, targets: np.ndarray, classes: int) -> dict[str, float]:
    """Return the score and the loss of predictions."""
    if not classes:
        loss = metrics.root_mean_squared_error(targets, predicted)
        return {"score": metrics.r2_score(targets, predicted), "loss": loss}
    score = metrics.roc_auc_score(targets, predicted[:, 1]) if classes == 2 else None
    score = metrics.accuracy_score(targets, predicted.argmax(1)) if score is None else score
    return {"score": score, "loss": metrics.log_loss(targets, predicted, labels=range(classes))}


def measure(name: str, model: str, split: int) -> dict[str, float]:
    """Return the figures of a model on a split of a set, and the seconds of a core that it trains and predicts."""
    table = SETS[name]()
    learnt, tested = table.splits[split]
    frames = [table.frame.iloc[rows].reset_index(drop=True) for rows in (learnt, tested)]
    began = time.process_time()
    predicted = MODELS[model](frames[0], table.targets[learnt], frames[1], table.classes, split)
    seconds = time.process_time() - began
    found = figures_of(predicted, table.targets[tested], table.classes)
    return {**{key: round(float(value), 5) for key, value in found.items()}, "seconds": round(seconds, 2)}


def read(file: Path) -> Figures:
    """Return the figures of a file, none where it is not there."""
    return json.loads(file.read_text()) if file.exists() else {}


def over_splits(splits: dict[str, dict[str, float]], key: str = "score") -> tuple[float, float]:
    """Return the mean and the standard deviation of a figure."""
    values = [figures[key] for figures in splits.values()]
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def cell(splits: dict[str, dict[str, float]] | None, best: float) -> str:
    """Return the score of a model with its spread, bold where it is the best."""
    if not splits:
        return "-"
    mean, spread = over_splits(splits)
    text = f"{mean:.4f} ± {spread:.4f}" if len(splits) > 1 else f"{mean:.4f} (one split)"
    return f"**{text}**" if mean == best else text


def scores(figures: Figures) -> Iterator[str]:
    """Yield the table of scores: a row a model, a column a set."""
    names = [name for name in SETS if name in figures]
    yield row_of(["", *names])
    yield row_of(["---"] * (len(names) + 1))
    best = {name: max(over_splits(splits)[0] for splits in figures[name].values()) for name in names}
    for model in MODELS:
        if any(model in figures[name] for name in names):
            yield row_of([model, *(cell(figures[name].get(model), best[name]) for name in names)])


def others(figures: Figures, key: str) -> Iterator[str]:
    """Yield the table of another figure, its means only."""
    names = [name for name in SETS if name in figures]
    yield row_of([key, *names])
    yield row_of(["---"] * (len(names) + 1))
    for model in MODELS:
        found = [figures[name].get(model) for name in names]
        if any(found):
            yield row_of([model, *(f"{over_splits(splits, key)[0]:.3g}" if splits else "-" for splits in found)])


def within(figures: Figures, model: str = "dsinga, strong") -> Iterator[str]:
    """Yield, of each set, whether a model is within one spread of the peer that is furthest before it.

    A peer is compared on the splits that both have, of which there are three or more.
    """
    for name, models in figures.items():
        leads = []
        for peer in PEERS:
            splits = models.get(model, {}).keys() & models.get(peer, {}).keys()
            if len(splits) < LEAST_SPLITS:
                continue
            ours, theirs = (over_splits({split: models[who][split] for split in splits}) for who in (model, peer))
            leads.append((theirs[0] - ours[0], max(ours[1], theirs[1]), peer, ours[0], theirs[0], len(splits)))
        if leads:
            lead, spread, peer, mean, best, count = max(leads)
            verdict = "level" if lead <= spread else "behind"
            yield f"{name}: {mean:.4f}, {peer} {best:.4f} on {count} splits, spread {spread:.4f}: {verdict}"


def page_rows(figures: Figures) -> Iterator[str]:
    """Yield the table of a page: a row a set with the scores of models, and a row of their seconds."""
    models = [model for model in MODELS if any(model in figures[name] for name in figures)]
    yield row_of(["", *models])
    yield row_of(["---"] * (len(models) + 1))
    for name in (name for name in SETS if name in figures):
        found = [figures[name].get(model) for model in models]
        most = max(len(splits) for splits in found if splits)
        best = max(over_splits(splits)[0] for splits in found if splits and len(splits) == most)
        yield row_of([name, *(short_cell(splits, best, most) for splits in found)])
    if "flights" in figures:
        found = [figures["flights"].get(model) for model in models]
        seconds = [f"{over_splits(splits, 'seconds')[0]:.0f} s" if splits else "-" for splits in found]
        yield row_of(["flights, time", *seconds])


def short_cell(splits: dict[str, dict[str, float]] | None, best: float, most: int) -> str:
    """Return the score of a model and its spread with three digits, bold where it is the best of all splits."""
    if not splits:
        return "-"
    mean, spread = over_splits(splits)
    text = f"{mean:.3f} ± {spread:.3f}" if len(splits) > 1 else f"{mean:.3f}"
    if len(splits) < most:
        return f"{text} ({len(splits)} of {most} splits)"
    return f"**{text}**" if mean == best else text


def write_to(page: Path, rows: Iterator[str], small: bool) -> None:
    """Write a table into a page, between the marks that name this program."""
    option = " --small" if small else ""
    mark, end = (
        f"<!-- accuracy: written by python -m tools.benchmarks.accuracy_tables{option} -->",
        "<!-- end of accuracy -->",
    )
    before, _, rest = page.read_text(encoding="utf-8").partition(mark)
    after = rest.partition(end)[2]
    page.write_text("\n".join([before + mark, "", *rows, "", end + after]), encoding="utf-8")


@click.command(help=__doc__)
@click.option("--results", type=click.Path(path_type=Path), required=True, help="File of the figures, JSON.")
@click.option("--set", "names", type=click.Choice(list(SETS)), multiple=True, help="A set; all by default.")
@click.option("--model", "models", type=click.Choice(list(MODELS)), multiple=True, help="A model; all by default.")
@click.option("--splits", type=int, default=100, help="How many of the splits of each set to measure.")
@click.option("--again", is_flag=True, help="Measure again what the file has.")
@click.option("--page", type=click.Path(path_type=Path), help="Write a table into this page, and measure nothing.")
@click.option("--small", is_flag=True, help="The ten small regressions.")
@click.option("--print", "printed", is_flag=True, help="Print the tables, and measure nothing.")
def main(
    results: Path, names: tuple, models: tuple, splits: int, again: bool, page: Path | None, small: bool, printed: bool
) -> None:
    """Measure what is missing from a file, or print its tables."""
    if page:
        write_to(page, page_rows(read(results)), small)
        return
    if printed:
        figures = read(results)
        for lines in (scores(figures), others(figures, "loss"), others(figures, "seconds"), within(figures)):
            click.echo("\n".join(lines) + "\n")
        return
    for name in names or (SMALL if small else [name for name in SETS if name not in SMALL or name == "diabetes"]):
        for model in models or MODELS:
            for split in range(min(splits, len(SETS[name]().splits))):
                if not again and str(split) in read(results).get(name, {}).get(model, {}):
                    continue
                found = measure(name, model, split)
                figures = read(results)
                figures.setdefault(name, {}).setdefault(model, {})[str(split)] = found
                results.write_text(json.dumps(figures, indent=1))
                click.echo(f"{name}, {model}, split {split}: {found}")


if __name__ == "__main__":
    main()
