"""Loss layers as functions, and the names of losses in Keras."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Phase
from dsinga.layers.loss import PairLoss
from dsinga.nn.feature import Feature, row_shape
from dsinga.nn.forms import function_name
from dsinga.nn.keras_names import LOSS_NAMES, missing_names
from dsinga.nn.layer_functions import layer_functions
from dsinga.nn.symbol import LayerBuilder, layer
from dsinga.nn.writer import LayerWriter, NetWriter, Write
from dsinga.registry import entries, nearest


@layer
def SoftmaxLoss(topk: int = 1, scale: float = 1.0, label_smoothing: float = 0.0) -> Write:
    """Softmax and cross-entropy with labels of classes (kSoftmaxLoss), of sequences step by step.

    It takes the scores before a softmax; of a softmax it takes the source. It reports the accuracy, too.
    """

    def write(writer: LayerWriter) -> Feature:
        scores, labels = scores_and_labels(writer)
        rows = row_shape(scores)
        settings: dict[str, Any] = {name: value for name, value in (("topk", topk), ("scale", scale)) if value != 1}
        settings |= {"label_smoothing": label_smoothing} if label_smoothing else {}
        by_step = True if rows is not None and len(rows) == 2 else None
        return writer.add("kSoftmaxLoss", sources=[scores, labels], softmaxloss_conf=settings or None, per_step=by_step)

    return write


@layer
def HingeLoss(norm: str = "L1", margin: float = 1.0, topk: int = 1, scale: float = 1.0) -> Write:
    """Hinge loss of all other classes, as of support vector machines (kHingeLoss)."""
    settings = {"norm": norm, "margin": margin, "topk": topk, "scale": scale}
    return lambda writer: writer.add("kHingeLoss", sources=scores_and_labels(writer), hingeloss_conf=settings)


@layer
def EuclideanLoss(scale: float | None = None) -> Write:
    """Sum of squared differences of a row, mean over rows, times ``scale`` [1] (kEuclideanLoss).

    Its sources are the outputs and the targets: labels, or the feature of any layer, such as the input of an
    auto-encoder.
    """
    return lambda writer: compare(writer, "kEuclideanLoss", "euclideanloss_conf", scale)


@layer
def SigmoidCrossEntropyLoss(scale: float | None = None) -> Write:
    """Sigmoid and binary cross-entropy, summed over the outputs of a row (kSigmoidCrossEntropyLoss)."""
    return lambda writer: compare(writer, "kSigmoidCrossEntropyLoss", "sigmoidcrossentropyloss_conf", scale)


@layer
def CRF() -> Write:
    """Linear-chain conditional random field over (B, T, K) scores and labels (B, T) (kCRF)."""
    return lambda writer: writer.add("kCRF", sources=scores_and_labels(writer))


@layer
def ClassSoftmaxLoss(vocab_size: int, class_start: Sequence[int]) -> Write:
    """Softmax over classes of words and over the words of a class, for large vocabularies (kClassSoftmaxLoss)."""
    settings = {"vocab_size": vocab_size, "class_start": list(class_start)}
    return lambda writer: writer.add(
        "kClassSoftmaxLoss",
        sources=scores_and_labels(writer),
        classsoftmaxloss_conf=settings,
        inits={"word": "random_uniform", "class": "random_uniform"},
    )


@layer
def SampledLoss(
    vocab_size: int,
    num_samples: int = 5,
    method: str = "kNegativeSampling",
    counts: Sequence[int] = (),
    power: float = 0.75,
) -> Write:
    """Loss that tells a word from random words, for large vocabularies (kSampledLoss): kNegativeSampling or kNCE."""
    settings = {"vocab_size": vocab_size, "num_samples": num_samples, "method": method, "power": power}
    return lambda writer: writer.add(
        "kSampledLoss",
        sources=scores_and_labels(writer),
        sampledloss_conf={**settings, **({"counts": list(counts)} if counts else {})},
        inits={"weight": "random_uniform"},
    )


def scores_and_labels(writer: LayerWriter) -> tuple[Feature, Feature]:
    """Return the scores before a softmax, and what has the labels."""
    if len(writer.sources) != 2:
        raise writer.fail(
            f"takes scores and labels, not {len(writer.sources)} sources: nn.{writer.builder.kind}()(scores, labels=x) "
            "takes those of the input x"
        )
    scores, labels = writer.sources
    return take_before(writer.net, scores, "softmax"), labels


def compare(writer: LayerWriter, kind: str, field: str, scale: float | None) -> Feature:
    """Write a loss that compares outputs with labels (of an input) or with another feature."""
    if len(writer.sources) != 2:
        raise writer.fail(f"takes outputs and targets, not {len(writer.sources)} sources")
    outputs, target = writer.sources
    if kind == "kSigmoidCrossEntropyLoss":
        outputs = take_before(writer.net, outputs, "sigmoid")
    shape, expected = row_shape(target), row_shape(outputs)
    if shape is not None and expected is not None and math.prod(shape) != math.prod(expected):
        raise writer.fail(
            f"compares {outputs.layer!r}, {math.prod(expected)} numbers a row, with {target.layer!r}, "
            f"{math.prod(shape)}; give the last layer as many outputs as the target has"
        )
    settings: dict[str, Any] = {field: None if scale is None else {"scale": scale}}
    return writer.add(kind, sources=[outputs, target], **settings)


def take_before(net: NetWriter, feature: Feature, activation: str) -> Feature:
    """Return the feature before a final softmax or sigmoid, which the loss computes itself; it stays for predictions.

    The activation's layer is left out of training where no other layer takes it.
    """
    before = feature.before
    if before is None:
        return feature
    conf = next(conf for conf in net.layers if conf.name == feature.layer)
    function = "softmax" if conf.type_name == "kSoftmax" else "sigmoid"
    if function != activation:
        return feature
    taken = any(feature.layer in layer_conf.srclayers for layer_conf in net.layers)
    if not taken and not conf.include and not conf.exclude:
        conf.exclude = [Phase.kTrain]
    return before


NAMES = {
    "sparse_categorical_crossentropy": SoftmaxLoss,
    "categorical_crossentropy": SoftmaxLoss,
    "softmax": SoftmaxLoss,
    "mean_squared_error": EuclideanLoss,
    "mse": EuclideanLoss,
    "binary_crossentropy": SigmoidCrossEntropyLoss,
    "euclidean": EuclideanLoss,
    "hinge": HingeLoss,
    "crf": CRF,
}
SUMS = {"euclidean"}  # over the outputs of a row; other losses that compare with a feature are means, as in Keras
METRICS = {  # that losses report besides the loss, by the name of the layer's function
    "SoftmaxLoss": ("accuracy",),
    "SigmoidCrossEntropyLoss": ("accuracy",),
    "HingeLoss": ("accuracy",),
    "CRF": ("accuracy",),
    "ClassSoftmaxLoss": ("entropy",),
    "SampledLoss": (),
}


def comparing() -> Set[str]:
    """Return the names of the functions of losses that compare with a feature, not with classes."""
    types = entries("layer").items()
    return {function_name(name) for name, cls in types if isinstance(cls, type) and issubclass(cls, PairLoss)}


def losses_by_name() -> Mapping[str, Callable[..., LayerBuilder]]:
    """Return the functions of losses by the names that compile takes; "huber" follows from kHuberLoss."""
    written = {function.__name__ for function in NAMES.values()}
    further = sorted(comparing() - written)
    return {**NAMES, **{name.removesuffix("Loss").lower(): layer_functions()[name] for name in further}}


def is_loss(kind: str) -> bool:
    """Whether a function of this name makes a loss that nn knows."""
    return kind in METRICS or kind in comparing()


def may_have_params(kind: str) -> bool:
    """Whether a layer that a function of this name makes may have params: of losses, only some have."""
    return kind not in comparing() | {"SoftmaxLoss", "HingeLoss"}


def loss_kind(loss: Any) -> str:
    """Return the name of the layer's function for a loss that is a name or a layer. Raises UserError for another."""
    if isinstance(loss, LayerBuilder):
        return loss.kind
    name = loss if isinstance(loss, str) else ""
    known = losses_by_name()
    if name in known:
        return known[name].__name__
    if callable(loss) and is_loss(getattr(loss, "__name__", "")):
        raise UserError(f"{loss.__name__} is a function; call it: nn.{loss.__name__}()")
    if callable(loss):
        raise UserError("a loss is a name or a layer, not a function; register a loss layer (docs/extending.md)")
    if name in LOSS_NAMES:
        raise UserError(f"there is no loss {name!r}; {LOSS_NAMES[name].removeprefix('there is no such loss; ')}")
    raise UserError(f"there is no loss {loss!r}{nearest(str(loss), known) or '; these are ' + ', '.join(known)}")


def loss_builder(loss: Any, output: Feature, weight: float = 1.0, name: str = "loss") -> LayerBuilder:
    """Return the loss layer for one output.

    Args:
        loss: the name of a loss in Keras, or a loss layer such as ``nn.SoftmaxLoss(topk=5)``.
        output: the feature that it takes.
        weight: a factor of a loss that is given by name.
        name: the name of the layer, if ``loss`` gives none.

    Raises:
        UserError: there is no such loss, or a factor is given for a layer, which has a scale.
    """
    if isinstance(loss, LayerBuilder):
        if weight != 1:
            raise UserError(f"loss_weights has no effect on {loss!r}; give it scale={weight}")
        settings = {"name": name, **loss.settings}
        again = functools.partial(loss_builder, loss, output, name=name)
        return LayerBuilder(loss.kind, loss.write, settings, again, wrapped=loss)
    kind, shape = loss_kind(loss), row_shape(output)
    if kind in comparing() and loss not in SUMS:
        weight /= math.prod(shape or (1,))
    return losses_by_name()[loss](name=name, **({} if weight == 1 else {"scale": weight}))


__getattr__ = missing_names(__name__)
