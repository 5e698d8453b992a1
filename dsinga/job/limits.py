"""The allowed ranges of the numbers in a job, in one table over the schema."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from dsinga.job import connectionconf, extensionconf, inputconf, layerconf, lossconf, neuronconf, paramconf, schema
from dsinga.job.message import Message


class Range(NamedTuple):
    """The numbers from ``low`` to ``high``; an open end is excluded."""

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, (int, float))
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.open_low else 'at least'} {self.low}"
        return f"in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


COUNT = Range(1)  # a number of things, at least one
SOME = Range(0)  # a count or a frequency; 0 means none or never
SHARE = Range(0, 1, open_high=True)  # a fraction or a decay, less than 1
POSITIVE = Range(0, open_low=True)
AXIS = Range(0, 3)  # an axis of a batch of images (N, C, H, W)
PARTITION_DIM = Range(-1, 1)  # rows, features, or -1: not partitioned

_WINDOW = {
    **dict.fromkeys(("kernel", "kernel_x", "kernel_y", "stride", "stride_x", "stride_y"), COUNT),
    **dict.fromkeys(("pad", "pad_x", "pad_y"), SOME),
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
    extensionconf.ExtensionConf: {
        **dict.fromkeys(("patience", "freq"), COUNT),
        **dict.fromkeys(("min_delta", "min_factor", "cooldown", "after", "histogram_freq"), SOME),
        "factor": Range(0, 1, open_low=True, open_high=True),
        "seconds": POSITIVE,
    },
    schema.CDConf: {"cd_k": COUNT},
    schema.NetConf: {"partition_dim": PARTITION_DIM, "unroll_len": COUNT},
    schema.StepConf: {"change_freq": COUNT, "gamma": SOME},
    schema.LinearConf: {"change_freq": COUNT, "final_lr": SOME},
    schema.ExponentialConf: {"change_freq": COUNT},
    schema.InverseTConf: {"final_lr": POSITIVE},
    schema.InverseConf: {"gamma": SOME},
    schema.FixedStepConf: {"step": SOME, "step_lr": SOME},
    schema.LRGenConf: {"base_lr": SOME},
    schema.RMSPropConf: {"rho": SHARE},
    schema.AdaDeltaConf: {"rho": SHARE},
    schema.AdamConf: {"beta1": SHARE, "beta2": SHARE},
    schema.AdamMaxConf: {"beta1": SHARE, "beta2": SHARE},
    schema.UpdaterConf: {"momentum": SHARE, "weight_decay": SOME, "delta": SOME, "clip_norm": SOME},
    schema.ClusterConf: {
        **dict.fromkeys(("nworker_groups", "nserver_groups", "nworkers_per_group", "nservers_per_group"), COUNT),
        **dict.fromkeys(("nworkers_per_procs", "nservers_per_procs", "sync_freq"), COUNT),
        "staleness": SOME,
        "topk_share": Range(0, 1, open_low=True),
    },
    layerconf.LayerConf: {
        "partition_dim": PARTITION_DIM,
        "location": SOME,
        "unroll_len": COUNT,
        "shift": SOME,
        "num_partitions": COUNT,
    },
    paramconf.ParamGenConf: {"std": SOME},
    inputconf.StoreConf: {"batchsize": COUNT, "shape": COUNT, "random_skip": SOME},
    inputconf.DataConf: {"batchsize": COUNT, "random_skip": SOME},
    inputconf.RGBImageConf: {"cropsize": SOME, "pad": SOME},
    inputconf.CharRNNConf: {"unroll_len": COUNT, "batchsize": COUNT},
    inputconf.OnehotConf: {"vocab_size": COUNT},
    neuronconf.ConvolutionConf: {**_WINDOW, "num_filters": COUNT},
    neuronconf.PoolingConf: _WINDOW,
    neuronconf.DropoutConf: {"dropout_ratio": SHARE},
    connectionconf.DummyConf: {"shape": COUNT},
    neuronconf.InnerProductConf: {"num_output": COUNT},
    neuronconf.LRNConf: {"local_size": COUNT},
    neuronconf.RBMConf: {"hdim": COUNT},
    neuronconf.SoftmaxConf: {"num_softmax_per_instance": COUNT},
    **dict.fromkeys((neuronconf.GRUConf, neuronconf.LSTMConf, neuronconf.RNNConf), {"dim_hidden": COUNT}),
    neuronconf.EmbeddingConf: {"vocab_size": COUNT, "feature_dim": COUNT},
    neuronconf.BMConf: {"momentum": Range(0, 1, open_low=True)},
    neuronconf.LayerNormConf: {"first_axis": Range(1, 3)},
    lossconf.SoftmaxLossConf: {"topk": COUNT},
    lossconf.ClassSoftmaxLossConf: {"vocab_size": COUNT, "class_start": SOME},
    lossconf.HingeLossConf: {"topk": COUNT, "margin": POSITIVE},
    lossconf.ArgSortConf: {"topk": COUNT},
    connectionconf.ConcateConf: {"concate_dim": AXIS, "num_concates": COUNT},
    connectionconf.SliceConf: {"slice_dim": AXIS, "num_slices": COUNT},
    connectionconf.SplitConf: {"num_splits": COUNT},
    connectionconf.RNNDummyConf: {"shape": COUNT},
}


def out_of_range(message: Message) -> Iterator[tuple[str, int, Any, Range]]:
    """Yield (field, item, value, allowed range) for each number of ``message`` that is out of its range."""
    for field, allowed in LIMITS.get(type(message), {}).items():
        values = getattr(message, field)
        for item, value in enumerate(values if isinstance(values, list) else [values]):
            if value is not None and value not in allowed:
                yield field, item, value, allowed
