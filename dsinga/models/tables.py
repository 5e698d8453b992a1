"""Nets for records of tables: TabM, an ensemble of nets that share their weights.

Gorishniy, Kotelnikov and Babenko, TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling (2024).

A record is (numbers + flags + categories,) float32, in this order: numbers that are scaled, flags 0 or 1, and the codes
of categories, as a table of :mod:`dsinga.addons.tables` gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from dsinga import nn
from dsinga.base.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.nn.writing.symbol import Symbol

Task = Literal["classes", "answers", "numbers"]
TASKS = ("classes", "answers", "numbers")
UNIFORM = {"type": "kUniformSqrtFanIn", "value": 3**-0.5}  # U(-1, 1)/√columns


@typed("models.")
def tabm(
    numbers: int,
    flags: int = 0,
    categories: Sequence[int] = (),
    outputs: int = 1,
    task: Task = "classes",
    *,
    members: int = 32,
    depth: int = 3,
    width: int = 512,
    dropout: float = 0.1,
    learning_rate: float = 0.002,
    weight_decay: float = 3e-4,
    metrics: Any = None,
) -> nn.Model:
    """Return TabM, ``members`` nets that share their weights, for records of a table: a model that ``fit`` trains.

    Each of ``depth`` layers is a kBatchEnsemble, a rectifier and dropout; each member has a head of its own. In
    training the loss is the mean of the members' losses; a prediction is the mean of the members': probabilities of
    "classes", or of each of several "answers", or "numbers". Categories of at most 8 codes are one-hot vectors, others
    embeddings.

    Args:
        numbers: how many numbers a record has.
        flags: how many flags, 0 or 1, follow them.
        categories: the number of codes of each category after these; code 0 stands for an unknown one.
        outputs: the number of classes, answers or numbers to predict.
        task: "classes" (labels (n,)), "answers" (labels (n, outputs) of 0 and 1) or "numbers" (labels (n, outputs)).
        members: the number of members, k in the paper.
        depth: the number of layers before the heads.
        width: the number of outputs of each layer.
        dropout: the share of the numbers that are 0 in a training step.
        learning_rate: of AdamW.
        weight_decay: of AdamW, for all params.
        metrics: further metrics, as for ``compile``.

    Raises:
        UserError: a record without columns, or an unknown task.
    """
    columns = _Columns.of(numbers, flags, categories, task)
    data = nn.Input((columns.size,), name="data")
    x, inputs = columns.joined(data), sum(columns.blocks)
    for number in range(1, depth + 1):
        x = _ensemble(f"members{number}", x, members, inputs, width, columns.blocks if number == 1 else None)
        x = nn.ReLU(name=f"relu{number}")(x)
        x = nn.Dropout(dropout, name=f"drop{number}")(x) if dropout else x
        inputs = width
    heads = _heads(x, inputs, outputs)
    output, loss = _mean_and_loss(data, heads, outputs, task)
    model = nn.Model(data, output, name="tabm")
    model.compile(nn.AdamW(learning_rate, epsilon=1e-8, weight_decay=weight_decay), loss, metrics)
    return model


def table_inputs(data: Symbol, numbers: int, flags: int, categories: Sequence[int]) -> Symbol:
    """Return the inputs of a net for records of a table: numbers, flags, then one-hot vectors and embeddings.

    ``categories`` are the numbers of codes of each. Those with at most 8 are one-hot vectors, others embeddings.
    """
    return _Columns(numbers, flags, categories).joined(data)


class _Columns(NamedTuple):
    """The columns of a record: how many numbers, flags and codes of categories, and the sizes of the categories."""

    numbers: int
    flags: int
    categories: Sequence[int]

    @classmethod
    def of(cls, numbers: int, flags: int, categories: Sequence[int], task: str) -> _Columns:
        """Return the columns of a net for a task. Raises UserError where there are none, and for an unknown task."""
        if task not in TASKS:
            raise UserError(f'task is "classes", "answers" or "numbers", not {task!r}')
        if min(numbers, flags, *categories, 0) < 0 or numbers + flags + len(categories) < 1:
            raise UserError(
                f"a record has {numbers} numbers, {flags} flags and the categories {list(categories)}; give at least "
                "one column"
            )
        return cls(numbers, flags, categories)

    @property
    def size(self) -> int:
        """The number of columns of a record."""
        return self.numbers + self.flags + len(self.categories)

    @property
    def blocks(self) -> list[int]:
        """How many inputs of the net each number, flag and category is, in order."""
        return [1] * (self.numbers + self.flags) + lookup("layer", "kCategories").widths(self.categories)

    def joined(self, data: Symbol) -> Symbol:
        """Return the inputs of the net: numbers and flags, then categories as one-hot vectors and embeddings."""
        plain = self.numbers + self.flags
        if not self.categories:
            return data
        codes = data if not plain else nn.Layer("kIndex", index=f"{plain}:", name="codes")(data)
        settings = {"size": list(self.categories), "name": "categories"}
        if sum(self.categories) > sum(self.blocks[plain:]):
            settings["param"] = [nn.Param(init=nn.RandomNormal(stddev=1.0))]
        categories = nn.Layer("kCategories", **settings)
        if not plain:
            return categories(codes)
        first = nn.Layer("kIndex", index=f":{plain}", name="numbers")(data)
        return nn.Concatenate(axis=1, name="inputs")([first, categories(codes)])


def _ensemble(name: str, x: Symbol, members: int, inputs: int, width: int, blocks: Sequence[int] | None) -> Symbol:
    """Return a layer of the ensemble; that of the first, with ``blocks``, begins with signs by member and block."""
    bound = inputs**-0.5
    bias = {"type": "kUniformRow", "low": -bound, "high": bound}
    signs = None if blocks is None else {"type": "kMemberScales", "block": list(blocks)}
    param = [nn.Param(init=UNIFORM), nn.Param(init=signs), nn.Param(), nn.Param(init=bias)]
    return nn.Layer("kBatchEnsemble", num_output=width, members=members, param=param, name=name)(x)


def _heads(x: Symbol, inputs: int, outputs: int) -> Symbol:
    """Return the outputs of each member."""
    bound = inputs**-0.5
    init = {"type": "kUniform", "low": -bound, "high": bound}
    param = [nn.Param(init=init), nn.Param(init=init)]
    return nn.Layer("kMemberDense", num_output=outputs, param=param, name="heads")(x)


def _mean_and_loss(data: Symbol, heads: Symbol, outputs: int, task: str) -> tuple[Symbol, Symbol]:
    """Return what the members predict together, and their loss."""
    if task == "classes":
        scores = nn.Layer("kMemberMean", of="CLASSES", name="scores")(heads)
        loss = nn.Layer("kMemberSoftmaxLoss", name="loss")(scores, data, heads)
        return nn.Softmax(name="probabilities", exclude=["kTrain"])(scores), loss
    target = nn.Layer("kLabel", name="target")(data)
    if task == "answers":
        scores = nn.Layer("kMemberMean", of="ANSWERS", name="scores")(heads)
        loss = nn.Layer("kMemberSigmoidLoss", scale=1 / outputs, name="loss")(scores, target, heads)
        return nn.Layer("kSigmoid", name="probabilities", exclude=["kTrain"])(scores), loss
    mean = nn.Layer("kMemberMean", name="scores")(heads)
    loss = nn.Layer("kMemberEuclideanLoss", scale=1 / outputs, name="loss")(mean, target, heads)
    return mean, loss
