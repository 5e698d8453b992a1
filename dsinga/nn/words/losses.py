"""The losses that ``compile`` accepts, by Keras's names and as loss layers."""

from __future__ import annotations

import functools
import math
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Set
from typing import Any

from dsinga.base.arguments import unknown_name
from dsinga.base.errors import UserError
from dsinga.base.registry import entries, find
from dsinga.job.functions import name_of
from dsinga.layers.interface.layer import Layer
from dsinga.layers.losses.pair_loss import PairLoss
from dsinga.nn.words import loss_layers
from dsinga.nn.words.basic_layers import layer_functions
from dsinga.nn.words.derived import function_name
from dsinga.nn.words.keras_arguments import LOSS_NAMES, Name, checked, missing_names
from dsinga.nn.words.loss_layers import *  # noqa: F403  Keras has them here
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.symbol import LayerBuilder

# The functions of losses by name. Further losses that compare with a feature have names, too: "huber".
NAMES = {
    "sparse_categorical_crossentropy": "SoftmaxLoss",
    "categorical_crossentropy": "SoftmaxLoss",
    "softmax": "SoftmaxLoss",
    "mean_squared_error": "EuclideanLoss",
    "mse": "EuclideanLoss",
    "mean_absolute_error": "AbsoluteLoss",
    "mae": "AbsoluteLoss",
    "binary_crossentropy": "SigmoidCrossEntropyLoss",
    "kl_divergence": "KLDivergenceLoss",
    "kld": "KLDivergenceLoss",
    "cosine_similarity": "CosineLoss",
    "ctc": "CTCLoss",
    "dice": "Dice",
    "euclidean": "EuclideanLoss",
    "hinge": "HingeLoss",
    "crf": "CRF",
}
# The types of losses with functions of other names.
TYPES = {
    "MeanSquaredError": "kEuclideanLoss",
    "MeanAbsoluteError": "kAbsoluteLoss",
    "Huber": "kHuberLoss",
    "Dice": "kDiceLoss",
}
# Losses that compare with a feature and sum over a row's outputs, or have one number per row; others are means.
SUMS = {"euclidean", "kl_divergence", "kld", "kldivergence", "cosine_similarity", "cosine"}


def compares(kind: str) -> bool:
    """Whether a function's losses compare with a feature instead of classes."""
    cls = layer_type(kind)
    return cls is not None and issubclass(cls, PairLoss)


def losses_by_name() -> Mapping[str, str]:
    """Map loss names for ``compile``, such as "mse", to the names of functions that make them."""
    types = entries("layer").items()
    pairs = {function_name(name) for name, cls in types if isinstance(cls, type) and issubclass(cls, PairLoss)}
    return {**NAMES, **{name.removesuffix("Loss").lower(): name for name in sorted(pairs - {*NAMES.values()})}}


def layer_type(kind: str) -> type[Layer] | None:
    """Look up the class of the layers that a function makes; None if it has none."""
    cls = find("layer", TYPES.get(kind, f"k{kind}")) or find("layer", kind)
    return cls if isinstance(cls, type) else None


def loss_function(kind: str) -> Callable[..., LayerBuilder]:
    """Look up a function that makes losses by its name."""
    function: Callable[..., LayerBuilder] = vars(loss_layers).get(kind) or layer_functions[kind]
    return function


def is_loss(kind: str) -> bool:
    """Whether a function of this name makes a loss."""
    cls = layer_type(kind)
    return cls is not None and cls.is_loss


def metric_names(kinds: Collection[str]) -> Set[str]:
    """Return the metrics that losses of these functions report."""
    return {"loss", *(name for kind in kinds if (cls := layer_type(kind)) for name in cls.metric_names)}


def may_have_params(kind: str) -> bool:
    """Whether a function's losses may have params, as few have."""
    cls = layer_type(kind) or Layer
    return kind not in ("SoftmaxLoss", "HingeLoss") and not (issubclass(cls, PairLoss) or cls.labels.per_point)


def loss_kind(loss: Any) -> str:
    """Return the function's name for a loss given by name or layer."""
    if isinstance(loss, LayerBuilder):
        return loss.kind
    if isinstance(loss, str) and (known := NAMES if loss in NAMES else losses_by_name()).get(loss):
        return known[loss]
    if callable(loss) and is_loss(getattr(loss, "__name__", "")):
        raise UserError(f"{loss.__name__} is a function; call it: nn.{loss.__name__}()")
    if isinstance(loss, type):
        raise UserError(f"the loss {loss.__name__} is a class; call it: {loss.__name__}()")
    if callable(loss):
        return "FunctionLoss"
    if isinstance(loss, str) and is_loss(loss) and loss not in LOSS_NAMES:
        raise UserError(f"there is no loss {loss!r}; for the layer of that name write nn.{function_name(loss)}()")
    raise unknown_name("loss", loss, losses_by_name(), LOSS_NAMES)


