"""Nets in a few lines of Python. Written by ``python -m tests.support.nn_stub``: do not edit."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dsinga.addons.text.text_vectorization import TextVectorization as TextVectorization
from dsinga.engine.local_net import LocalNet as LocalNet
from dsinga.job.layerconf import ParamConf
from dsinga.job.layerconf import ParamGenConf
from dsinga.job.schema import AlgConf
from dsinga.job.schema import ClusterConf
from dsinga.job.schema import Job
from dsinga.job.updaterconf import LRGenConf
from dsinga.job.updaterconf import MomentumConf
from dsinga.job.updaterconf import ParamSettingsConf
from dsinga.job.updaterconf import UpdaterConf
from dsinga.nn.model.from_job import JobModel
from dsinga.nn.model.model import Model as Model
from dsinga.nn.model.sequential import Sequential as Sequential
from dsinga.nn.words import augment as augment
from dsinga.nn.words.cluster import ClusterFields
from dsinga.nn.words.cluster import Unpack
from dsinga.nn.words.convolutions import Sides
from dsinga.nn.words.convolutions import Size
from dsinga.nn.words.image_layers import Sides
from dsinga.nn.words.image_layers import Size
from dsinga.nn.words.metric_layers import MetricLayer
from dsinga.nn.words.optimizers import Momentum
from dsinga.nn.words.optimizers import Rate
from dsinga.nn.words.regularisers import Penalty
from dsinga.nn.words.schedules import LearningRateSchedule as LearningRateSchedule
from dsinga.nn.words.schedules import Rate
from dsinga.nn.writing.symbol import LayerBuilder
from dsinga.nn.writing.symbol import Symbol
from numpy import ndarray
from typing import Any
import os

def AbsoluteLoss(scale: float = 1.0, masked: bool = False, weighted: bool = False, std: list[float] = [], *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Absolute error, Σ |x - target|·scale / B over two sources of equal sizes; the feature is x - target, (B, n) (kAbsoluteLoss).

    Args:
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all."""

