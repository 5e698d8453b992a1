"""Losses as layers, called on outputs and labels; ``compile`` also accepts Keras's names for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from dsinga.nn.words.loss_sources import compared, numbers_of_target, points_of_row, scores_and_labels, write_loss
from dsinga.nn.writing.feature import Feature, row_shape
from dsinga.nn.writing.symbol import LayerArguments, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings, simple


@layer
def SoftmaxLoss(
    topk: int = 1, scale: float = 1.0, label_smoothing: float = 0.0, **common: Unpack[LayerArguments]
) -> Write:
    """Softmax and cross-entropy with class labels (kSoftmaxLoss), step by step for sequences.

    It reads the scores before a softmax, and reports the accuracy, too.

    Args:
        topk: a prediction is right if the label is among the ``topk`` highest scores.
        scale: factor of the loss.
        label_smoothing: share of the target spread over all classes.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(10)])
        >>> model.compile("adam", nn.SoftmaxLoss(topk=5))
    """
    settings = {"topk": topk, "scale": scale, "label_smoothing": label_smoothing}
    conf = layer_settings("SoftmaxLoss", "kSoftmaxLoss", settings)

    def write(writer: LayerWriter) -> Feature:
        sources = scores_and_labels(writer)
        per_step = True if len(row_shape(sources[0]) or ()) == 2 else None
        return writer.add("kSoftmaxLoss", sources=sources, per_step=per_step, **conf)

    return write


@layer
def FieldSoftmaxLoss(scale: float = 1.0, weighted: bool = False, **common: Unpack[LayerArguments]) -> Write:
    """Softmax and cross-entropy with a class for each point, a mean over all points (kFieldSoftmaxLoss).

    It accepts scores (B, K, *space) and labels (B, *space) or (B, 1, *space). Points with the label -1 or NaN have no
    loss. It reports the accuracy, too.

    Args:
        scale: factor of the loss.
        weighted: whether the labels' last channel weighs each point.
    """
    settings = {"scale": scale, "weighted": weighted}
    return write_loss("FieldSoftmaxLoss", "kFieldSoftmaxLoss", scores_and_labels, settings, points_of_row)


@layer
def Dice(smooth: float = 1e-5, scale: float = 1.0, weighted: bool = False, **common: Unpack[LayerArguments]) -> Write:
    """Soft Dice loss of scores (B, K, *space) and a class for each point, a mean over rows and classes (kDiceLoss).

    A single channel is the score of class 1 of two. Points with the label -1 or NaN are left out.

    Args:
        smooth: added to the overlap and to the sizes, so that a class without points has no loss.
        scale: factor of the loss.
        weighted: whether the labels' last channel weighs each point.
    """
    sources = functools.partial(scores_and_labels, activations=("softmax", "sigmoid"))
    return write_loss("Dice", "kDiceLoss", sources, {"smooth": smooth, "scale": scale, "weighted": weighted})


@layer
def HingeLoss(
    norm: str = "L1", margin: float = 1.0, topk: int = 1, scale: float = 1.0, **common: Unpack[LayerArguments]
) -> Write:
    """Hinge loss Σ max(0, margin - x[label] + x[k])^p·scale / B over the other classes k (kHingeLoss).

    Args:
        norm: whether violations of the margin are summed, "L1", or their squares, "L2".
        margin: by how much the label's score should be above the others.
        topk: a prediction is right if the label is among the ``topk`` highest scores.
        scale: factor of the loss.
    """
    settings = {"norm": norm, "margin": margin, "topk": topk, "scale": scale}
    return write_loss("HingeLoss", "kHingeLoss", scores_and_labels, settings)


def difference_loss(function: str, type: str, mean: bool, settings: Mapping[str, Any]) -> Write:
    """Return a function that writes a loss of differences into a job."""
    sources = functools.partial(compared, weighted=settings["weighted"])
    return write_loss(function, type, sources, settings, numbers_of_target if mean else None)


@layer
def MeanSquaredError(
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    scale: float = 1.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Mean squared error over the numbers of a row, for fields over all points (kEuclideanLoss).

    The mean divides by all points, masked ones included. Weights of points have the mean 1.

    Args:
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
        scale: factor of the loss.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(1)])
        >>> model.compile("adam", nn.MeanSquaredError(masked=True)) # leaves out targets that are NaN
    """
    settings = {"masked": masked, "weighted": weighted, "std": std, "scale": scale}
    return difference_loss("MeanSquaredError", "kEuclideanLoss", True, settings)


