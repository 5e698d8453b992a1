"""Nets for records of tables: TabM, an ensemble that shares its weights, and RealMLP, a net with tuned defaults.

Gorishniy, Kotelnikov and Babenko, TabM: Advancing Tabular Deep Learning with Parameter-Efficient Ensembling (2024);
Holzmüller, Grinsztajn and Steinwart, Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular Data (2024).

A record is (numbers + flags + categories,) float32, in this order: scaled numbers, flags 0 or 1, and category codes, as
tables of :mod:`dsinga.addons.tables` make them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from dsinga import nn
from dsinga.api.argument_types import typed
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.nn.writing.symbol import Symbol

Task = Literal["classes", "answers", "numbers"]
TASKS = ("classes", "answers", "numbers")
UNIFORM = {"type": "kUniformSqrtFanIn", "value": 3**-0.5}  # U(-1, 1)/√columns
BIN_WIDTH = 16  # functions of each number with bins
ONE_HOT = 9  # for RealMLP, the most codes of a one-hot category
WAVES, WAVE_WIDTH = 16, 3  # for RealMLP, each number's frequencies, and its sums of waves


@typed("models.")
def tabm(
    numbers: int,
    flags: int = 0,
    categories: Sequence[int] = (),
    outputs: int = 1,
    task: Task = "classes",
    *,
    bins: Sequence[Sequence[float]] = (),
    one_hot: int = 8,
    members: int = 32,
    depth: int | None = None,
    width: int = 512,
    dropout: float = 0.1,
    learning_rate: float = 0.002,
    weight_decay: float = 3e-4,
    metrics: Any = None,
) -> nn.Model:
    """Return TabM, ``members`` nets that share their weights, for records of a table: a model that ``fit`` trains.

    Each of ``depth`` layers is a kBatchEnsemble, a rectifier and dropout; each member has its own head. The training
    loss is the mean of the members' losses. A prediction is the mean of the members' predictions.

    Args:
        numbers: count of numbers in a record.
        flags: count of flags, 0 or 1, after the numbers.
        categories: number of codes of each category, after the flags; code 0 is unknown.
        outputs: number of classes, answers or numbers to predict.
        task: "classes" (labels (n,)), "answers" (labels (n, outputs) of 0 and 1) or "numbers" (labels (n, outputs)).
        bins: edges of each number's bins, scaled as in records. Each number becomes 16 piecewise-linear functions with
            kinks at the edges (kPiecewiseLinear); with fewer than two edges it stays linear.
        one_hot: categories of at most this many codes are one-hot vectors, others embeddings.
        members: number of members, k in the paper.
        depth: layers before the heads; defaults to 3, or 2 with ``bins``.
        width: outputs of each layer.
        dropout: share of the numbers to drop in training.
        learning_rate: for AdamW.
        weight_decay: for AdamW, on all params.
        metrics: further metrics, as for ``compile``.

    Raises:
        UserError: a record without columns, bins for another number of columns, no layer, or an unknown task.
    """
    data = _input(numbers, flags, categories, task)
    if depth is not None and depth < 1:
        raise UserError(f"depth is {depth}; an ensemble has at least one layer before its heads")
    embed = _piecewise_linear(numbers, bins) if bins else None
    x, blocks = _inputs(data, numbers, flags, categories, embed, one_hot=one_hot)
    scales: Any = {"type": "kMemberScales", "block": blocks, "normal": bool(bins)}
    inputs = sum(blocks)
    for number in range(1, (3 - bool(bins) if depth is None else depth) + 1):
        x = _ensemble(f"members{number}", x, members, inputs, width, scales if number == 1 else None)
        x = nn.ReLU(name=f"relu{number}")(x)
        x = nn.Dropout(dropout, name=f"drop{number}")(x) if dropout else x
        inputs = width
    output, loss = _mean_and_loss(data, _heads(x, inputs, outputs), outputs, task)
    model = nn.Model(data, output, name="tabm")
    model.compile(nn.AdamW(learning_rate, epsilon=1e-8, weight_decay=weight_decay), loss, metrics)
    return model


@typed("models.")
def realmlp(
    numbers: int,
    flags: int = 0,
    categories: Sequence[int] = (),
    outputs: int = 1,
    task: Task = "classes",
    *,
    depth: int = 3,
    width: int = 256,
    dropout: float = 0.15,
    label_smoothing: float = 0.1,
    learning_rate: float | None = None,
    steps: int | None = None,
    weight_decay: float = 0.02,
    metrics: Any = None,
) -> nn.Model:
    """Return RealMLP, a fully connected net with tuned defaults for records of a table: a model that ``fit`` trains.

    Each number becomes four: itself and three sums of learnt waves (kPeriodic). Categories of at most 9 codes are
    one-hot vectors, others embeddings. Each column is multiplied by a learnt factor. ``depth`` dense layers follow;
    their weights learn at 1/√inputs of the learning rate (the paper's neural tangent parametrisation). Activations are
    parametric: SELU for classes and answers, Mish for numbers.

    Unlike in the paper, the initial params do not depend on the records, and dropout and weight decay stay constant.
    Scale numbers robustly, with a smooth clip, and numeric targets to mean 0 and deviation 1.

    Args:
        numbers: count of numbers in a record.
        flags: count of flags, 0 or 1, after the numbers.
        categories: number of codes of each category, after the flags; code 0 is unknown.
        outputs: number of classes, answers or numbers to predict.
        task: "classes", "answers" or "numbers", with labels as for :func:`tabm`.
        depth: layers before the last.
        width: outputs of each layer.
        dropout: share of the numbers to drop in training.
        label_smoothing: for classes, the share of the target spread over all classes.
        learning_rate: largest learning rate; defaults to 0.04, or 0.2 for numbers.
        steps: steps of training, over which the learning rate rises and falls four times (kCosineLog); by default it is
            constant.
        weight_decay: for AdamW, on all params but biases.
        metrics: further metrics, as for ``compile``.

    Raises:
        UserError: a record without columns, or an unknown task.
    """
    data = _input(numbers, flags, categories, task)
    embed = _waves(numbers) if numbers else None
    x, blocks = _inputs(data, numbers, flags, categories, embed, 1 + WAVE_WIDTH, ONE_HOT)
    x = nn.Layer("kColumnScale", lr_scale=6.0, name="scaled")(x)
    inputs = sum(blocks)
    for number in range(1, depth + 1):
        x = _tangent_dense(f"fc{number}", x, inputs, width)
        x = _parametric(number, x, "mish" if task == "numbers" else "selu")
        x = nn.Dropout(dropout, name=f"drop{number}")(x) if dropout else x
        inputs = width
    scores = _tangent_dense("scores", x, inputs, outputs)
    rate: Any = (0.2 if task == "numbers" else 0.04) if learning_rate is None else learning_rate
    if steps is not None:
        rate = {"type": "kCosineLog", "base_lr": rate, "cosinelog_conf": {"change_freq": steps}}
    output, loss = _output_and_loss(data, scores, outputs, task, label_smoothing)
    model = nn.Model(data, output, name="realmlp")
    model.compile(nn.AdamW(rate, beta_2=0.95, epsilon=1e-8, weight_decay=weight_decay), loss, metrics)
    return model


def table_inputs(
    data: Symbol,
    numbers: int,
    flags: int = 0,
    categories: Sequence[int] = (),
    *,
    bins: Sequence[Sequence[float]] = (),
    stddev: float = 1.0,
) -> Symbol:
    """Convert the columns of table records to features (B, n): numbers, ``bins`` as in :func:`tabm`, flags, categories.

    Categories of at most 8 codes become one-hot vectors, others embeddings with initial deviation ``stddev``, by one
    kCategories layer, "categories".
    """
    embed = _piecewise_linear(numbers, bins) if bins else None
    return _inputs(data, numbers, flags, categories, embed, stddev=stddev)[0]


def _input(numbers: int, flags: int, categories: Sequence[int], task: str) -> Symbol:
    """Return the input of a table net, after checks of its columns and task."""
    if task not in TASKS:
        raise UserError(f'task is "classes", "answers" or "numbers", not {task!r}')
    if min(numbers, flags, *categories, 0) < 0 or numbers + flags + len(categories) < 1:
        raise UserError(
            f"a record has {numbers} numbers, {flags} flags and the categories {list(categories)}; give at least one "
            "column"
        )
    return nn.Input((numbers + flags + len(categories),), name="data")


def _inputs(
    data: Symbol,
    numbers: int,
    flags: int,
    categories: Sequence[int],
    embed: Callable[[Symbol], Symbol] | None,
    width: int = BIN_WIDTH,
    one_hot: int | None = None,
    stddev: float = 1.0,
) -> tuple[Symbol, list[int]]:
    """Return the first features of a net, and how many belong to each number, flag and category, in order.

    ``embed`` makes ``width`` features of each number; ``stddev`` is the initial deviation of embeddings.
    """
    size, plain = numbers + flags + len(categories), numbers + flags
    parts, blocks = [], [1 if embed is None else width] * numbers + [1] * flags

    def columns(name: str, start: int, stop: int) -> Symbol:
        return data if stop - start == size else nn.Layer("kIndex", index=f"{start}:{stop}", name=name)(data)

    if embed is not None and numbers:
        parts.append(embed(columns("numbers", 0, numbers)))
        if flags:
            parts.append(columns("flags", numbers, plain))
    elif plain:
        parts.append(columns("plain", 0, plain))
    if categories:
        settings: dict[str, Any] = {"size": list(categories)} | ({} if one_hot is None else {"one_hot": one_hot})
        layer = lookup("layer", "kCategories")
        widths = layer.widths(layer.Conf(**settings))
        if sum(widths) < sum(categories):  # some have embeddings
            settings["param"] = [nn.Param(init=nn.RandomNormal(stddev=stddev))]
        parts.append(nn.Layer("kCategories", name="categories", **settings)(columns("codes", plain, size)))
        blocks += widths
    return parts[0] if len(parts) == 1 else nn.Concatenate(axis=1, name="inputs")(parts), blocks


def _piecewise_linear(numbers: int, bins: Sequence[Sequence[float]]) -> Callable[[Symbol], Symbol]:
    """Return a function that expands numbers to piecewise-linear functions, which begin as linear ones."""
    if len(bins) != numbers:
        raise UserError(f"bins has edges of {len(bins)} numbers, but a record has {numbers}; give those of each")
    edges = [list(each) if len(each) > 1 else [each[0] - 0.5, each[0] + 0.5] if each else [-1.0, 1.0] for each in bins]
    uniform = nn.RandomUniform(-(BIN_WIDTH**-0.5), BIN_WIDTH**-0.5)
    settings = {"edge": [edge for each in edges for edge in each], "edges": list(map(len, edges)), "width": BIN_WIDTH}
    param = [nn.Param(), nn.Param(init=uniform), nn.Param(init=uniform)]
    return nn.Layer("kPiecewiseLinear", **settings, param=param, name="bins")


def _waves(numbers: int) -> Callable[[Symbol], Symbol]:
    """Return a function that appends sums of learnt waves to numbers."""
    uniform = nn.RandomUniform(-(WAVES**-0.5), WAVES**-0.5)
    inits = [nn.RandomNormal(stddev=0.1), nn.RandomUniform(-math.pi, math.pi), uniform, uniform]
    settings = {"waves": WAVES, "width": WAVE_WIDTH, "lr_scale": 0.1, "param": [nn.Param(init=init) for init in inits]}

    def embed(x: Symbol) -> Symbol:
        waves = nn.Layer("kPeriodic", **settings, name="waves")(x)
        return nn.Concatenate(axis=1, name="numbers_and_waves")([x, waves])

    return embed


def _tangent_dense(name: str, x: Symbol, inputs: int, outputs: int) -> Symbol:
    """Return a dense layer that learns like x·W/√inputs + b, with W and b from N(0, 1), and b at a tenth of the rate.

    For Adam, W's learning rate is divided by √inputs, and its decay factor multiplied by √inputs.
    """
    root = math.sqrt(inputs)
    normal = nn.RandomNormal(stddev=1.0)
    dense = nn.Dense(
        outputs, kernel_initializer="kGaussianSqrtFanIn", bias_initializer=normal,
        lr_scale=(1 / root, 0.1), wd_scale=(root, 0.0), name=name,
    )  # fmt: skip
    return dense(x)


def _parametric(number: int, x: Symbol, activation: str) -> Symbol:
    """Apply a parametric activation: x + a·(f(x) - x) with a learnt factor a of each column, initially 1."""
    bent = nn.Activation(activation, name=f"act{number}")(x)
    change = nn.Subtract(name=f"change{number}")([bent, x])
    scaled = nn.Layer("kColumnScale", lr_scale=0.1, name=f"share{number}")(change)
    return nn.Add(name=f"bent{number}")([x, scaled])


def _ensemble(name: str, x: Symbol, members: int, inputs: int, width: int, scales: Any) -> Symbol:
    """Apply a layer of the ensemble; ``scales`` initialises the factors of its source, by default with 1."""
    bound = inputs**-0.5
    bias = {"type": "kUniformRow", "low": -bound, "high": bound}
    param = [nn.Param(init=UNIFORM), nn.Param(init=scales), nn.Param(), nn.Param(init=bias)]
    return nn.Layer("kBatchEnsemble", num_output=width, members=members, param=param, name=name)(x)


def _heads(x: Symbol, inputs: int, outputs: int) -> Symbol:
    bound = inputs**-0.5
    init = {"type": "kUniform", "low": -bound, "high": bound}
    param = [nn.Param(init=init), nn.Param(init=init)]
    return nn.Layer("kMemberDense", num_output=outputs, param=param, name="heads")(x)


def _mean_and_loss(data: Symbol, heads: Symbol, outputs: int, task: str) -> tuple[Symbol, Symbol]:
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


def _output_and_loss(
    data: Symbol, scores: Symbol, outputs: int, task: str, label_smoothing: float
) -> tuple[Symbol, Symbol]:
    if task == "classes":
        loss = nn.SoftmaxLoss(label_smoothing=label_smoothing, name="loss")(scores, labels=data)
        return nn.Softmax(name="probabilities", exclude=["kTrain"])(scores), loss
    target = nn.Layer("kLabel", name="target")(data)
    if task == "answers":
        loss = nn.SigmoidCrossEntropyLoss(1 / outputs, name="loss")(scores, target)
        return nn.Layer("kSigmoid", name="probabilities", exclude=["kTrain"])(scores), loss
    return scores, nn.EuclideanLoss(1 / outputs, name="loss")(scores, target)
