"""The preset "strong": an ensemble in one net, TabM, on columns that are learnt of data frames and of arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.estimators import jobs
from dsinga.estimators.tables import columns_of_table
from dsinga.job import Job

if TYPE_CHECKING:  # an add-on, which arrays and frames of numbers do not need
    from dsinga.addons.tables.definition import TableDefinition

BINS = 16  # of each number
ONE_HOT = 400  # the most codes of a category that is a one-hot vector
MEMBERS, DEPTH, WIDTH, DROPOUT = 8, 2, 256, 0.5


OF_DEFAULT_NET = "hidden", "activation", "learning_rate", "weight_decay", "loss", "quantiles", "n_components", "method"


def check_net_settings(estimator: Any) -> None:
    """Raise UserError for an unknown preset, and for settings that have no effect beside a preset or a net."""
    if estimator.net is not None:
        for field in dataclasses.fields(estimator):
            if field.name in OF_DEFAULT_NET and value_text(getattr(estimator, field.name)) != value_text(field.default):
                raise UserError(
                    f"{field.name} is a setting of the default net, and net= has layers, a loss and an optimizer; "
                    f"leave {field.name} out, or leave net out"
                )
    preset = getattr(estimator, "preset", None)
    if preset is None:
        return
    if preset != "strong":
        hint = nearest(str(preset), ["strong"]) or '; it is "strong", or None for the default net'
        raise UserError(f"preset is {preset!r}{hint}")
    for name, is_given in (
        ("net", estimator.net is not None),
        ("hidden", estimator.hidden is not None),
        ("activation", estimator.activation != "relu"),
    ):
        if is_given:
            raise UserError(f'preset="strong" has a net of its own; leave {name} out, or leave the preset out')
    if getattr(estimator, "loss", "squared_error") != "squared_error":
        raise UserError(
            f'preset="strong" predicts the mean by loss="squared_error", not {estimator.loss!r}; leave the preset out'
        )


def strong_job(
    columns: TableDefinition | None, outputs: int, task: Any, learning_rate: float, weight_decay: float, seed: int
) -> Job:
    """Return the job of the ensemble for the records of a table.

    ``task`` is "classes", "answers" or "numbers", of which there are so many ``outputs``.
    """
    from dsinga.models import tabm

    assert columns is not None
    table = columns_of_table(columns)
    parts, bins = table.parts, table.bins(BINS)
    model = tabm(
        len(parts.numbers), len(parts.flags), parts.sizes, outputs, task, bins=bins, one_hot=ONE_HOT,
        members=MEMBERS, depth=DEPTH, width=WIDTH, dropout=DROPOUT, learning_rate=learning_rate,
        weight_decay=weight_decay,
    )  # fmt: skip
    return jobs.training_net(jobs.model_job(model, None)).replace(name="estimator", seed=seed)
