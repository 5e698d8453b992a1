"""Makes the jobs that estimators train: small default nets, and users' nets prepared for arrays."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dsinga import nn
from dsinga.api.jobs_with_data import roots
from dsinga.base.arguments import unknown_name
from dsinga.base.arrays import ParamArrays
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.checkpoint import read_all_params
from dsinga.estimators.tables import columns_of_table, with_store
from dsinga.job import Job, LayerConf, Phase, load
from dsinga.job.enums import DistributionName
from dsinga.net import filter_layers
from dsinga.net.layer_classes import SAMPLE_WEIGHT, layer_class
from dsinga.nn.model.trainable import Trainable
from dsinga.nn.words.activations import check_activation
from dsinga.nn.writing.net_conf import confs_of
from dsinga.nn.writing.symbol import LayerBuilder, Symbol
from dsinga.nn.writing.writer import make_conf
from dsinga.reading.bind_records import input_layer

if TYPE_CHECKING:  # an add-on, which arrays and frames of numbers do not need
    from dsinga.addons.tables.definition import TableDefinition

HIDDEN = "relu", "sigmoid", "tanh", "stanh"  # the activation functions after hidden layers
ERRORS = {"squared_error": nn.EuclideanLoss, "absolute_error": nn.AbsoluteLoss}  # losses with one output per target
DISTRIBUTION_NAMES = [name.name for name in DistributionName]
DEFAULT_EPOCHS = 10  # the epochs of a net that names neither epochs nor steps


class NetDefaults(NamedTuple):
    """The values of an estimator's arguments that are None.

    Attributes:
        steps: the least number of steps without early stopping, so that small data are read often.
        dropout: the share of numbers after each hidden layer that are 0 in a training step.
        bins: the bins of each number of a table; the net's function is linear in each.
    """

    hidden: tuple[int, ...]
    learning_rate: float
    weight_decay: float
    batchsize: int
    steps: int
    patience: int
    dropout: float = 0.0
    bins: int = 48


OF_ARRAYS = NetDefaults((64,), 0.01, 0.01, 200, 200, 10)
OF_TABLES = NetDefaults((100,), 1e-3, 1e-4, 200, 500, 5, 0.3)
OF_SMALL_TABLES = NetDefaults((64,), 0.01, 0.01, 200, 200, 10, 0.3, 4)  # of numbers that are predicted
OF_STRONG = NetDefaults((), 7e-4, 3e-4, 256, 2000, 16)


def fully_connected_job(
    hidden: Sequence[int], activation: str, outputs: int, loss: LayerBuilder, columns: TableDefinition | None,
    defaults: NetDefaults, distribution: str | None = None, **fields: Any,
) -> Job:  # fmt: skip
    """Return the job of the default net: fully connected layers and a loss of classes, labels or numbers."""
    data, out = _records(columns, defaults.bins)
    for number, size in enumerate(hidden, 1):
        out = nn.Dense(size, kernel_initializer="he_normal", name=f"fc{number}")(out)
        out = _activation(number, activation)(out)
        out = nn.Dropout(defaults.dropout, name=f"drop{number}")(out) if defaults.dropout else out
    out = nn.Dense(outputs, name="out")(out)
    if distribution is None:
        return _job(loss(out, labels=data), **fields)
    label = nn.Layer("kLabel", name="label")(data)
    out = nn.DistributionParams(distribution, name="params")(out) if distribution else out
    return _job(loss(out, label), **fields)


def regressor_loss(loss: Any, quantiles: Any, targets: int) -> tuple[LayerBuilder, int, str]:
    """Return the loss of a Regressor, a mean over targets, its outputs for each target, and the distribution or ""."""
    if loss in ERRORS:
        return ERRORS[loss](1 / targets, name="loss"), 1, ""
    if loss == "quantile":
        levels = [*map(float, np.ravel(quantiles))]
        for fault in lookup("layer", "kQuantileLoss").Conf(quantile=levels).all_faults():
            raise UserError(f"Regressor: {fault.text}".replace("quantile ", "quantiles ", 1))
        return nn.QuantileLoss(levels, name="loss"), len(levels), ""
    if loss not in DISTRIBUTION_NAMES:
        raise unknown_name("loss", loss, [*ERRORS, "quantile", *DISTRIBUTION_NAMES])
    return nn.DistributionLoss(loss, name="loss"), len(_distribution(loss).parameters), loss


def predicts_counts(loss: Any) -> bool:
    """Whether a loss is the likelihood of counts, which must not be scaled."""
    return loss in DISTRIBUTION_NAMES and _distribution(loss).support == "counts"


def _distribution(loss: str) -> Any:
    lookup("layer", "kDistributionLoss")  # raises UserError with the add-on's name if that is missing
    from dsinga.addons.probabilities.distributions import DISTRIBUTIONS

    return DISTRIBUTIONS[DistributionName[loss]]


def autoencoder_job(sizes: Sequence[int], activation: str, **fields: Any) -> Job:
    """Return the job of an auto-encoder from ``sizes[0]`` numbers to ``sizes[-1]``, in the layer "code"."""
    data = x = nn.Input(sizes[0])
    path = [*sizes[1:], *reversed(sizes[:-1])]
    for number, size in enumerate(path, 1):
        name = "code" if number == len(sizes) - 1 else "out" if number == len(path) else f"fc{number}"
        x = nn.Dense(size, name=name)(x)
        x = _activation(number, activation)(x) if name.startswith("fc") else x
    return _job(nn.EuclideanLoss(1 / sizes[0], name="loss")(x, data), **fields)


def rbm_job(inputs: int, units: int, **fields: Any) -> Job:
    """Return the job of a restricted Boltzmann machine with binary units, in the layer "code"."""
    size, init = {"hdim": units}, {"type": "kGaussian", "std": 0.1}
    visible = [{"name": "w", "init": init}, {"name": "b1"}]
    hidden = [{"name": "wt", "share_from": "w"}, {"name": "b2"}]
    layers = [
        make_conf("visible", "kRBMVis", ["data", "code"], rbm_conf=size, param=visible),
        make_conf("code", "kRBMHid", ["visible"], rbm_conf=size, param=hidden),
    ]
    return _job(layers, train_one_batch=nn.CD(), **fields)


def _records(columns: TableDefinition | None, bins: int) -> tuple[Symbol, Symbol]:
    """Begin a net: return its input layer, and the feature with a table's categories encoded."""
    if columns is None:
        data = nn.Input(1)
        return data, data
    from dsinga.models.tables import table_inputs  # not needed for arrays

    table = columns_of_table(columns)
    parts = table.parts
    data, sizes = nn.Input(table.width), (len(parts.numbers), len(parts.flags), parts.sizes)
    return data, table_inputs(data, *sizes, bins=table.bins(bins), stddev=0.1)


