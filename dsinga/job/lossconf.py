"""The settings of losses and of layers that rank predictions (SINGA 0.3's job.proto)."""

from __future__ import annotations

from dataclasses import field

from dsinga.job.enums import HingeNorm, PolicyDistribution, SamplingMethod
from dsinga.job.limits import Count, Members, Natural, NonNegative, Positive, Share
from dsinga.job.message import Message


class SoftmaxLossConf(Message):
    """Settings of kSoftmaxLoss: a prediction is right if the label is among the ``topk`` largest.

    Beyond SINGA: ``label_smoothing``, the share of the target that is spread over all classes.
    """

    topk: Count = 1
    scale: NonNegative = 1.0
    label_smoothing: Share = 0.0


class ClassSoftmaxLossConf(Message):
    """Settings of kClassSoftmaxLoss: the number of words, and the first word of each class."""

    vocab_size: Count
    class_start: list[Natural] = field(default_factory=list)


class SampledLossConf(Message):
    """Settings of kSampledLoss: the number of words, how many random ones, and how often each word occurs."""

    vocab_size: Count
    num_samples: Members = 5
    method: SamplingMethod = SamplingMethod.kNegativeSampling
    counts: list[Natural] = field(default_factory=list)
    power: NonNegative = 0.75


class EuclideanLossConf(Message):
    """Settings of kEuclideanLoss: a factor of the loss and its gradient."""

    scale: NonNegative = 1.0


class SigmoidCrossEntropyLossConf(Message):
    """Settings of kSigmoidCrossEntropyLoss: a factor of the loss and its gradient."""

    scale: NonNegative = 1.0


class HingeLossConf(Message):
    """Settings of kHingeLoss: its norm and margin."""

    norm: HingeNorm = HingeNorm.L1
    margin: Positive = 1.0
    topk: Count = 1
    scale: NonNegative = 1.0


class PolicyGradientLossConf(Message):
    """Settings of kPolicyGradientLoss: the distribution of its policy, and a factor of the loss."""

    distribution: PolicyDistribution = PolicyDistribution.kCategorical
    scale: NonNegative = 1.0


class PPOLossConf(Message):
    """Settings of kPPOLoss: its distribution, the largest change of a probability, a factor of the loss."""

    distribution: PolicyDistribution = PolicyDistribution.kCategorical
    clip: Positive = 0.2
    scale: NonNegative = 1.0


class EntropyLossConf(Message):
    """Settings of kEntropyLoss: the distribution of its policy, and a factor of the loss."""

    distribution: PolicyDistribution = PolicyDistribution.kCategorical
    scale: NonNegative = 1.0


class VTraceLossConf(Message):
    """Settings of kVTraceLoss: the distribution of its policy, the largest ratios, a factor of the values' loss."""

    distribution: PolicyDistribution = PolicyDistribution.kCategorical
    rho_clip: Positive = 1.0
    c_clip: Positive = 1.0
    value_scale: NonNegative = 0.5


class TDLossConf(Message):
    """Settings of kTDLoss: the error beyond which the loss is linear (0: none), and a factor of the loss."""

    delta: NonNegative = 1.0
    scale: NonNegative = 1.0


class MeanLossConf(Message):
    """Settings of kMeanLoss: a factor of the loss."""

    scale: float = 1.0
