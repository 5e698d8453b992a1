"""The allowed ranges of the numbers in a job, in one table over the schema."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsinga.job import (
    connectionconf,
    extensionconf,
    inputconf,
    layerconf,
    lossconf,
    neuronconf,
    paramconf,
    reinforcementconf,
    schema,
    updaterconf,
)
from dsinga.job.message import Message, field_types, item_type

FLOAT32_MAX = 3.4028234663852886e38


class Range(NamedTuple):
    """The numbers from ``low`` to ``high`` that float32 can hold; an open end is excluded.

    NaN is in no range, infinity only in those that are ``infinite``.
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    infinite: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, (int, float))
        if not abs(value) <= FLOAT32_MAX and not (self.infinite and abs(value) == math.inf):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def fault(self, value: float) -> str:
        """Return what a value that is not in the range must be, and what it is."""
        if abs(value) <= FLOAT32_MAX:
            return f"must be {self}, not {value}"
        return f"must be a number that float32 can hold{f', {self}' if math.isfinite(self.low) else ''}, not {value}"

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'at least'} {self.low}"
        return f"in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


COUNT = Range(1)  # a number of things, at least one
SOME = Range(0)  # a count or a frequency; 0 means none or never
SHARE = Range(0, 1, open_high=True)  # a fraction or a decay, less than 1
UNIT = Range(0, 1)  # a fraction or a factor, at most 1
POSITIVE = Range(0, open_low=True)
AXIS = Range(0, 3)  # an axis of a batch of images (N, C, H, W)
NUMBER = Range(-math.inf)  # any number
INFINITE = Range(-math.inf, infinite=True)  # any number; infinity bounds nothing
MEMBERS = Range(1, 100_000)  # of a topology
STEPS = Range(1, 100_000)  # time steps for which layers are copied
PIXELS = Range(1, 32_767)
PARTS = Range(1, 100_000)  # that a layer hands out
PARTITION_DIM = Range(-1, 1)  # rows, features, or -1: not partitioned

_WINDOW = {
    **dict.fromkeys(("kernel", "kernel_x", "kernel_y", "stride", "stride_x", "stride_y"), PIXELS),
    **dict.fromkeys(("pad", "pad_x", "pad_y"), Range(0, 32_767)),
}
_OFTEN = [f"{what}_{field}" for what in ("disp", "test", "validate", "checkpoint") for field in ("freq", "after")]