@layer
def MeanAbsoluteError(
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    scale: float = 1.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Mean absolute error over the numbers of a row, for fields over all points (kAbsoluteLoss).

    The mean divides by all points, masked ones included. Weights of points have the mean 1.

    Args:
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
        scale: factor of the loss.
    """
    settings = {"masked": masked, "weighted": weighted, "std": std, "scale": scale}
    return difference_loss("MeanAbsoluteError", "kAbsoluteLoss", True, settings)


@layer
def Huber(
    delta: float = 1.0,
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    scale: float = 1.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Huber's loss, the mean over the numbers of a row, for fields over all points (kHuberLoss).

    The mean divides by all points, masked ones included. Weights of points have the mean 1.

    Args:
        delta: error beyond which the loss is linear.
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
        scale: factor of the loss.
    """
    settings = {"delta": delta, "masked": masked, "weighted": weighted, "std": std, "scale": scale}
    return difference_loss("Huber", "kHuberLoss", True, settings)


@layer
def EuclideanLoss(
    scale: float = 1.0,
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    **common: Unpack[LayerArguments],
) -> Write:
    """Squared error summed over the numbers of a row: Σ (x - target)²·scale / B (kEuclideanLoss).

    Args:
        scale: factor of the loss.
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
    """
    settings = {"scale": scale, "masked": masked, "weighted": weighted, "std": std}
    return difference_loss("EuclideanLoss", "kEuclideanLoss", False, settings)


@layer
def AbsoluteLoss(
    scale: float = 1.0,
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    **common: Unpack[LayerArguments],
) -> Write:
    """Absolute error summed over the numbers of a row: Σ |x - target|·scale / B (kAbsoluteLoss).

    Args:
        scale: factor of the loss.
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
    """
    settings = {"scale": scale, "masked": masked, "weighted": weighted, "std": std}
    return difference_loss("AbsoluteLoss", "kAbsoluteLoss", False, settings)


@layer
def HuberLoss(
    delta: float = 1.0,
    scale: float = 1.0,
    masked: bool = False,
    weighted: bool = False,
    std: Sequence[float] = (),
    **common: Unpack[LayerArguments],
) -> Write:
    """Huber's loss summed over the numbers of a row: Σ h(x - target)·scale / B (kHuberLoss).

    Args:
        delta: error beyond which the loss is linear.
        scale: factor of the loss.
        masked: whether points with a NaN target are left out.
        weighted: whether the target's last channel weighs each point.
        std: divisor of the differences, a number or one for each channel.
    """
    settings = {"delta": delta, "scale": scale, "masked": masked, "weighted": weighted, "std": std}
    return difference_loss("HuberLoss", "kHuberLoss", False, settings)


@layer
def SigmoidCrossEntropyLoss(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Binary cross-entropy -Σ (t·log p + (1 - t)·log(1 - p))·scale / B, p = sigmoid(x) (kSigmoidCrossEntropyLoss).

    It reads the scores x before a sigmoid.
    """
    sources = functools.partial(compared, activation="sigmoid")
    return write_loss("SigmoidCrossEntropyLoss", "kSigmoidCrossEntropyLoss", sources, {"scale": scale})


@layer
def FocalLoss(gamma: float = 2.0, alpha: float = 0.25, scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Focal loss Σ α'·(1 - p')^gamma·c·scale / B, where c is the binary cross-entropy of a number (kFocalLoss).

    Args:
        gamma: exponent of 1 - p', which makes confident right answers count less.
        alpha: weight of the answer 1; the answer 0 has the weight 1 - alpha.
        scale: factor of the loss.
    """
    sources = functools.partial(compared, activation="sigmoid")
    return write_loss("FocalLoss", "kFocalLoss", sources, {"gamma": gamma, "alpha": alpha, "scale": scale})


@layer
def KLDivergenceLoss(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Kullback-Leibler divergence Σ t·(log t - log p)·scale / B, p = softmax(x) (kKLDivergenceLoss).

    It reads the scores x before a softmax.
    """
    sources = functools.partial(compared, activation="softmax")
    return write_loss("KLDivergenceLoss", "kKLDivergenceLoss", sources, {"scale": scale})


@layer
def CosineLoss(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """1 minus the cosine of the angle between two rows, Σ (1 - x·y / (|x|·|y|))·scale / B (kCosineLoss)."""
    return write_loss("CosineLoss", "kCosineLoss", compared, {"scale": scale})


@layer
def ContrastiveLoss(margin: float = 1.0, scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Contrastive loss of pairs Σ (y·d² + (1 - y)·max(0, margin - d)²)/2·scale / B (kContrastiveLoss).

    Call it on two tensors and an input with labels y, 1 for rows that belong together. It returns the distance d.

    Args:
        margin: distance beyond which rows that do not belong together have no loss.
        scale: factor of the loss.
    """
    return simple("ContrastiveLoss", "kContrastiveLoss", margin=margin, scale=scale)


@layer
def TripletLoss(margin: float = 1.0, scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Triplet loss Σ max(0, d₁ - d₂ + margin)·scale / B of the distances of rows (kTripletLoss).

    Call it on three tensors: rows, similar rows (at the distance d₁) and different rows (at d₂).

    Args:
        margin: by how much the second distance should be larger.
        scale: factor of the loss.
    """
    return simple("TripletLoss", "kTripletLoss", margin=margin, scale=scale)


@layer
def MeanLoss(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """The mean of a row's weighted sum as a loss, scale·Σ w·x / B (kMeanLoss); the second source has the weights w."""
    return simple("MeanLoss", "kMeanLoss", scale=scale)


@layer
def ClassSoftmaxLoss(vocab_size: int, class_start: Sequence[int], **common: Unpack[LayerArguments]) -> Write:
    """Cross-entropy by classes of words, -Σ log P(class of the label)·P(label | class) / B (kClassSoftmaxLoss).

    Args:
        vocab_size: number of words.
        class_start: code of the first word of each class, rising from 0.
    """
    inits = {"word": "random_uniform", "class": "random_uniform"}
    settings = {"vocab_size": vocab_size, "class_start": class_start}
    return write_loss("ClassSoftmaxLoss", "kClassSoftmaxLoss", scores_and_labels, settings, inits=inits)


@layer
def SampledLoss(
    vocab_size: int,
    num_samples: int = 5,
    method: str = "kNegativeSampling",
    counts: Sequence[int] = (),
    power: float = 0.75,
    **common: Unpack[LayerArguments],
) -> Write:
    """Logistic loss of the label and of random words, -Σ (log σ(z[label]) + Σ_k log σ(-z[k])) / B (kSampledLoss).

    Args:
        vocab_size: number of words.
        num_samples: number of random words for each label.
        method: "kNegativeSampling" by scores alone, or "kNCE", noise-contrastive estimation.
        counts: how often each word occurs; without it, Zipf's law.
        power: exponent of the counts in the probability of a random word.
    """
    settings = {
        "vocab_size": vocab_size,
        "num_samples": num_samples,
        "method": method,
        "counts": counts,
        "power": power,
    }
    inits = {"weight": "random_uniform"}
    return write_loss(
        "SampledLoss", "kSampledLoss", scores_and_labels, {"vocab_size": vocab_size, **settings}, inits=inits
    )
