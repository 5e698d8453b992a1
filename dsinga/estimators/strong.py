"""The preset "strong": TabM, an ensemble in one net, on learnt columns of data frames and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsinga.estimators import jobs
from dsinga.estimators.tables import columns_of_table
from dsinga.job import Job

if TYPE_CHECKING:  # an add-on, which arrays and frames of numbers do not need
    from dsinga.addons.tables.definition import TableDefinition

BINS = 16  # for each number
ONE_HOT = 400  # the most codes of a one-hot category
MEMBERS, DEPTH, WIDTH, DROPOUT = 8, 2, 256, 0.5


def strong_job(
    columns: TableDefinition | None, outputs: int, task: Any, learning_rate: float, weight_decay: float, seed: int
) -> Job:
    """Return the job that trains the ensemble on the records of a table.

    ``task`` is "classes", "answers" or "numbers", and ``outputs`` is their count.
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
    return jobs.open_net(model).replace(name="estimator", seed=seed)