# PyTorch's losses by their names here. Losses symmetric in outputs and labels are used as functions.
TORCH = {"CrossEntropyLoss": "sparse_categorical_crossentropy", "BCEWithLogitsLoss": "binary_crossentropy"}
IN_ANY_ORDER = set("MSELoss L1Loss HuberLoss SmoothL1Loss mse_loss l1_loss huber_loss smooth_l1_loss".split())


def without_torch(loss: Any) -> Any:
    """Replace a PyTorch loss by its name; return other losses unchanged."""
    owner = loss if hasattr(loss, "__qualname__") else type(loss)
    name = getattr(owner, "__name__", "")
    if getattr(owner, "__module__", None) not in ("torch.nn.modules.loss", "torch.nn.functional"):
        return loss
    if isinstance(loss, type):
        raise UserError(f"the loss {name} is a class; call it: {name}()")
    if name in TORCH and owner is not loss:
        if repr(loss) == f"{name}()" and (loss.weight, loss.reduction) == (None, "mean") and not _settings(loss):
            return TORCH[name]
        raise UserError(
            f'the loss {name} has settings of its own; write loss="{TORCH[name]}", and give fit class_weight= or '
            "sample_weight= for weights"
        )
    if name in IN_ANY_ORDER:
        return loss
    raise UserError(
        f"the loss {name} of PyTorch takes (outputs, labels), and compile calls a loss with (labels, outputs); write "
        f"loss=lambda labels, outputs: {name}(outputs, labels)"
    )


def _settings(loss: Any) -> bool:
    """Whether a PyTorch loss has settings other than the defaults."""
    usual = {"ignore_index": -100, "label_smoothing": 0.0, "pos_weight": None}
    return any(getattr(loss, name, value) != value for name, value in usual.items())


def loss_builder(loss: Any, output: Feature, weight: float = 1.0, name: str = "loss") -> LayerBuilder:
    """Make the loss layer for one output from the argument of ``compile``.

    ``loss`` is a name of Keras, with a ``weight``, or a loss layer such as ``nn.SoftmaxLoss(topk=5)``, which has a
    scale.
    """
    if isinstance(loss, LayerBuilder):
        if weight != 1:
            raise UserError(f"loss_weights has no effect on {loss!r}; give it scale={weight}")
        settings = {"name": name, **loss.settings}
        again = functools.partial(loss_builder, loss, output, name=name)
        return LayerBuilder(loss.kind, loss.write, settings, again, wrapped=loss)
    kind, shape = loss_kind(loss), row_shape(output)
    if kind == "FunctionLoss":
        return loss_function(kind)(name_of(loss), name=name, **({} if weight == 1 else {"scale": weight}))
    if kind == "SoftmaxLoss" and shape is not None and len(shape) > 2 and math.prod(shape[1:]) > 1:
        kind = "FieldSoftmaxLoss"  # the channels of images are the classes of each point, as in Keras
    if compares(kind) and loss not in SUMS and not getattr(layer_type(kind), "predicts_several", False):
        weight /= math.prod(shape or (1,))
    return loss_function(kind)(name=name, **({} if weight == 1 else {"scale": weight}))


class Loss:
    """Base class of users' losses, as in Keras: ``call(self, y_true, y_pred)`` returns each record's loss."""

    def __init__(self, name: str | None = None, reduction: str = "sum_over_batch_size", dtype: Any = None):
        if reduction not in ("sum_over_batch_size", "mean"):
            raise UserError(f"a loss is the mean over the records; reduction {reduction!r} is not there")
        self.__name__ = name or type(self).__name__

    def __call__(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss computed by ``call``."""
        return self.call(y_true, y_pred)  # type: ignore[attr-defined]


def _named_loss(name: str, loss: str) -> Callable[..., Name]:
    """Make a stand-in for one of Keras's loss classes: called, it returns the name that ``compile`` accepts."""

    def function(from_logits: bool = False, name: str | None = None) -> Name:
        return Name(loss)

    function.__name__ = name
    return checked(function)


_CLASSES = {
    name: _named_loss(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    for name in ("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")
}


def _functions() -> Mapping[str, Any]:
    """Return the other names of ``nn.losses``: loss layers, loss classes, and Keras's names of losses."""
    maps: list[Any] = [_CLASSES, layer_functions, {name: Name(name) for name in losses_by_name()}]
    return ChainMap(*maps)


__getattr__ = missing_names(__name__, public="dsinga.nn.losses", derived=_functions)


def __dir__() -> list[str]:
    functions = {name for name in {*vars(loss_layers), *layer_functions} if is_loss(name)}
    return sorted(functions | {*_CLASSES, *losses_by_name()})