LIMITS: dict[type[Message], dict[str, Range]] = {
    schema.Job: {
        **dict.fromkeys(
            ("train_steps", "epochs", "test_steps", "validate_steps", "warmup_steps", "step", "seed", "gpu"), SOME
        ),
        **dict.fromkeys(_OFTEN, SOME),
        "checkpoint_keep": SOME,
        "num_openblas_threads": COUNT,
    },
    reinforcementconf.ReinforcementConf: {
        "num_environments": COUNT,
        **dict.fromkeys(("num_actors", "max_staleness"), SOME),
        "rollout_steps": COUNT,
        "discount": UNIT,
        "evaluation_episodes": SOME,
    },
    reinforcementconf.PPOConf: {
        **dict.fromkeys(("epochs", "minibatches"), COUNT),
        **dict.fromkeys(("clip", "value_scale", "entropy_scale", "max_gradient_norm"), SOME),
        "decay": UNIT,
    },
    reinforcementconf.A2CConf: {
        **dict.fromkeys(("value_scale", "entropy_scale", "max_gradient_norm"), SOME),
        "decay": UNIT,
    },
    reinforcementconf.REINFORCEConf: dict.fromkeys(("value_scale", "entropy_scale", "max_gradient_norm"), SOME),
    reinforcementconf.IMPALAConf: dict.fromkeys(
        ("rho_clip", "c_clip", "value_scale", "entropy_scale", "max_gradient_norm"), SOME
    ),
    reinforcementconf.ESConf: {"population": Range(2), "deviation": POSITIVE},
    reinforcementconf.DQNConf: {
        **dict.fromkeys(("delta", "actor_spread"), SOME),
        **dict.fromkeys(("target_every", "epsilon_steps"), COUNT),
        **dict.fromkeys(("target_share", "first_epsilon", "last_epsilon"), UNIT),
    },
    reinforcementconf.DDPGConf: {
        **dict.fromkeys(("noise", "random_steps"), SOME),
        **dict.fromkeys(("noise_correlation", "target_share"), UNIT),
    },
    reinforcementconf.TD3Conf: {
        **dict.fromkeys(("noise", "random_steps", "target_noise", "target_noise_limit"), SOME),
        **dict.fromkeys(("noise_correlation", "target_share"), UNIT),
        "actor_every": COUNT,
    },
    reinforcementconf.ReplayConf: {
        **dict.fromkeys(("capacity", "batch_size", "learn_every", "n_steps"), COUNT),
        "learn_after": SOME,
    },
    extensionconf.ExtensionConf: {
        **dict.fromkeys(("patience", "freq"), COUNT),
        **dict.fromkeys(("min_delta", "min_factor", "cooldown", "after", "histogram_freq"), SOME),
        "factor": Range(0, 1, open_low=True, open_high=True),
        "seconds": POSITIVE,
    },
    schema.CDConf: {"cd_k": Range(1, 10_000)},
    schema.NetConf: {"partition_dim": PARTITION_DIM, "unroll_len": STEPS},
    updaterconf.StepConf: {"change_freq": COUNT, "gamma": SOME},
    updaterconf.LinearConf: {"change_freq": COUNT, "final_lr": SOME},
    updaterconf.ExponentialConf: {"change_freq": COUNT, "gamma": POSITIVE},
    updaterconf.InverseTConf: {"final_lr": POSITIVE},
    updaterconf.InverseConf: {"gamma": SOME, "pow": SOME, "change_freq": COUNT},
    updaterconf.FixedStepConf: {"step": SOME, "step_lr": SOME},
    updaterconf.LRGenConf: {"base_lr": SOME, "minimum_lr": SOME, "start_step": SOME},
    updaterconf.MomentumConf: {"base_momentum": SHARE, "final_momentum": SHARE, "saturation_step": COUNT},
    updaterconf.ParamSettingsConf: {
        "base_lr": SOME,
        "momentum": SHARE,
        "weight_decay": SOME,
        "clip_norm": SOME,
        "clip_low": INFINITE,
        "clip_high": INFINITE,
    },
    updaterconf.RMSPropConf: {"rho": SHARE},
    updaterconf.AdaDeltaConf: {"rho": SHARE},
    updaterconf.AdamConf: {"beta1": SHARE, "beta2": SHARE},
    updaterconf.AdamMaxConf: {"beta1": SHARE, "beta2": SHARE},
    updaterconf.UpdaterConf: {
        "momentum": SHARE,
        "weight_decay": SOME,
        "delta": SOME,
        "clip_norm": SOME,
        "clip_low": INFINITE,
        "clip_high": INFINITE,
    },
    schema.ClusterConf: {
        **dict.fromkeys(("nworker_groups", "nworkers_per_group", "nservers_per_group"), MEMBERS),
        "nserver_groups": Range(1, 1000),  # each of which may be linked to all others
        **dict.fromkeys(("nworkers_per_procs", "nservers_per_procs", "sync_freq"), COUNT),
        **dict.fromkeys(("block_size", "block_rows"), COUNT),
        "staleness": SOME,
        "topk_share": Range(0, 1, open_low=True),
        "max_restarts": SOME,
        "min_workers": MEMBERS,
        "patience": SOME,
    },
    layerconf.LayerConf: {
        "partition_dim": PARTITION_DIM,
        "location": SOME,
        "unroll_len": STEPS,
        "shift": SOME,
        "num_partitions": PARTS,
    },
    paramconf.ParamConf: {"lr_scale": SOME, "wd_scale": SOME, "shape": COUNT},
    paramconf.ParamGenConf: {"std": SOME},
    inputconf.StoreConf: {"batchsize": COUNT, "shape": COUNT, "random_skip": SOME, "std_value": POSITIVE},
    inputconf.DataConf: {"batchsize": COUNT, "random_skip": SOME},
    inputconf.MnistConf: {"norm_a": POSITIVE},
    inputconf.RGBImageConf: {"cropsize": SOME, "pad": Range(0, 32_767), "scale": POSITIVE},
    inputconf.CharRNNConf: {"unroll_len": COUNT, "batchsize": COUNT},
    inputconf.OnehotConf: {"vocab_size": COUNT},
    neuronconf.ConvolutionConf: {**_WINDOW, "num_filters": COUNT},
    neuronconf.PoolingConf: _WINDOW,
    neuronconf.Convolution1DConf: {"num_filters": COUNT, "kernel": STEPS, "stride": STEPS, "pad": Range(0, 100_000)},
    neuronconf.CosineSimilarityConf: {"scale": POSITIVE},
    neuronconf.Pooling1DConf: {"kernel": STEPS, "stride": STEPS},
    neuronconf.DropoutConf: {"dropout_ratio": SHARE},
    connectionconf.DummyConf: {"shape": COUNT},
    neuronconf.InnerProductConf: {"num_output": COUNT},
    neuronconf.LRNConf: {"local_size": PIXELS, "alpha": SOME, "beta": SOME, "knorm": POSITIVE},
    neuronconf.RBMConf: {"hdim": COUNT},
    neuronconf.SoftmaxConf: {"num_softmax_per_instance": COUNT},
    **dict.fromkeys((neuronconf.GRUConf, neuronconf.LSTMConf, neuronconf.RNNConf), {"dim_hidden": COUNT}),
    neuronconf.AttentionConf: {"num_heads": COUNT},
    neuronconf.PositionalEncodingConf: {"scale": POSITIVE},
    neuronconf.EmbeddingConf: {"vocab_size": COUNT, "feature_dim": COUNT},
    neuronconf.BMConf: {"momentum": Range(0, 1, open_low=True)},
    neuronconf.LayerNormConf: {"first_axis": Range(1, 3)},
    lossconf.SoftmaxLossConf: {"topk": COUNT, "scale": SOME, "label_smoothing": SHARE},
    lossconf.EuclideanLossConf: {"scale": SOME},
    lossconf.SigmoidCrossEntropyLossConf: {"scale": SOME},
    lossconf.ClassSoftmaxLossConf: {"vocab_size": COUNT, "class_start": SOME},
    lossconf.SampledLossConf: {"vocab_size": COUNT, "num_samples": MEMBERS, "counts": SOME, "power": SOME},
    lossconf.PolicyGradientLossConf: {"scale": SOME},
    lossconf.PPOLossConf: {"clip": POSITIVE, "scale": SOME},
    lossconf.EntropyLossConf: {"scale": SOME},
    lossconf.TDLossConf: {"delta": SOME, "scale": SOME},
    lossconf.VTraceLossConf: {"rho_clip": POSITIVE, "c_clip": POSITIVE, "value_scale": SOME},
    lossconf.MeanLossConf: {"scale": NUMBER},
    neuronconf.LearnedVectorConf: {"num_output": COUNT},
    lossconf.HingeLossConf: {"topk": COUNT, "margin": POSITIVE, "scale": SOME},
    lossconf.ArgSortConf: {"topk": COUNT},
    connectionconf.ConcateConf: {"concate_dim": AXIS, "num_concates": PARTS},
    connectionconf.SliceConf: {"slice_dim": AXIS, "num_slices": PARTS},
    connectionconf.SplitConf: {"num_splits": PARTS},
    connectionconf.RNNDummyConf: {"shape": COUNT},
}


@functools.cache
def ranges(cls: Any) -> dict[str, Range]:
    """Return the range of each field of a message class that has numbers; any number where the table has none."""
    kinds = {field: item_type(hint)[0] for field, hint in field_types(cls).items()}
    table = LIMITS.get(cls, {})
    return {field: table.get(field, NUMBER) for field, kind in kinds.items() if kind in (int, float)}


def out_of_range(message: Message) -> Iterator[tuple[str, int, Any, Range]]:
    """Yield (field, item, value, allowed range) for each number of ``message`` that is out of its range."""
    cls: Any = type(message)  # cache() takes a class with a __hash__ of its own for one without
    for field, allowed in ranges(cls).items():
        values = getattr(message, field)
        for item, value in enumerate(values if isinstance(values, list) else [values]):
            if value is not None and value not in allowed:
                yield field, item, value, allowed