def Activation(activation: Any, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Activation by its name: linear, relu, elu, selu, softplus, sigmoid, tanh, gelu, silu, softmax, or another.

    Others are leaky_relu, swish, which is silu, and stanh.

    stanh is SINGA's 1.7159·tanh(2x/3). A function of your own is called as that of a Lambda (kFunction)."""

def Adadelta(learning_rate: Rate = 0.001, rho: float = 0.95, epsilon: float = 1e-07, weight_decay: float = 0.0, *,
        decoupled_weight_decay: bool = False, clip_norm: float = 0.0, clip_global_norm: float = 0.0,
        clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (), use_ema: bool = False,
        ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """AdaDelta (Zeiler, 2012) (kAdaDelta).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        rho: the decay of the running means of squared gradients and of squared updates.
        epsilon: what is added under both roots.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Adagrad(learning_rate: Rate = 0.001, epsilon: float = 1e-07, weight_decay: float = 0.0, *,
        decoupled_weight_decay: bool = False, clip_norm: float = 0.0, clip_global_norm: float = 0.0,
        clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (), use_ema: bool = False,
        ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """AdaGrad (Duchi, Hazan and Singer, 2011), whose accumulator begins at 0, in Keras at 0.1 (kAdaGrad).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        epsilon: what is added to the divisor, under the root.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Adam(learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-07,
        weight_decay: float = 0.0, *, decoupled_weight_decay: bool = False, clip_norm: float = 0.0,
        clip_global_norm: float = 0.0, clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (),
        use_ema: bool = False, ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """Adam (Kingma and Ba, 2015) as published, with bias correction (kAdam).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta_1: the decay of the first moment, the running mean of gradients.
        beta_2: the decay of the second moment, the running mean of squared gradients.
        epsilon: what is added to the divisor.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def AdamW(learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-07,
        weight_decay: float = 0.004, *, decoupled_weight_decay: bool = False, clip_norm: float = 0.0,
        clip_global_norm: float = 0.0, clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (),
        use_ema: bool = False, ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """AdamW (Loshchilov and Hutter, 2019): Adam, whose ``weight_decay`` is always decoupled (kAdamW).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta_1: the decay of the first moment, the running mean of gradients.
        beta_2: the decay of the second moment, the running mean of squared gradients.
        epsilon: what is added to the divisor.
        weight_decay: the factor of the param that, times the learning rate, is subtracted from it.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Adamax(learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-07,
        weight_decay: float = 0.0, *, decoupled_weight_decay: bool = False, clip_norm: float = 0.0,
        clip_global_norm: float = 0.0, clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (),
        use_ema: bool = False, ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """AdaMax (Kingma and Ba, 2015) without bias correction (kAdamMax).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta_1: the decay of the first moment, the running mean of gradients.
        beta_2: the decay of the infinity norm of gradients.
        epsilon: what is added to the divisor.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Add(*, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Sum of the sources, number by number (kAdd), such as x + f(x) of a residual net."""

def Arithmetic(operator: str, number: float | None = None, swapped: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """x op y of two sources, or of one source and a ``number``: elementwise, or the product of matrices (kArithmetic).

    Args:
        operator: ADD, SUBTRACT, MULTIPLY, DIVIDE, POWER, MATMUL, MAXIMUM, MINIMUM, AVERAGE, or a comparison: EQUAL, NOT_EQUAL, GREATER, GREATER_EQUAL.
        number: the second operand, in place of a second source.
        swapped: whether the number is the first operand."""

def Attention(score_mode: str = 'dot', num_heads: int = 1, use_causal_mask: bool = False,
        score_initializer: Any = 'uniform', *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Weighted means of values (kAttention), called on [query, value] or, as in Keras, on [query, value, key].

    The labels of a last source (B, Tk), an input of codes, give the lengths of keys and values; so do those of any
    fourth source. ``score_mode`` is "dot", "scaled_dot" or "additive", whose param ``score_initializer`` initialises;
    with ``use_causal_mask`` a query sees no later keys."""

def Average(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of two sources, number by number (kArithmetic); axes of length 1 are repeated."""

def AveragePooling1D(pool_size: int | None = 2, strides: int | None = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each window of steps before the end of a sequence; ``strides`` are ``pool_size`` by default."""

def AveragePooling2D(pool_size: Size = 2, strides: Size | None = None, padding: str | Sides = 'valid', *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each window of images without the padding (kPooling); ``strides`` are ``pool_size`` by default."""

def AveragePooling3D(pool_size: Size = 2, strides: Size | None = None, padding: str | Sides = 'valid', *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each window of volumes without the padding (kPooling); ``strides`` are ``pool_size`` by default."""

def BM(momentum: float = 0.1, use_global_stats: bool = False, synchronized: bool = True, epsilon: float = 1e-05,
        keep_initial: bool = False, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Batch normalisation of (B, C, ...): scale·(x - mean)/√(var + epsilon) + bias for each channel (kBM).

    Args:
        momentum: the weight of the newest batch in the running statistics, as in PyTorch.
        use_global_stats: whether training, too, normalises with the running statistics and keeps them, as in Caffe.
        synchronized: whether the statistics are those of the whole batch over all workers, else of each worker's rows.
        epsilon: what is added to the variance; beyond SINGA.
        keep_initial: whether the initial running statistics have weight in the first steps, too, as in PyTorch and Keras."""

def BatchNormalization(momentum: float | None = None, epsilon: float = 1e-05, synchronized: bool = True,
        axis: int | None = None, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Batch normalisation of each channel, axis 1, or -1 where records have their channels last (kBM).

    ``momentum`` is the share of the old running statistics, as in Keras; by default 0.9 (Keras: 0.99). With
    ``synchronized`` the statistics are those of the whole batch over all workers, as in one process; without it, which
    is Keras's default, those of each worker's rows. A layer that is not trainable normalises with its running
    statistics in training, too, and does not move them."""

def Bidirectional(builder: LayerBuilder, name: str | None = None) -> LayerBuilder:
    """Return the recurrent layer in both directions: (B, T, 2·units), the forward direction first."""

def CD(k: int = 1) -> AlgConf:
    """Return contrastive divergence with ``k`` Gibbs steps, for ``compile(algorithm=)``."""

def CRF(*, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Linear-chain conditional random field: the loss is -Σ log P(tags of a sequence) / B (kCRF)."""

def CTCLoss(blank: int = 0, scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Connectionist temporal classification, -Σ log P(labels)·scale / B over all ways to place the labels in time (kCTCLoss).

    Args:
        blank: the class that stands for no label.
        scale: the factor of the loss and its gradient."""

def CachedAttention(num_heads: int = 1, score: str = 'kScaledDot', rotary: bool = False, steps: int = 256,
        causal: bool = True, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """A causal kAttention of one step (B, 1, n), which also sees the keys and values of the steps before it (kCachedAttention).

    Args:
        num_heads: the number of heads.
        score: as in kAttention, kScaledDot or kDot.
        rotary: whether queries and keys are rotated by their positions.
        steps: how many steps are kept.
        causal: must be true."""

def ClassSoftmaxLoss(vocab_size: int, class_start: list[int], *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Cross-entropy by classes of words, -Σ log P(class of the label)·P(label | class) / B (kClassSoftmaxLoss).

    Args:
        vocab_size: the number of words.
        class_start: the code of the first word of each class, rising from 0; by default there is one class."""

def Cluster(*, workers: int | None = None, groups: int | None = None, servers: int | None = None,
        server_groups: int | None = None, workers_per_process: int | None = None,
        servers_per_process: int | None = None, sites: int | None = None, sync_freq: int | None = None,
        **fields: Unpack[ClusterFields]) -> ClusterConf:
    """Return a topology: ``nn.Cluster(workers=4, groups=2, servers=2, server_groups=1)``. What is not given is 1.

    Args:
        workers: the number of workers of a group, which share the records of a batch or the layers of a net.
        groups: the number of worker groups, each of which trains on batches of its own.
        servers: the number of servers of a group, which keep the params in slices.
        server_groups: the number of server groups, each of which has all params.
        workers_per_process: how many workers of a group run in a process, on threads.
        servers_per_process: how many servers of a group run in a process.
        sites: the number of worker groups with servers of their own, which train apart, and whose params move by the
            mean of their changes every ``sync_freq`` steps, as in DiLoCo (docs/sites.md).
        sync_freq: the number of steps between two synchronisations of server groups.
        fields: further fields of ``cluster { }`` in a job, by their names there.

    Raises:
        UserError: there is no such field, or ``sites`` are given without ``sync_freq`` or with a number of groups."""

def Concate(concate_dim: int = 0, num_concates: int = 1, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Join the sources along axis ``concate_dim``; their shapes may differ in the length of this axis only (kConcate).

    Args:
        concate_dim: the axis along which the sources are joined; 0 is the batch.
        num_concates: the number of sources; 1 for as many as there are."""

def Concatenate(axis: int = -1, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Its sources, joined along ``axis`` (kConcate); -1 is the last one, the channels of images are axis 1.

    Where records have their channels last, axes count as there: -1 are the channels."""

def Constant(value: float = 0.0) -> ParamGenConf:
    """Return the initialiser that fills a param with ``value``."""

def ContrastiveLoss(margin: float = 1.0, scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Contrastive loss of pairs, Σ (y·d² + (1 - y)·max(0, margin - d)²)/2·scale / B; the feature is the distance d (kContrastiveLoss).

    Args:
        margin: the distance from which rows that do not belong together count no more.
        scale: the factor of the loss and its gradient."""

def Conv1D(filters: int, kernel_size: int, strides: int = 1, padding: str | int = 'valid', activation: Any = None,
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros',
        kernel_regularizer: Any = None, bias_regularizer: Any = None, dilation_rate: int = 1, groups: int = 1, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Convolution over the steps of sequences (B, T, n), and its activation (kConvolution1D).

    ``padding`` is "valid", "same", "causal", or how many steps of zeros are before and after each sequence; the other
    arguments are those of :func:`dsinga.nn.Conv2D`."""

def Conv2D(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid', activation: Any = None,
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros',
        kernel_regularizer: Any = None, bias_regularizer: Any = None, dilation_rate: Size = 1, groups: int = 1, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Convolution of images (B, C, H, W) to (B, filters, H', W'), and its activation (kConvolution).

    Args:
        filters: the number of channels of the feature.
        kernel_size: the window, a number or (rows, columns).
        strides: by how much the window moves.
        padding: "valid", "same", as in Keras, or how many zeros are on each side.
        activation: the function after the layer: its name, or a function of your own.
        use_bias: whether each filter has a bias.
        kernel_initializer: the initialiser of the weight, or its name.
        bias_initializer: the initialiser of the bias, or its name.
        kernel_regularizer: the penalty of the weight, as nn.L2(0.01), or its name, l1, l2 or l1_l2.
        bias_regularizer: the penalty of the bias.
        dilation_rate: how far apart neighbours in a window are.
        groups: into how many equal groups filters and channels are divided; filters take the channels of their group."""

def Conv2DTranspose(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid',
        output_padding: Size | None = None, activation: Any = None, use_bias: bool = True,
        kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', kernel_regularizer: Any = None,
        bias_regularizer: Any = None, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Transposed convolution of images, which become ``strides`` times as large (kTransposedConvolution).

    As a number ``padding`` says how many pixels of the result are left out on each side; ``output_padding`` says how
    many pixels the result has more, by default as in Keras."""

def Conv3D(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid', activation: Any = None,
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros',
        kernel_regularizer: Any = None, bias_regularizer: Any = None, dilation_rate: Size = 1, groups: int = 1, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Convolution of volumes (B, C, D, H, W), and its activation (kConvolution); arguments as of :func:`Conv2D`."""

def Conv3DTranspose(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid',
        output_padding: Size | None = None, activation: Any = None, use_bias: bool = True,
        kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', kernel_regularizer: Any = None,
        bias_regularizer: Any = None, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Transposed convolution of volumes (kTransposedConvolution), with the arguments of :func:`Conv2DTranspose`."""

def ConvLSTM2D(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid',
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform',
        recurrent_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', return_sequences: bool = False,
        kernel_regularizer: Any = None, recurrent_regularizer: Any = None, bias_regularizer: Any = None, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Convolutional LSTM over images (B, T, C, H, W), with tanh and sigmoid (kConvLSTM).

    The bias of the forget gate begins at 0, in Keras at 1. It gives the last step, or with ``return_sequences`` all."""

def Convolution(num_filters: int, kernel: int | None = None, pad: int | None = None, stride: int | None = None,
        kernel_x: int | None = None, kernel_y: int | None = None, pad_x: int | None = None, pad_y: int | None = None,
        stride_x: int | None = None, stride_y: int | None = None, kernel_z: int | None = None, pad_z: int | None = None,
        stride_z: int | None = None, same: bool = False, bias_term: bool = True, group: int = 1,
        dilation: int | None = None, dilation_x: int | None = None, dilation_y: int | None = None,
        dilation_z: int | None = None, workspace_byte_limit: int = 512, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Convolution (cross-correlation) of images (B, C, H, W) to (B, num_filters, H', W'), also of volumes (kConvolution).

    Args:
        kernel: the height and width of the window; 3 without it, kernel_x and kernel_y.
        pad: how many pixels of zeros surround an image; 0 without it, pad_x and pad_y.
        stride: by how many pixels the window moves; without it, stride_x and stride_y, 1 (pooling: 2).
        kernel_x: the width of the window; by default kernel.
        kernel_y: the height of the window; by default kernel.
        pad_x: how many pixels of zeros are left and right of an image; by default pad.
        pad_y: how many pixels of zeros are above and below an image; by default pad.
        stride_x: by how many pixels the window moves to the right; by default stride.
        stride_y: by how many pixels the window moves down; by default stride.
        kernel_z: the depth of the window in volumes; by default kernel; beyond SINGA.
        pad_z: how many pixels of zeros are before and behind a volume; by default pad.
        stride_z: by how many pixels the window moves along the depth; by default stride.
        same: whether to pad so that there are size / stride windows along an axis, rounded up, with one pixel more below and on the right where the padding is odd, as in TensorFlow and Keras; beyond SINGA.
        num_filters: the number of filters.
        bias_term: whether a bias is added; beyond SINGA.
        group: into how many equal groups filters and channels are divided, as in Caffe; beyond SINGA.
        dilation: how many pixels apart neighbours in a window are, as in Caffe; 1 by default; beyond SINGA.
        dilation_x: how many apart they are along a row; by default dilation.
        dilation_y: how many apart they are along a column; by default dilation.
        dilation_z: how many apart they are along the depth; by default dilation.
        workspace_byte_limit: the memory for workspace; has no effect."""

def CosineDecay(initial_learning_rate: float, decay_steps: int, alpha: float = 0.0, warmup_target: float | None = None,
        *, minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0,
        warmup_lr: float = 0.0) -> LRGenConf:
    """Half a cosine from the initial rate, or ``warmup_target``, down to ``alpha`` times that rate (kCosine).

    Args:
        initial_learning_rate: the rate at the beginning.
        decay_steps: the number of steps from the highest rate to the last.
        alpha: the last rate, as a share of the highest.
        warmup_target: the rate to which that of the beginning rises in the first ``warmup_steps`` steps, as in Keras.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def CosineDecayRestarts(initial_learning_rate: float, first_decay_steps: int, t_mul: float = 2.0, m_mul: float = 1.0,
        alpha: float = 0.0, *, minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0,
        warmup_lr: float = 0.0) -> LRGenConf:
    """Half a cosine from the initial rate down to ``alpha`` times that rate, again and again (kCosineRestarts).

    Args:
        initial_learning_rate: the rate at the beginning.
        first_decay_steps: the number of steps of the first period.
        t_mul: how many times as long each period is as the one before.
        m_mul: what the height of the cosine is multiplied by in each period.
        alpha: the lowest rate, as a share of the initial one.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def CosineLoss(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """1 minus the cosine of the angle between two rows, Σ (1 - x·y / (|x|·|y|))·scale / B; the feature is the cosine (kCosineLoss).

    Args:
        scale: the factor of the loss and its gradient."""

def CosineSimilarity(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Cosine of the angle between rows of two sources, times ``scale`` (kCosineSimilarity): (B, n) to (B, 1)."""

def Cropping(before: list[int] = [], after: list[int] = [], *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images (B, C, H, W) or volumes (B, C, D, H, W) without their outermost points: H' = H - before - after (kCropping).

    Args:
        before: how many points are left out before the first; 0 by default.
        after: how many points are left out after the last; 0 by default."""

def Cropping2D(cropping: Sides = 0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images without their outermost pixels (kCropping): ``cropping`` of each side, as ``padding`` of Padding2D."""

def Cropping3D(cropping: Sides = 0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Volumes without their outermost points (kCropping): ``cropping`` of each side."""

def Dense(units: int, activation: Any = None, use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform',
        bias_initializer: Any = 'zeros', transpose: bool = False, kernel_regularizer: Any = None,
        bias_regularizer: Any = None, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Fully connected layer with ``units`` outputs (kInnerProduct), and its activation.

    Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened.

    Args:
        units: the number of outputs for each row.
        activation: the function after the layer: its name, or a function of your own.
        use_bias: whether a bias is added.
        kernel_initializer: the initialiser of the weight, or its name.
        bias_initializer: the initialiser of the bias, or its name.
        transpose: whether the weight is (inputs, units); so it can share that of another layer, (units, inputs).
        kernel_regularizer: the penalty of the weight, as nn.L2(0.01), or its name, l1, l2 or l1_l2.
        bias_regularizer: the penalty of the bias."""

def DepthwiseConv2D(kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid', depth_multiplier: int = 1,
        dilation_rate: Size = 1, activation: Any = None, use_bias: bool = True,
        depthwise_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros',
        depthwise_regularizer: Any = None, bias_regularizer: Any = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Depthwise convolution of images, and its activation (kConvolution, a group for each channel).

    Each channel has ``depth_multiplier`` filters of its own: (B, C, H, W) to (B, depth_multiplier·C, H', W')."""

def Dice(smooth: float = 1e-05, scale: float = 1.0, weighted: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Soft Dice loss of scores (B, K, *space) and a class for each point, a mean over rows and classes (kDiceLoss).

    One channel is the score of class 1 of two. Points with the label -1 or NaN are left out.

    Args:
        smooth: the number s, by which a class that is nowhere has no loss.
        scale: the factor of the loss and its gradient.
        weighted: whether the last channel of the labels has a weight for each point."""

def DistributionLoss(distribution: str = 'normal', score: str = 'nll', scale: float = 1.0, masked: bool = False,
        weighted: bool = False, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Score of a predicted distribution, Σ s(x, y)·scale / B: its negative log-likelihood, or its CRPS (kDistributionLoss).

    Args:
        distribution: the distribution.
        score: its negative log-likelihood, or its CRPS.
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point."""

def DistributionParams(distribution: str = 'normal', axis: int = 1, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Parameters of a distribution: those that are above 0 are log(1 + exp(x)) + 1e-6, the others x (kDistributionParams).

    Args:
        distribution: the distribution.
        axis: the axis of the parameters: 1, or 2 of sequences."""

def Dropout(rate: float, unit: str = 'kNumber', *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """In training a share ``rate`` of the numbers is 0, or of the channels or features ``unit`` says (kDropout)."""

def Dueling(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """v + a - mean(a) of a value v (B, 1) and advantages a (B, K): (B, K) (Wang et al. 2016, equation 9) (kDueling)."""

def Dummy(input: bool = False, output: bool = False, shape: list[int] = [], *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Pass on the source; with ``input``, make uniform random numbers in [0, 1) of ``dummy_conf.shape`` instead (kDummy).

    Args:
        input: whether the layer makes random numbers, in place of passing on its source.
        output: whether the layer is an end of the net.
        shape: the shape of the random numbers, the batch first."""

def ELU(*, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """x for x > 0, else e^x - 1 (kActivation)."""

def Embedding(input_dim: int, output_dim: int, embeddings_initializer: Any = 'uniform', dense_gradient: bool = False,
        embeddings_regularizer: Any = None, mask_zero: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Vectors of codes, looked up in a table: (B, T) to (B, T, output_dim), or (B,) to (B, output_dim) (kEmbedding).

    Args:
        input_dim: the number of different codes.
        output_dim: the width of the vectors.
        embeddings_initializer: the initialiser of the table, or its name.
        dense_gradient: whether the gradient is a whole array, so that updaters move all rows in each step.
        embeddings_regularizer: the penalty of the table, as nn.L2(0.01), or its name.
        mask_zero: whether steps of the code 0 are left out, as those after the end of a sequence."""

def EnsembleLoss(members: int, fairness: float = 0.0, scale: float = 1.0, masked: bool = False, weighted: bool = False,
        *, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """CRPS of K members x, Σ (Σ |x_i - y| / K - Σ |x_i - x_j|·c)·scale / B over numbers y, c = 1 / (2·K²) (kEnsembleLoss).

    Args:
        members: how many members there are.
        fairness: the share of the fair CRPS, for members that differ by random numbers: 1, or almost 1.
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point."""

def EntropyLoss(distribution: str = 'kCategorical', scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Minus the entropy of the policy, -scale·Σ H(π) / B: what keeps a policy from being certain too early (kEntropyLoss).

    Args:
        distribution: what the policy's numbers are: scores of actions, or means and logs of deviations.
        scale: the factor of the loss."""

def EuclideanLoss(scale: float = 1.0, masked: bool = False, weighted: bool = False, std: list[float] = [], *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Squared error, Σ (x - target)²·scale / B over two sources of equal sizes; the feature is x - target, (B, n) (kEuclideanLoss).

    Args:
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all."""

def ExponentialDecay(initial_learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False, *,
        minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0,
        warmup_lr: float = 0.0) -> LRGenConf:
    """The schedule initial·decay_rate^(step / decay_steps) (kExponential, kStep).

    Args:
        initial_learning_rate: the rate at the beginning.
        decay_steps: the number of steps in which the rate is multiplied by ``decay_rate``.
        decay_rate: what the rate is multiplied by.
        staircase: whether the exponent is rounded down.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def FieldError(channel: Sequence[str] = (), climatology: Any = None) -> MetricLayer:
    """Metrics "rmse", "mae" and "bias" of fields, and "anomaly_correlation" with a climatology (kFieldError).

    The loss says whether points are masked or weighted.

    Args:
        channel: the names of the channels of the labels, for metrics of each, such as "rmse_t2m".
        climatology: what anomalies are differences of: a number for each channel, (C,), or an array (C, *space); of
            one channel also a number, or (*space).

    Raises:
        UserError: the climatology is no array of numbers, or has NaN."""

def FieldSoftmaxLoss(scale: float = 1.0, weighted: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Softmax and cross-entropy with a class for each point, as a mean over points (kFieldSoftmaxLoss).

    It takes scores (B, K, *space) and labels (B, *space) or (B, 1, *space); points with the label -1 or NaN are
    left out, but counted in the divisor. It reports the accuracy, too.

    Args:
        scale: the factor of the loss and its gradient.
        weighted: whether the last channel of the labels has a weight for each point."""

def Flatten(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Makes each row a vector, (B, n): a kReshape in the job where the next layer does not flatten its source itself.

    The numbers keep their order, that of channels, rows and columns of images; in Keras channels are last."""

def FocalLoss(gamma: float = 2.0, alpha: float = 0.25, scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Focal loss, Σ α'·(1 - p')^gamma·c·scale / B, where c is the loss of kSigmoidCrossEntropyLoss; the feature is p (kFocalLoss).

    Args:
        gamma: the exponent of 1 - p', by which sure and right answers count less.
        alpha: the weight of the answer 1; 1 - alpha is that of 0.
        scale: the factor of the loss and its gradient."""

def FunctionLoss(function: str, scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """A user's loss f(labels, x)·scale: one number a row, several, of which the mean counts, or the mean over rows (kFunctionLoss).

    Args:
        function: the function: "module:function", or a name by dsinga.register("function", ...).
        scale: the factor of the loss and its gradient."""

def GELU(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Gaussian error linear unit x·Φ(x), with the normal distribution Φ in its exact form (kActivation)."""

def GRU(units: int, activation: str | None = 'tanh', recurrent_activation: str | None = 'sigmoid',
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform',
        recurrent_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', return_sequences: bool = False,
        bidirectional: bool = False, carry: bool | None = None, kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None, bias_regularizer: Any = None, dropout: float = 0.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Gated recurrent units over sequences (B, T, n) (kGRU).

    Args:
        units: the width of the hidden state.
        activation: that of the candidate: sigmoid, tanh, relu or linear.
        recurrent_activation: that of the gates, likewise.
        use_bias: whether a bias is added.
        kernel_initializer: the initialiser of the weight, or its name.
        recurrent_initializer: the initialiser of the hidden state's weight, or its name.
        bias_initializer: the initialiser of the bias, or its name.
        return_sequences: whether it gives all steps, (B, T, units), else the last one, (B, units).
        bidirectional: whether a second direction, from the last step to the first, is joined to it.
        carry: whether the state goes on from that of the same row of the batch before.
        kernel_regularizer: the penalty of the weight, as nn.L2(0.01), or its name, l1, l2 or l1_l2.
        recurrent_regularizer: the penalty of the weight of the hidden state.
        bias_regularizer: the penalty of the bias.
        dropout: the share of the features of the source that training leaves out, at all steps."""

def GlobalAveragePooling1D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n)."""

def GlobalAveragePooling2D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each channel of images (kPooling): (B, C)."""

def GlobalAveragePooling3D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Mean of each channel of volumes (kPooling): (B, C)."""

def GlobalMaxPooling1D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n)."""

def GlobalMaxPooling2D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each channel of images (kPooling): (B, C)."""

def GlobalMaxPooling3D(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each channel of volumes (kPooling): (B, C)."""

def GroupNorm(groups: int = 32, epsilon: float = 1e-05, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Group normalisation of (B, C, ...): scale·(x - mean)/√(var + epsilon) + bias for each channel (kGroupNorm).

    Args:
        groups: into how many equal groups the channels are divided.
        epsilon: what is added to the variance; beyond SINGA."""

def GroupNormalization(groups: int = 32, epsilon: float = 1e-05, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Group normalisation of each row over groups of channels, with a scale and bias for each channel (kGroupNorm)."""

def HingeLoss(norm: str = 'L1', margin: float = 1.0, topk: int = 1, scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Hinge loss, Σ max(0, margin - x[label] + x[k])^p·scale / B over the classes k other than the label (kHingeLoss).

    Args:
        norm: whether violations of the margin are summed, or their squares.
        margin: by how much the label's score should be above the others.
        topk: a prediction counts as right if the label is among so many highest scores.
        scale: the factor of the loss and its gradient."""

def Huber(delta: float = 1.0, masked: bool = False, weighted: bool = False, std: list[float] = [], scale: float = 1.0,
        *, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Huber's loss as a mean over the numbers of a row (kHuberLoss); of fields over all their points.

    The mean divides by the number of all points, masked ones included. The weights of points have the mean 1.

    Args:
        delta: the error beyond which the loss is linear.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all.
        scale: the factor of the loss and its gradient."""

def HuberLoss(delta: float = 1.0, scale: float = 1.0, masked: bool = False, weighted: bool = False,
        std: list[float] = [], *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Huber's loss, Σ h(x - target)·scale / B over two sources of equal sizes; the feature is x - target, (B, n) (kHuberLoss).

    Args:
        delta: the error beyond which the loss is linear.
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all."""

def Identity(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Passes on its source; no layer of the job."""

def ImagePreprocess(scale: float = 1.0, cropsize: int = 0, mirror: bool = False, meanfile: str = '', pad: int = 0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Crop images (B, C, H, W) to (B, C, cropsize, cropsize) and mirror them: at random in training, else centred (kImagePreprocess).

    Args:
        scale: the factor of the pixels.
        cropsize: the height and width of the crop, in pixels; 0 keeps the whole image.
        mirror: whether half of the images are mirrored in training, at random.
        meanfile: not read: name it as mean_file of the input layer's store_conf.
        pad: how many pixels of zeros are added on every side before the crop; beyond SINGA."""

def InnerProduct(num_output: int, bias_term: bool = True, transpose: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Fully connected layer, x·Wᵀ + b from (B, ...) to (B, num_output); rows are flattened in the order of their axes (kInnerProduct).

    Args:
        num_output: the number of outputs for each row.
        bias_term: whether a bias is added.
        transpose: whether the weight has the shape (inputs, num_output), not (num_output, inputs)."""

def Input(shape: int | Sequence[int] | None = None, name: str | None = None, type: str = 'kRecordInput',
        data_format: str | None = None, **store: Any) -> Symbol:
    """Return the symbol of records that an input layer reads, and of their labels.

    Args:
        shape: that of one record; by default that of the data. None stands for any size: ``(None,)`` takes codes of
            sequences of several lengths, also as a list of lists; layers above nn.Embedding learn where each ends.
        name: of the input layer, by default "data"; of several such inputs a model calls the second "data_1".
        type: of the input layer.
        data_format: "channels_last" for records that are images (H, W, C) or volumes (D, H, W, C), as in Keras;
            ``shape`` is theirs, and labels and outputs that are images have their channels last, too. Layers get
            (B, C, H, W) or (B, C, D, H, W), as of others. By default that of :func:`set_image_data_format` for
            shapes of three or four sizes, which is "channels_first" without it; but records are taken as channels
            last, with a word in the log, where a layer of images gets a square before 1, 3 or 4 channels: (28, 28, 1).
        store: further fields of its ``store_conf``: ``augment``, a list of random changes of training records, as
            ``[nn.augment.RandomCrop(pad=4), nn.augment.RandomFlip()]``, or ``random_skip``.

    Raises UserError for an unknown field, and for a shape that is not of whole numbers above 0."""

def InverseTimeDecay(initial_learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False, *,
        minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0,
        warmup_lr: float = 0.0) -> LRGenConf:
    """The schedule initial / (1 + decay_rate·step / decay_steps) (kInverseT, kInverse).

    Args:
        initial_learning_rate: the rate at the beginning.
        decay_steps: the number of steps in which the divisor grows by ``decay_rate``, a whole one for a staircase.
        decay_rate: what the divisor grows by.
        staircase: whether step / decay_steps is rounded down.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def KLDivergenceLoss(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Kullback-Leibler divergence, Σ t·(log t - log p)·scale / B, where p is the softmax of the scores x (kKLDivergenceLoss).

    Args:
        scale: the factor of the loss and its gradient."""

def L1(l1: float = 0.01) -> Penalty:
    """Return the penalty l1·Σ|w| of a param w, for ``kernel_regularizer`` and its like.

    Training adds its gradient to that of the loss, after clipping; the loss that is reported is without it."""

def L1L2(l1: float = 0.0, l2: float = 0.0) -> Penalty:
    """Return the penalty l1·Σ|w| + l2·Σw² of a param w; raise UserError for a negative factor."""

def L2(l2: float = 0.01) -> Penalty:
    """Return the penalty l2·Σw² of a param w, for ``kernel_regularizer`` and its like.

    Training adds its gradient 2·l2·w to that of the loss, after clipping; the loss that is reported is without it."""

def LRN(local_size: int = 5, alpha: float = 1.0, beta: float = 0.75, knorm: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Local response normalisation of images (B, C, H, W), over ``local_size`` neighbouring channels (kLRN).

    Args:
        local_size: how many channels are normalised together; an odd number.
        alpha: the factor of the mean of squares.
        beta: the exponent of the norm.
        knorm: what is added to the mean of squares."""

def LSTM(units: int, activation: str | None = 'tanh', recurrent_activation: str | None = 'sigmoid',
        use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform',
        recurrent_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', return_sequences: bool = False,
        bidirectional: bool = False, carry: bool | None = None, kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None, bias_regularizer: Any = None, dropout: float = 0.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Long short-term memory over sequences (kLSTM), with the arguments of :func:`GRU`.

    ``activation`` is that of the candidate and of the cell state. The bias of the forget gate begins at 0, in Keras
    at 1."""

def Label(first: int = 0, count: int = 0, weighted: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The labels of the source, as labels and as a float32 feature of their shape: (B,), (B, K) or (B, T) (kLabel).

    Args:
        first: the first channel that is taken.
        count: how many channels are taken, 0 for all.
        weighted: whether the last channel of the labels has weights, which are taken, too."""

def Lamb(learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.999, epsilon: float = 1e-07,
        weight_decay: float = 0.0, *, decoupled_weight_decay: bool = False, clip_norm: float = 0.0,
        clip_global_norm: float = 0.0, clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (),
        use_ema: bool = False, ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """LAMB (You et al., 2020): steps of Adam, as long as a share of the param (kLamb).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta_1: the decay of the first moment, the running mean of gradients.
        beta_2: the decay of the second moment, the running mean of squared gradients.
        epsilon: what is added to the divisor.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Lambda(function: Callable[..., Any], output_shape: Any = None, mask: Any = None,
        arguments: Mapping[str, Any] | None = None, name: str | None = None) -> LayerBuilder:
    """Return the layer f(x) of a function of a feature, or of a list of features (kFunction).

    A function that consists of operators and layers is a model of these. Others compute with arrays, whose first axis
    is the batch, of JAX, autograd or PyTorch, from which the gradient comes; of numpy where no params are below. The
    shape of the feature is that of what the function returns, so that ``output_shape`` is not needed.

    Args:
        function: the function.
        output_shape: has no effect.
        mask: None.
        arguments: further arguments of the function by name.
        name: of the layer.

    Raises UserError, when the layer is called, for a function that mixes rows or fails."""

def Layer(type: str, **fields: Any) -> LayerBuilder:
    """Return a layer of any type, also of a user's: ``nn.Layer("kLRN", local_size=3)``; the base of users' classes.

    A class that inherits it defines ``call``; see :class:`dsinga.addons.functions.own_layers.OwnLayer`.

    ``fields`` are settings of its type, fields of a layer in a job file, and the arguments of every layer. Raises
    UserError for an unknown type or field."""

def LayerNorm(first_axis: int = 1, epsilon: float = 1e-05, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Layer normalisation of (B, ...): scale·(x - mean)/√(var + epsilon) + bias, elementwise (kLayerNorm).

    Args:
        first_axis: the first axis normalised: 1 for all numbers of a row, 2 for each step.
        epsilon: what is added to the variance; beyond SINGA."""

def LayerNormalization(axis: int | Sequence[int] = -1, epsilon: float = 1e-05, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Layer normalisation over the last axis, or over all axes from the first of ``axis`` on (kLayerNorm).

    Where records have their channels last, -1 are the channels."""

def LeadRecord(source: list[int] = [], channel: list[int] = [], mask: list[int] = [], fill: list[float] = [], *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The record of one lead (B, C, *space), of channels of its sources (kLeadRecord).

    Args:
        source: the number of the source of each channel.
        channel: the number of each channel in its source.
        mask: the channel of the first source with the mask of each channel, -1 for none.
        fill: the number at masked points of each channel."""

def LeakyReLU(negative_slope: float = 0.3, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Rectifier max(x, 0) + negative_slope·min(x, 0) with a slope for negative numbers (kReLU)."""

def LearnedVector(num_output: int, leading: list[int] = [], *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """A param (n,), ``num_output`` numbers, as the feature of each row, (B, n); the source gives only B (kLearnedVector).

    Args:
        num_output: how many numbers the vector has.
        leading: the sizes of axes before them, where each row is an array of vectors."""

def LinearMomentum(base_momentum: float, final_momentum: float, saturation_step: int) -> MomentumConf:
    """A momentum that moves in a line from ``base_momentum`` at step 0 to ``final_momentum`` at ``saturation_step``."""

def Lion(learning_rate: Rate = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, weight_decay: float = 0.0, *,
        decoupled_weight_decay: bool = False, clip_norm: float = 0.0, clip_global_norm: float = 0.0,
        clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (), use_ema: bool = False,
        ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """Lion (Chen et al., 2023): each number of a param moves by the learning rate, up or down (kLion).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta_1: the weight of the mean, beside the newest gradient, in the direction of a step.
        beta_2: the decay of the running mean of gradients.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def LocalResponseNormalization(size: int = 5, alpha: float = 1.0, beta: float = 0.75, k: float = 1.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Local normalisation x·(k + alpha·mean(x²))^-beta over ``size`` neighbouring channels of images (kLRN)."""

def Masking(mask_value: float = 0.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Leaves out the steps of sequences (B, T, n) at which all features are ``mask_value``, in the layers above.

    These learn where each sequence ends (kSequenceLength); later steps move forward. A sequence without any other step
    is refused."""

def MaxPooling1D(pool_size: int | None = 2, strides: int | None = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each window of steps before the end of a sequence; ``strides`` are ``pool_size`` by default."""

def MaxPooling2D(pool_size: Size = 2, strides: Size | None = None, padding: str | Sides = 'valid', *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each window of images (kPooling); ``strides`` are ``pool_size`` by default, as in Keras."""

def MaxPooling3D(pool_size: Size = 2, strides: Size | None = None, padding: str | Sides = 'valid', *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum of each window of volumes (kPooling); ``strides`` are ``pool_size`` by default, as in Keras."""

def Maximum(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Larger number of two sources at each place (kArithmetic); axes of length 1 are repeated."""

def MeanAbsoluteError(masked: bool = False, weighted: bool = False, std: list[float] = [], scale: float = 1.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Absolute error as a mean over the numbers of a row (kAbsoluteLoss); of fields over all their points.

    The mean divides by the number of all points, masked ones included. The weights of points have the mean 1.

    Args:
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all.
        scale: the factor of the loss and its gradient."""

def MeanLoss(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """scale·Σ w·x / B: the mean of a row's weighted sum as a loss; with a negative ``scale``, what is to become large (kMeanLoss).

    Args:
        scale: the factor of the loss."""

def MeanSquaredError(masked: bool = False, weighted: bool = False, std: list[float] = [], scale: float = 1.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Squared error as a mean over the numbers of a row (kEuclideanLoss); of fields over all their points.

    The mean divides by the number of all points, masked ones included. The weights of points have the mean 1.

    Args:
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point.
        std: what differences are divided by first: a number for each channel of the target, or one for all.
        scale: the factor of the loss and its gradient."""

def Minimum(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Smaller number of two sources at each place (kArithmetic); axes of length 1 are repeated."""

def Mnist(norm_a: float = 1.0, norm_b: float = 0.0, kernel: int = 0, sigma: float = 0.0, alpha: float = 0.0,
        beta: float = 0.0, gamma: float = 0.0, resize: int = 0, elastic_freq: int = 0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Scale and shift pixels (B, ...): x/norm_a - norm_b, float32 (kMnist).

    Args:
        norm_a: what pixels are divided by.
        norm_b: what is subtracted after the division.
        kernel: has no effect; in SINGA's documentation, of the elastic distortion.
        sigma: has no effect; in SINGA's documentation, of the elastic distortion.
        alpha: has no effect; in SINGA's documentation, of the elastic distortion.
        beta: has no effect; in SINGA's documentation, of the elastic distortion.
        gamma: has no effect; in SINGA's documentation, of the elastic distortion.
        resize: has no effect; in SINGA's documentation, of the elastic distortion.
        elastic_freq: has no effect; in SINGA's documentation, of the elastic distortion."""

def MultiHeadAttention(num_heads: int, key_dim: int, value_dim: int | None = None, use_bias: bool = True,
        output_shape: int | None = None, kernel_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros',
        use_causal_mask: bool = False, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Attention of ``num_heads`` projected queries, keys and values, called on [query, value] or [query, value, key].

    The projections are kInnerProduct layers with ``per_step``, to ``num_heads`` times ``key_dim`` features, or
    ``value_dim`` for the values; a last one gives ``output_shape`` features, by default as many as the query has. The
    labels of a last source (B, Tk), an input of codes, or of any fourth source, give the lengths of keys and values."""

def Multiply(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Product of the sources, number by number (kMultiply), such as x·gate(x)."""

def Muon(learning_rate: Rate = 0.001, beta: float = 0.95, rms: float = 0.2, adamw_match: Sequence[str] = (),
        beta_1: float = 0.9, beta_2: float = 0.999, weight_decay: float = 0.0, *, decoupled_weight_decay: bool = False,
        clip_norm: float = 0.0, clip_global_norm: float = 0.0, clip_value: float = 0.0,
        param_settings: Sequence[ParamSettingsConf] = (), use_ema: bool = False, ema_momentum: float = 0.99,
        ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """Muon (Jordan, 2024) for matrices, scaled as by Liu et al. (2025), and AdamW for all other params (kMuon).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        beta: the decay of the running mean of a matrix's gradients.
        rms: the root mean square of a step of a square matrix of full rank, times the learning rate.
        adamw_match: names of matrices that AdamW updates, such as "embedding*": embeddings and the last layer are
            better so.
        beta_1: the decay of the first moment of AdamW.
        beta_2: the decay of the second moment of AdamW.
        weight_decay: the factor of the param that, times the learning rate, is subtracted from it.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def Normalization(mean: Any = None, variance: Any = None, mean_file: str | None = None, std_file: str | None = None,
        std: Any = None, invert: bool = False, axis: Any = -1, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """(x - mean) / √variance, or with ``invert`` its inverse x·√variance + mean, which gives back the data's units.

    ``mean`` and ``variance``, the square of ``std``, are numbers, or arrays with a number for each channel or for each
    number of a row (kNormalization, whose params keep them in checkpoints): ``nn.Normalization([280.0], [64.0])``
    divides by 8. Without them ``adapt(records)`` finds those of each number along ``axis`` of the records, by default
    the last, or with None of all numbers. Directly after nn.Input, numbers are used where records are read, and so are
    ``mean_file`` and ``std_file``, stores with a number for each element or channel of a record."""

def OneCycle(max_lr: float, total_steps: int, pct_start: float = 0.3, div_factor: float = 25.0,
        final_div_factor: float = 10000.0, *, minimum_lr: float | None = None, start_step: int = 0,
        warmup_steps: int = 0, warmup_lr: float = 0.0) -> LRGenConf:
    """PyTorch's OneCycleLR: half a cosine from max_lr / div_factor up to max_lr, and one down (kOneCycle).

    It ends with max_lr / (div_factor·final_div_factor). nn.OneCycleMomentum moves the momentum the other way.

    Args:
        max_lr: the highest rate.
        total_steps: the number of steps of the cycle.
        pct_start: the share of the steps in which the rate rises.
        div_factor: how many times the first rate goes into the highest.
        final_div_factor: how many times the last rate goes into the first.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def OneCycleMomentum(highest: float = 0.95, lowest: float = 0.85) -> MomentumConf:
    """A momentum that moves against the rate of nn.OneCycle: ``lowest`` where that is highest."""

def OneHot(num_tokens: int, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """One-hot vectors (B, T, num_tokens) of codes (B, T), or (B, num_tokens) of codes (B,) (kOneHot)."""

def PPOLoss(distribution: str = 'kCategorical', clip: float = 0.2, scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The clipped loss of proximal policy optimisation (Schulman et al. 2017, equation 7) (kPPOLoss).

    Args:
        distribution: what the policy's numbers are: scores of actions, or means and logs of deviations.
        clip: the change of an action's probability, as a share of it, beyond which the gradient is 0.
        scale: the factor of the loss."""

def PReLU(initial_slope: float = 0.25, shared: bool = False, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Rectifier with a learnt slope for negative numbers of each channel, or with ``shared`` one for all (kPReLU)."""

def Padding(before: list[int] = [], after: list[int] = [], mode: list[str] = [], *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images (B, C, H, W) or volumes (B, C, D, H, W) with points added around them: (B, C, H', W') (kPadding).

    Args:
        before: how many points are added before the first; 0 by default.
        after: how many points are added after the last; 0 by default.
        mode: what is added; kZero by default."""

def Padding2D(padding: Sides = 1, padding_mode: str | tuple[str, str] = 'zero', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images with pixels added on every side (kPadding).

    ``padding_mode`` is "zero", "edge", "reflect" (without the edge) or "periodic", the opposite side, or one for each
    axis. ``padding`` is a number, (rows, columns), or ((above, below), (left, right))."""

def Padding3D(padding: Sides = 1, padding_mode: str | tuple[str, ...] = 'zero', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Volumes with points added on every side (kPadding), as images by :func:`Padding2D`."""

def Param(name: str = '', init: Any = None, lr_scale: float = 1.0, wd_scale: float = 1.0, share_from: str | None = None,
        static: bool = False) -> ParamConf:
    """Return a param for the ``param=[...]`` of a layer: its name, initialiser, scales, or the param that it shares.

    A ``static`` param keeps its value.
    Params of layers that have one name, or of which one has ``share_from`` the other's name, are one param."""

def ParamSettings(match: str, learning_rate: Rate | None = None, momentum: Momentum | None = None,
        weight_decay: float | None = None, clip_norm: float | None = None,
        clip_value: float | None = None) -> ParamSettingsConf:
    """Settings of some params, for ``param_settings`` of an optimizer, whose own ones hold where nothing is given.

    Args:
        match: a pattern of the names of the params, such as "*_bias".
        learning_rate: a schedule, or a number in place of the initial rate of the optimizer's schedule.
        momentum: a number, nn.LinearMomentum(...) or nn.OneCycleMomentum(...).
        weight_decay: the factor of the param that is added to its gradient.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient."""

def Permute(dims: Sequence[int], *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Axes of rows in the order ``dims``, counted from 1 (kPermute): (2, 1) swaps those of matrices.

    Where records have their channels last, axes count as there."""

def PiecewiseConstantDecay(boundaries: Sequence[int], values: Sequence[float]) -> LRGenConf:
    """The schedule values[0] up to step boundaries[0], then values[1] up to boundaries[1], ... (kFixedStep).

    Args:
        boundaries: the last steps of all rates but the last, in rising order.
        values: the rates, one more than there are boundaries."""

def PolicyGradientLoss(distribution: str = 'kCategorical', scale: float = 1.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The policy gradient as a loss, -scale·Σ advantage·log π(action) / B (Williams 1992; Sutton et al. 2000) (kPolicyGradientLoss).

    Args:
        distribution: what the policy's numbers are: scores of actions, or means and logs of deviations.
        scale: the factor of the loss."""

def PolynomialDecay(initial_learning_rate: float, decay_steps: int, end_learning_rate: float = 0.0, power: float = 1.0,
        *, minimum_lr: float | None = None, start_step: int = 0, warmup_steps: int = 0,
        warmup_lr: float = 0.0) -> LRGenConf:
    """The schedule (initial - end)·(1 - r)^power + end, r = step / decay_steps, at most 1 (kPolynomial).

    Args:
        initial_learning_rate: the rate at the beginning.
        decay_steps: the number of steps to ``end_learning_rate``.
        end_learning_rate: the rate after these steps, and from there on.
        power: the exponent: 1 for a line.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def Pooling(kernel: int | None = None, pad: int | None = None, stride: int | None = None, kernel_x: int | None = None,
        kernel_y: int | None = None, pad_x: int | None = None, pad_y: int | None = None, stride_x: int | None = None,
        stride_y: int | None = None, kernel_z: int | None = None, pad_z: int | None = None, stride_z: int | None = None,
        same: bool = False, pool: str = 'MAX', global_pooling: bool = False, count_include_pad: bool = True,
        ceil: bool = False, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum or mean over each window of an image: (B, C, H, W) to (B, C, H', W'), sizes rounded down (kPooling).

    Args:
        kernel: the height and width of the window; 3 without it, kernel_x and kernel_y.
        pad: how many pixels of zeros surround an image; 0 without it, pad_x and pad_y.
        stride: by how many pixels the window moves; without it, stride_x and stride_y, 1 (pooling: 2).
        kernel_x: the width of the window; by default kernel.
        kernel_y: the height of the window; by default kernel.
        pad_x: how many pixels of zeros are left and right of an image; by default pad.
        pad_y: how many pixels of zeros are above and below an image; by default pad.
        stride_x: by how many pixels the window moves to the right; by default stride.
        stride_y: by how many pixels the window moves down; by default stride.
        kernel_z: the depth of the window in volumes; by default kernel; beyond SINGA.
        pad_z: how many pixels of zeros are before and behind a volume; by default pad.
        stride_z: by how many pixels the window moves along the depth; by default stride.
        same: whether to pad so that there are size / stride windows along an axis, rounded up, with one pixel more below and on the right where the padding is odd, as in TensorFlow and Keras; beyond SINGA.
        pool: whether a window gives its maximum or its mean.
        global_pooling: whether the window is the whole image, as in Caffe; beyond SINGA.
        count_include_pad: whether a mean counts padding as zeros; false leaves it out, as in Keras; beyond SINGA.
        ceil: whether sizes are rounded up, as in Caffe and by PyTorch's ceil_mode; beyond SINGA."""

def Pooling1D(pool: str = 'MAX', kernel: int | None = None, stride: int | None = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Maximum, mean, sum, first or last step of each window: (B, T, n) to (B, T', n), or of all steps: (B, n) (kPooling1D).

    Args:
        pool: what a window gives: its maximum, mean, sum, first step, last step, or, of both directions of a recurrent layer, the last step of the one and the first of the other.
        kernel: how many steps are pooled together; all without it.
        stride: by how many steps the window moves; by kernel without it."""

def PositionalEncoding(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Sequences times ``scale``, plus the sines and cosines of the positions of their steps (kPositionalEncoding)."""

def QuantileLoss(quantile: list[float] = [0.1, 0.5, 0.9], scale: float = 1.0, masked: bool = False,
        weighted: bool = False, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Pinball loss of K quantiles, Σ max(q·(y - x), (q - 1)·(y - x))·scale / (B·K) over numbers and quantiles q (kQuantileLoss).

    Args:
        quantile: the levels of the quantiles, in (0, 1) and increasing.
        scale: the factor of the loss and its gradient.
        masked: whether points whose target is NaN are left out.
        weighted: whether the last channel of the target has a weight for each point."""

def RBM(units: int, gaussian: bool = False, gaussian_visible: bool = False, persistent: bool = False,
        use_bias: bool = True, kernel_initializer: Any = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Restricted Boltzmann machine with ``units`` hidden units (kRBMVis and kRBMHid); its feature are their means.

    A model with one trains by contrastive divergence, and the layers below it stay as they are. Units are binary unless
    ``gaussian``; ``persistent`` chains continue from batch to batch. Its params are called after the layer:
    ``rbm_weight`` (units, n), ``rbm_visible_bias`` and ``rbm_bias``."""

def RBMHid(hdim: int, bias_term: bool = True, gaussian: bool = False, persistent: bool = False, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The hidden side of a restricted Boltzmann machine: means (B, hdim) of its units given the visible ones (B, n) (kRBMHid).

    Args:
        hdim: the number of hidden units.
        bias_term: whether the side has a bias.
        gaussian: whether the units of the side are real numbers of variance 1, not 0 or 1.
        persistent: whether the Gibbs chains of a hidden layer are persistent; beyond SINGA."""

def RBMVis(hdim: int, bias_term: bool = True, gaussian: bool = False, persistent: bool = False, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The visible side of a restricted Boltzmann machine: the data (B, ...) as (B, n), from 0 to 1 unless ``gaussian`` (kRBMVis).

    Args:
        hdim: the number of hidden units.
        bias_term: whether the side has a bias.
        gaussian: whether the units of the side are real numbers of variance 1, not 0 or 1.
        persistent: whether the Gibbs chains of a hidden layer are persistent; beyond SINGA."""

def RMSNorm(first_axis: int = 1, epsilon: float = 1e-05, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Division by the root mean square of a row, or of its axes from ``first_axis`` on, times a scale (kRMSNorm)."""

def RMSprop(learning_rate: Rate = 0.001, rho: float = 0.9, epsilon: float = 1e-07, weight_decay: float = 0.0, *,
        centered: bool = False, decoupled_weight_decay: bool = False, clip_norm: float = 0.0,
        clip_global_norm: float = 0.0, clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (),
        use_ema: bool = False, ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """RMSProp (Tieleman and Hinton, 2012), whose ``epsilon`` is under the root (kRMSProp).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        rho: the decay of the running mean of squared gradients.
        epsilon: what is added to the divisor, under the root.
        weight_decay: the factor of the param that is added to its gradient.
        centered: whether the square of the running mean of the gradients is subtracted (Graves, 2013).
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def RNNDummy(dynamic_srclayer: str | None = None, shape: list[int] = [], integer: bool = False, low: float = 0.0,
        high: float = 0.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Random numbers of ``rnn_dummy_conf.shape`` from ``low`` to ``high``, or the feature of the source if it has one (kRNNDummy).

    Args:
        dynamic_srclayer: the layer whose feature replaces the numbers in generation.
        shape: the shape of the numbers, the batch first.
        integer: whether the numbers are rounded down.
        low: the lowest number.
        high: what all numbers are below."""

def RNNLabel(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The next code of each step of codes (B, T + 1), as labels (B, T) and as the feature (kRNNLabel)."""

def RandomCrop(height: int, width: int, pad: int = 0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Crop of images: at a random place in training, in the centre otherwise (kImagePreprocess).

    ``pad`` pixels of zeros are put around images before. The crop is square."""

def RandomFlip(mode: str = 'horizontal', *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images, every other one mirrored at random in training (kImagePreprocess).

    ``mode`` may also be "vertical" or "horizontal_and_vertical", of records, as :func:`RandomTranslation`."""

def RandomNormal(mean: float = 0.0, stddev: float = 0.05) -> ParamGenConf:
    """Return the initialiser that draws from N(mean, stddev²)."""

def RandomRotation(factor: float, fill_mode: str = 'constant', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images, turned at random in training by at most this share of a circle, as :func:`RandomTranslation`.

    What comes from outside is 0; in Keras it is by default a mirror image."""

def RandomTranslation(height_factor: float, width_factor: float, fill_mode: str = 'reflect', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images, moved at random in training by at most these shares of their height and width, where records are read.

    It follows nn.Input, perhaps after other random changes, and is ``nn.augment.RandomTranslation``."""

def RandomUniform(minval: float = -0.05, maxval: float = 0.05) -> ParamGenConf:
    """Return the initialiser that draws from [minval, maxval)."""

def ReLU(negative_slope: float = 0.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Rectifier max(x, 0) + negative_slope·min(x, 0) (kReLU)."""

def RepeatVector(n: int, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """The feature at each of ``n`` steps (kRepeat): (B, ...) to (B, n, ...), also of images."""

def Rescaling(scale: float, offset: float = 0.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """x·scale + offset, computed where records are read directly after nn.Input, elsewhere by kArithmetic."""

def Reshape(target_shape: Sequence[int], *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Rows of another shape (kReshape), of which one axis may be -1, the size that is left.

    The numbers keep their order, that of the records where these have their channels last."""

def SGD(learning_rate: Rate = 0.01, momentum: Momentum = 0.0, nesterov: bool = False, weight_decay: float = 0.0, *,
        decoupled_weight_decay: bool = False, clip_norm: float = 0.0, clip_global_norm: float = 0.0,
        clip_value: float = 0.0, param_settings: Sequence[ParamSettingsConf] = (), use_ema: bool = False,
        ema_momentum: float = 0.99, ema_warmup: bool = False, ema_every: int = 1) -> UpdaterConf:
    """Stochastic gradient descent (kSGD), or with ``nesterov`` Nesterov's (kNesterov).

    Args:
        learning_rate: a number, a schedule such as nn.ExponentialDecay(...), or a function of the step, from 0.
        momentum: a number, nn.LinearMomentum(...) or nn.OneCycleMomentum(...).
        nesterov: whether the gradient is that after the step of the momentum.
        weight_decay: the factor of the param that is added to its gradient.
        decoupled_weight_decay: whether the param times the decay and the learning rate is subtracted from it instead.
        clip_norm: the largest norm of the gradient of a param, 0 for no bound.
        clip_global_norm: the largest norm of all gradients together, 0 for no bound.
        clip_value: the largest absolute value of a number of a gradient, 0 for no bound.
        param_settings: nn.ParamSettings(...) of some params; of several that match a param's name, the first holds.
        use_ema: whether an exponential moving average of the params is kept, for tests and the result.
        ema_momentum: the decay of the moving average.
        ema_warmup: whether the decay begins at 0 and rises to ``ema_momentum``.
        ema_every: every how many steps the average moves."""

def STanh(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Scaled tanh, 1.7159047·tanh(0.66666667·x) (kSTanh)."""

def SampledLoss(vocab_size: int, num_samples: int = 5, method: str = 'kNegativeSampling', counts: list[int] = [],
        power: float = 0.75, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Logistic loss of the label and of ``num_samples`` random words, -Σ (log σ(z[label]) + Σ_k log σ(-z[k])) / B (kSampledLoss).

    Args:
        vocab_size: the number of words.
        num_samples: how many random words each word is told from.
        method: kNegativeSampling by scores alone, or kNCE, noise-contrastive estimation.
        counts: how often each word occurs; without it, Zipf's law.
        power: the exponent of the counts in the probability of a random word."""

def Schedule(type: str, base_lr: float = 0.01, **fields: Any) -> LRGenConf:
    """A schedule by its name in jobs, or a user's by its registered name.

    Args:
        type: the name, such as "kLinear".
        base_lr: the rate at the beginning.
        fields: further fields of ``learning_rate { }`` in a job, such as ``linear_conf={...}``."""

def SeparableConv2D(filters: int, kernel_size: Size, strides: Size = 1, padding: str | Sides = 'valid',
        dilation_rate: Size = 1, depth_multiplier: int = 1, activation: Any = None, use_bias: bool = True,
        depthwise_initializer: Any = 'glorot_uniform', pointwise_initializer: Any = 'glorot_uniform',
        bias_initializer: Any = 'zeros', depthwise_regularizer: Any = None, pointwise_regularizer: Any = None,
        bias_regularizer: Any = None, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Depthwise convolution of images without a bias, then a convolution of single pixels, and its activation.

    (B, C, H, W) to (B, filters, H', W'): two kConvolution layers, the first called as the layer with ``_depthwise``
    after it. Chollet, Xception (2017)."""

def SequenceLength(end: int | None = None, anywhere: bool = False, mask_value: float | None = None, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Lengths of sequences, as the labels of its feature, which is its source (kSequenceLength).

    Args:
        end: the code of the steps after the end, beside -1.
        anywhere: whether steps of the code ``end`` may be before others, which move forward.
        mask_value: the number that all features have at the steps after the end."""

def SequentialSchedule(schedules: Sequence[Rate], boundaries: Sequence[int], *, minimum_lr: float | None = None,
        start_step: int = 0, warmup_steps: int = 0, warmup_lr: float = 0.0) -> LRGenConf:
    """Several schedules one after another, as PyTorch's SequentialLR and optax' join_schedules (kSequential).

    Args:
        schedules: the schedules, or numbers.
        boundaries: the steps at which the second and the further ones begin; each counts its steps from 0.
        minimum_lr: the least rate.
        start_step: the step before which the rate is the initial one.
        warmup_steps: the number of the first steps, in which the rate rises to the initial one; the schedule follows.
        warmup_lr: the rate at the beginning of these steps."""

def Sigmoid(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Logistic sigmoid, 1 / (1 + exp(-x)) (kSigmoid)."""

def SigmoidCrossEntropyLoss(scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Binary cross-entropy, -Σ (t·log p + (1 - t)·log(1 - p))·scale / B; the feature is p = sigmoid(x), (B, n) (kSigmoidCrossEntropyLoss).

    Args:
        scale: the factor of the loss and its gradient."""

def SimpleRNN(units: int, use_bias: bool = True, kernel_initializer: Any = 'glorot_uniform',
        recurrent_initializer: Any = 'glorot_uniform', bias_initializer: Any = 'zeros', return_sequences: bool = False,
        bidirectional: bool = False, carry: bool | None = None, kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None, bias_regularizer: Any = None, dropout: float = 0.0, *,
        name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Recurrent layer tanh(x hxᵀ + h hhᵀ + b) over sequences (kRNN), with the arguments of :func:`GRU`."""

def Slice(parts: int, axis: int = 1, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Its source, cut in ``parts`` along ``axis`` (kSlice): calling it gives a list of as many features."""

def Softmax(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Softmax of each row, or of each step of sequences (kSoftmax)."""

def SoftmaxLoss(topk: int = 1, scale: float = 1.0, label_smoothing: float = 0.0, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Softmax and cross-entropy with labels of classes (kSoftmaxLoss), of sequences step by step.

    It takes the scores before a softmax; of a softmax it takes the source. It reports the accuracy, too.

    Args:
        topk: a prediction counts as right if the label is among so many highest scores.
        scale: the factor of the loss and its gradient.
        label_smoothing: the share of the target that is spread over all classes; beyond SINGA."""

def SpatialDropout1D(rate: float, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """In training a share ``rate`` of the features of sequences (B, T, n) is 0, each at all steps (kDropout)."""

def SpatialDropout2D(rate: float, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """In training a share ``rate`` of the channels of images is 0, each at all pixels (kDropout)."""

def SpatialDropout3D(rate: float, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """In training a share ``rate`` of the channels of volumes is 0, each at all points (kDropout)."""

def Split(parts: int, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Its source, ``parts`` times (kSplit); nets need none, because one is added where a feature is used twice."""

def Subtract(*, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Difference of two sources, number by number (kArithmetic); axes of length 1 are repeated."""

def TDLoss(delta: float = 1.0, scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Loss of the temporal difference e = Q[action] - target of each row, scale·Σ w·h(e) / B; the feature is e, (B, 1) (kTDLoss).

    Args:
        delta: the error beyond which the loss is linear; with 0 it is squared everywhere.
        scale: the factor of the loss."""

def TimeDistributed(builder: LayerBuilder) -> LayerBuilder:
    """Return the layer applied to each step of sequences (``per_step`` of a job)."""

def TransposedConvolution(num_filters: int, kernel: int | None = None, pad: int | None = None,
        stride: int | None = None, kernel_x: int | None = None, kernel_y: int | None = None, pad_x: int | None = None,
        pad_y: int | None = None, stride_x: int | None = None, stride_y: int | None = None, kernel_z: int | None = None,
        pad_z: int | None = None, stride_z: int | None = None, same: bool = False, bias_term: bool = True,
        output_pad: int | None = None, output_pad_x: int | None = None, output_pad_y: int | None = None,
        output_pad_z: int | None = None, group: int = 1, dilation: int | None = None, dilation_x: int | None = None,
        dilation_y: int | None = None, dilation_z: int | None = None, *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Transposed convolution of images (B, C, H, W) to (B, num_filters, H', W'), also of volumes with a depth (kTransposedConvolution).

    Args:
        kernel: the height and width of the window; 3 without it, kernel_x and kernel_y.
        pad: how many pixels are left out on every side of the result; 0 by default.
        stride: by how many pixels the window moves; without it, stride_x and stride_y, 1 (pooling: 2).
        kernel_x: the width of the window; by default kernel.
        kernel_y: the height of the window; by default kernel.
        pad_x: how many are left out left and right; by default pad.
        pad_y: how many are left out above and below; by default pad.
        stride_x: by how many pixels the window moves to the right; by default stride.
        stride_y: by how many pixels the window moves down; by default stride.
        kernel_z: the depth of the window in volumes; by default kernel; beyond SINGA.
        pad_z: how many are left out before and behind, of volumes; by default pad.
        stride_z: by how many pixels the window moves along the depth; by default stride.
        same: whether the result is stride times as large as the images, as in Keras.
        num_filters: the number of channels of the result.
        bias_term: whether a bias is added.
        output_pad: how many rows and columns the result has more, below and on the right; 0 by default, below stride.
        output_pad_x: how many columns it has more; by default output_pad.
        output_pad_y: how many rows it has more; by default output_pad.
        output_pad_z: how many slices it has more, of volumes; by default output_pad.
        group: into how many equal groups channels and filters are divided.
        dilation: how many pixels apart neighbours in a window are; 1 by default.
        dilation_x: how many apart they are along a row; by default dilation.
        dilation_y: how many apart they are along a column; by default dilation.
        dilation_z: how many apart they are along the depth; by default dilation."""

def TripletLoss(margin: float = 1.0, scale: float = 1.0, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Triplet loss, Σ max(0, d₁ - d₂ + margin)·scale / B of a row's distances to one like it, d₁, and one unlike, d₂ (kTripletLoss).

    Args:
        margin: by how much the second distance should be the larger one.
        scale: the factor of the loss and its gradient."""

def UpSampling2D(size: Size = 2, interpolation: str = 'nearest', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images with ``size`` times as many pixels, repeated ("nearest") or interpolated ("bilinear") (kUpsampling)."""

def UpSampling3D(size: Size = 2, interpolation: str = 'nearest', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Volumes with ``size`` times as many points, repeated ("nearest") or interpolated ("trilinear") (kUpsampling)."""

def Upsampling(factor: list[int] = [2], method: str = 'kNearest', *, name: str | None = None,
        param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images (B, C, H, W) or volumes (B, C, D, H, W) with ``factor`` times as many points along each axis (kUpsampling).

    Args:
        factor: how many points become of one, for all axes after the channels or each.
        method: whether points are repeated or interpolated."""

def VTraceLoss(distribution: str = 'kCategorical', rho_clip: float = 1.0, c_clip: float = 1.0, value_scale: float = 0.5,
        *, name: str | None = None, param: Sequence[Any] | None = None, lr_scale: float | Sequence[float] | None = None,
        wd_scale: float | Sequence[float] | None = None, trainable: bool = True, partition_dim: int | None = None,
        location: int | None = None, recompute: bool = False, include: Sequence[str] | None = None,
        exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Loss of a policy and of its values with V-trace targets (Espeholt et al. 2018, IMPALA, section 4) (kVTraceLoss).

    Args:
        distribution: what the policy's numbers are: scores of actions, or means and logs of deviations.
        rho_clip: the largest ratio of an action's probabilities, now and when it was chosen, in the error of a value.
        c_clip: the largest such ratio in the factors that carry later errors back.
        value_scale: the factor of the loss of the values."""

def ZeroPadding2D(padding: Sides = 1, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Images with ``padding`` pixels of zeros on every side (kPadding)."""

def ZeroPadding3D(padding: Sides = 1, *, name: str | None = None, param: Sequence[Any] | None = None,
        lr_scale: float | Sequence[float] | None = None, wd_scale: float | Sequence[float] | None = None,
        trainable: bool = True, partition_dim: int | None = None, location: int | None = None, recompute: bool = False,
        include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> LayerBuilder:
    """Volumes with ``padding`` points of zeros on every side (kPadding)."""

def add(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the sum of features, number by number."""

def average(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the mean of features, number by number."""

def clear_session(free_memory: bool = True) -> None:
    """Do nothing: models keep no state outside of themselves."""

def clone_model(model: Model) -> Model:
    """Return a model of the same layers with initial params of its own, which is not compiled.

    Raises UserError for a model of a job, and for a subclass with a ``call`` of its own."""

def concatenate(inputs: Sequence[Symbol], axis: int = -1, name: str | None = None) -> Symbol:
    """Return features joined along an axis."""

def decoder(machine: LayerBuilder, units: int) -> LayerBuilder:
    """Return the dense layer that computes the ``units`` visible units of a machine from its hidden ones.

    Its weight is that of :func:`encoder`, transposed, which the same model must have."""

def encoder(machine: LayerBuilder) -> LayerBuilder:
    """Return the dense layer that computes the hidden units of a machine, with the machine's params by name.

    It has a sigmoid, or none where the units are gaussian. Raises UserError for a machine without a name."""

def from_job(job: Job | str | os.PathLike[str]) -> JobModel:
    """Return the model of a job, or of the job file at a path. Raises JobError for a file that cannot be read."""

def image_data_format() -> str:
    """Return the order of the axes of images, "channels_first" or "channels_last"."""

def lazy_names(package: str,
        otherwise: Callable[[str], Any] | None = None) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that import its names when they are first used.

    The names, and the module of each, are read where type checkers read them: in the block ``if TYPE_CHECKING:`` of
    ``__init__.py``, or else in ``__init__.pyi``, where the core has the names of add-ons, since it imports none.
    ``otherwise`` is called for any other name."""

def load_model(folder: str | os.PathLike[str]) -> JobModel:
    """Return the model that :meth:`dsinga.nn.Model.save` wrote to a folder, with its params and its optimizer's state.

    Raises UserError where a file is missing or damaged, or was saved with others."""

def maximum(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the larger numbers of features."""

def minimum(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the smaller numbers of features."""

def multiply(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the product of features, number by number."""

def set_image_data_format(data_format: str) -> None:
    """Let inputs that are made from now on, of shapes of three or four sizes, have images in this order of axes."""

def set_random_seed(seed: int) -> None:
    """Let models that are made from now on begin with this seed, and seed Python's and numpy's random numbers."""

def subtract(inputs: Sequence[Symbol], name: str | None = None) -> Symbol:
    """Return the difference of two features, number by number."""

def to_categorical(x: Any, num_classes: int | None = None) -> ndarray:
    """Return classes (...) as one-hot rows (..., num_classes), float32; an axis of length 1 at the end goes.

    Without ``num_classes`` there are as many as the largest class says. Raises UserError for what are no classes."""