def _activation(number: int, activation: str) -> LayerBuilder:
    check_activation("the default net", str(activation), HIDDEN)
    return nn.Activation(activation, name=f"act{number}")


def _job(layers: Symbol | Sequence[LayerConf], learning_rate: float, weight_decay: float, **fields: Any) -> Job:
    """Return the job of a net that ends in a loss, trained by Adam."""
    layers = confs_of(layers) if isinstance(layers, Symbol) else layers
    updater = nn.Adam(learning_rate, epsilon=1e-8, weight_decay=weight_decay)
    return Job(**{"name": "estimator", "updater": updater, "net": {"layer": [input_layer("data"), *layers]}, **fields})


def open_net(net: Any, shape: Sequence[int] | None = None) -> Job:
    """Return the user's ``net`` as a job: a Job, the path of a job file, or a model of dsinga.nn.

    ``shape`` is the shape of a record, for a model that does not define it.
    """
    if isinstance(net, (str, os.PathLike)):
        net = load(net)
    if isinstance(net, Trainable):
        net.require_loss()  # raises UserError
        model = copy.copy(net)
        if shape is not None and len(names := model.input_names()) == 1:
            model.record_shapes = {names[0]: tuple(shape)}
        net = model.job(epochs=DEFAULT_EPOCHS)
    if any(cls.__module__.startswith("torch.nn.") for cls in type(net).__mro__):
        raise UserError(
            "net is a module of PyTorch; write model = dsinga.convert.from_torch(module, shape), then "
            "model.compile(optimizer, loss), and give net=model (docs/howto/pytorch.md)"
        )
    if not isinstance(net, Job):
        raise UserError(f"net must be a Job, the path of a job file or a model of dsinga.nn, not {type(net).__name__}")
    net = net if net.train_steps or net.epochs else net.replace(epochs=DEFAULT_EPOCHS)
    return _training_net(net)


def _training_net(job: Job) -> Job:
    """Return the job with only the layers of training, which then compute predictions, too."""
    if job.resume:
        text = "an estimator begins with its params, not with a checkpoint; leave resume out, or use warm_start=True"
        raise job.error(text, "resume")
    layers = [layer.replace(include=[], exclude=[]) for layer in filter_layers(job.neuralnet, Phase.kTrain)]
    inputs = [layer.name for layer in layers if layer_class(layer).is_input]
    if len(inputs) != 1:
        raise job.neuralnet.error(f"an estimator's net has one input layer, not {len(inputs)}: {', '.join(inputs)}")
    return with_store(job.replace(neuralnet=job.neuralnet.replace(layer=layers)), path=None)


def first_params(job: Job) -> ParamArrays:
    """Return the params with which training begins, from a job's ``checkpoint_path`` and its own."""
    return read_all_params(job.checkpoint_path, roots(job, None)) | dict(job.params)


def layers_text(job: Job) -> list[str]:
    """Return each layer except inputs as text, to see whether two nets differ."""
    return [str(layer) for layer in job.neuralnet.layer if not layer_class(layer).is_input]


def input_name(job: Job) -> str:
    """Return the name of the input layer of records."""
    layers = job.neuralnet.layer
    return next(layer.name for layer in layers if layer_class(layer).is_input and layer.name != SAMPLE_WEIGHT)


def losses(job: Job) -> list[LayerConf]:
    """Return the loss layers of a job."""
    return [layer for layer in job.neuralnet.layer if layer_class(layer).is_loss]


def output_name(job: Job) -> str:
    """Return the name of the layer that gives predictions, the last loss's source."""
    if not losses(job):
        raise job.neuralnet.error("the net has no loss layer, whose source predictions are made from; add one")
    return losses(job)[-1].srclayers[0]


def batchsize_of(job: Job) -> int:
    """Return how many records a job's batch has."""
    inputs = [layer for layer in job.neuralnet.layer if layer_class(layer).is_input]
    sizes = [layer.store_conf.batchsize for layer in inputs if layer.store_conf]
    return sum(sizes[0]) if sizes else 1
