"""The jobs of ``python -m tools.benchmarks.bits``: every family of nets, every partitioning, every exact topology.

They use the public interface alone, so that another version of the package can train them as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsinga import Job, loads, models
from dsinga.job import ClusterConf
from tools.benchmarks.bits_stores import COUNTS, VOCABULARIES

SMALL = """
name: "small" train_steps: 12 disp_freq: 4 test_freq: 6 test_steps: 1
updater { type: kSGD momentum: 0.9 weight_decay: 0.001 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "train_data.zarr" batchsize: 42 } }
  layer { name: "data" type: kRecordInput include: kTest store_conf { path: "test_data.zarr" batchsize: 40 } }
  layer { name: "image" type: kImagePreprocess srclayers: "data"
    rgbimage_conf { scale: 0.01 cropsize: 14 mirror: true } }
  layer { name: "conv" type: kConvolution srclayers: "image" convolution_conf { num_filters: 8 kernel: 3 pad: 1 } }
  layer { name: "norm" type: kBM srclayers: "conv" }
  layer { name: "relu" type: kReLU srclayers: "norm" }
  layer { name: "pool" type: kPooling srclayers: "relu" pooling_conf { pool: MAX kernel: 3 stride: 2 } }
  layer { name: "fc" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 24 }
    param { init { type: kUniformSqrtFanIn } } param { init { type: kConstant value: 0.1 } lr_scale: 2 } }
  layer { name: "tanh" type: kSTanh srclayers: "fc" }
  layer { name: "drop" type: kDropout srclayers: "tanh" dropout_conf { dropout_ratio: 0.3 } }
  layer { name: "ip" type: kInnerProduct srclayers: "drop" innerproduct_conf { num_output: 10 }
    param { init { type: kUniformSqrtFanIn } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
RESIDUAL = """
name: "residual" train_steps: 10 disp_freq: 2
updater { type: kNesterov momentum: 0.8
  learning_rate { type: kInverse base_lr: 0.01 inverse_conf { gamma: 0.1 pow: 0.75 } } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train_data.zarr" batchsize: 30 std_value: 255 } }
  layer { name: "conv1" type: kConvolution srclayers: "data" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "conv2" type: kConvolution srclayers: "conv1" convolution_conf { num_filters: 4 kernel: 3 pad: 1 } }
  layer { name: "sum" type: kAdd srclayers: ["conv1", "conv2"] }
  layer { name: "lrn" type: kLRN srclayers: "sum" lrn_conf { local_size: 3 alpha: 5e-05 beta: 0.75 } }
  layer { name: "layernorm" type: kLayerNorm srclayers: "lrn" }
  layer { name: "gate" type: kSigmoid srclayers: "conv2" }
  layer { name: "gated" type: kMultiply srclayers: ["layernorm", "gate"] }
  layer { name: "pool" type: kPooling srclayers: "gated" pooling_conf { pool: AVG kernel: 3 stride: 2 } }
  layer { name: "scores" type: kInnerProduct srclayers: "pool" innerproduct_conf { num_output: 10 } }
  layer { name: "hinge" type: kHingeLoss srclayers: ["scores", "data"] }
  layer { name: "target" type: kSigmoid srclayers: "scores" }
  layer { name: "cross" type: kSigmoidCrossEntropyLoss srclayers: ["scores", "target"] }
}
"""
WORDS = """
name: "words" train_steps: 12 disp_freq: 3
updater { type: kSGD momentum: 0.9 weight_decay: 0.01 learning_rate { type: kFixed base_lr: 0.1 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "words.zarr" batchsize: 6 shape: 4 } }
  layer { name: "embed" type: kEmbedding srclayers: "data" embedding_conf { vocab_size: 500 feature_dim: 3 } }
  layer { name: "ip" type: kInnerProduct srclayers: "embed" innerproduct_conf { num_output: 5 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
LAYERS = ("data,kTrain", "image", "conv", "norm", "relu", "pool", "fc", "tanh", "drop", "ip", "loss")
OFTEN = {"disp_freq": 4, "test_freq": 6, "test_steps": 1, "validate_freq": 0}


@dataclass
class Run:
    """A job, given the folder of the stores, and how it is trained."""

    job: Callable[[Path], Job]
    processes: bool = False
    """Whether workers and servers are processes; else they are threads."""
    grain: str = "round"
    resume_at: int = 0
    """The step at which training stops, and goes on from the checkpoint; 0 trains in one go."""
    config: dict[str, Any] = field(default_factory=dict)
    """Dask configuration."""
    environment: dict[str, str] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    """Runs whose checkpoints it starts from."""


def text_run(text: str, *overrides: str, workers: int = 1, servers: int = 1, cluster: str = "", **options: Any) -> Run:
    """Return the run of a job file's text with overrides; ``cluster`` has further fields of the topology."""
    block = f"cluster {{ nworkers_per_group: {workers} nservers_per_group: {servers} {cluster} }}"
    return Run(lambda folder: loads(f"{text}\n{block}", str(folder / "small" / "job.conf"), overrides), **options)


def small(*overrides: str, **options: Any) -> Run:
    """Return the run of the small convolutional net."""
    return text_run(SMALL, *overrides, **options)


def partitioned(*dimensions: int, **options: Any) -> Run:
    """Return the run of the small net with a partition dimension for each layer."""
    placed = zip(LAYERS, dimensions, strict=True)
    return small(*(f"neuralnet.layer[{name}].partition_dim={dim}" for name, dim in placed), **options)


def located(*locations: int, **options: Any) -> Run:
    """Return the run of the small net with a worker for each layer."""
    placed = zip(LAYERS, locations, strict=True)
    return small(*(f"neuralnet.layer[{name}].location={worker}" for name, worker in placed), **options)


def model(name: str, stores: str, *arguments: Any, workers: int = 1, processes: bool = False, **fields: Any) -> Run:
    """Return the run of a function of ``dsinga.models`` over the stores of a folder."""

    def job(folder: Path) -> Job:
        made: Job = getattr(models, name)(*arguments, data=str(folder / stores), **{**OFTEN, **fields})
        return made.replace(cluster=ClusterConf(nworkers_per_group=workers, nservers_per_group=workers))

    return Run(job, processes=processes)


def stacked(name: str, *arguments: Any, after: tuple[str, ...] = (), **fields: Any) -> Run:
    """Return the run of a machine of a stack, which starts from the checkpoints of the runs before it."""

    def job(folder: Path) -> Job:
        made: Job = getattr(models, name)(
            *arguments, data=str(folder / "binary"), folder=str(folder), **OFTEN, **fields
        )
        return made

    return Run(job, after=after)


def updater(settings: str, schedule: str = "type: kFixed base_lr: 0.01") -> Run:
    """Return the run of the small net with another updater and learning rate."""
    return text_run(SMALL.replace(SMALL.splitlines()[2], f"updater {{ {settings} learning_rate {{ {schedule} }} }}"))


CHAR_RNN = {"hidden": 16, "steps": 8, "batchsize": 8, "train_steps": 12}
WORD_RNN = {"classes": 6, "hidden": 12, "steps": 5, "batchsize": 6, "train_steps": 12}
SPOILT = ("neuralnet.layer[data].store_conf.path=spoilt.zarr", "skip_bad_batches=true")
WARM_UP = ("warmup_steps=12", "cluster.nworker_groups=2")
MIXED = (0, 0, 1, 1, 0, -1, 1, 0, 1, 1, 0)

JOBS: dict[str, Run] = {
    # families of nets
    "mlp": model("mlp", "small", (64, 32), 768, 10, batchsize=32, dropout=0.2, train_steps=20),
    "mlp-two": model("mlp", "small", (64, 32), 768, 10, batchsize=32, train_steps=20, workers=2),
    "convnet-lrn": model("convnet", "large", batchsize=16, train_steps=8),
    "resnet": model("resnet", "small", 8, size=16, batchsize=16, train_steps=8),
    "resnet-two": model("resnet", "small", 8, size=16, batchsize=16, train_steps=8, workers=2),
    "residual": text_run(RESIDUAL),
    "residual-features": text_run(RESIDUAL, "neuralnet.partition_dim=1", workers=2),
    "char-gru": model("char_rnn", "text", 12, layers=2, **CHAR_RNN),
    "char-lstm": model("char_rnn", "text", 12, cell="kLSTM", **CHAR_RNN, workers=2),
    "char-rnn": model("char_rnn", "text", 12, cell="kRNN", **CHAR_RNN),
    "rnnlm": model("rnnlm", "text", COUNTS, **WORD_RNN),
    "rnnlm-processes": model("rnnlm", "text", COUNTS, **WORD_RNN, workers=2, processes=True),
    "crf": model("bigru_crf", "tagged", VOCABULARIES, 5, hidden=8, batchsize=12, train_steps=12),
    "crf-two": model("bigru_crf", "tagged", VOCABULARIES, 5, hidden=8, batchsize=12, train_steps=12, workers=2),
    "words": text_run(WORDS),
    "words-processes": text_run(WORDS, workers=3, servers=2, processes=True),
    "rbm1": stacked("rbm", 1, (64, 24, 4), persistent=True, cd_k=2, train_steps=20),
    "rbm2": stacked("rbm", 2, (64, 24, 4), train_steps=20, after=("rbm1",)),
    "autoencoder": stacked("autoencoder", (64, 24, 4), train_steps=20, after=("rbm1", "rbm2")),
    "mdnn": model("mdnn", "pairs", (16,), (8,), code=6, classes=4, batchsize=30, train_steps=16, workers=2),
    # updaters and schedules
    "adagrad": updater("type: kAdaGrad", "type: kLinear base_lr: 0.05 linear_conf { change_freq: 10 final_lr: 0.01 }"),
    "rmsprop": updater(
        "type: kRMSProp rmsprop_conf { rho: 0.9 }", "type: kStep base_lr: 0.001 step_conf { gamma: 0.5 change_freq: 4 }"
    ),
    "adadelta": updater("type: kAdaDelta"),
    "adam": updater(
        "type: kAdam adam_conf { bias_correction: true }",
        "type: kExponential base_lr: 0.001 exponential_conf { change_freq: 5 }",
    ),
    "adammax": updater("type: kAdamMax", "type: kInverseT base_lr: 0.002 inverset_conf { final_lr: 20 }"),
    "clip": updater(
        "type: kSGD clip_low: -0.001 clip_high: 0.002",
        "type: kFixedStep fixedstep_conf { step: [0, 6] step_lr: [0.05, 0.01] }",
    ),
    "clip-norm": small("updater.clip_norm=0.05", workers=2),
    # partitionings
    "rows-two": small(workers=2),
    "rows-uneven": small("neuralnet.layer[data,kTrain].store_conf.batchsize=[20, 15, 7]", workers=3, servers=2),
    "features": small("neuralnet.partition_dim=1", workers=3),
    "hybrid": partitioned(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, workers=4, servers=2),
    "locations": located(0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, workers=3),
    "mixed": partitioned(*MIXED, workers=3, servers=3),
    "features-processes": small("neuralnet.partition_dim=1", workers=3, processes=True),
    "mixed-processes": partitioned(*MIXED, workers=3, servers=3, processes=True),
    # topologies and exchange
    "allreduce": small(workers=3, servers=3, processes=True),
    "sandblaster": small(workers=2, servers=2, cluster="server_worker_separate: true", processes=True),
    "blocks": small(workers=3, servers=2, cluster="slicing: kBlock"),
    "deferred": small(workers=2, servers=2, cluster="pull: kDeferred"),
    "update-worker": small(workers=3, servers=2, cluster="update: kWorker"),
    "update-worker-processes": small(workers=3, servers=2, cluster="update: kWorker", processes=True),
    "fullc-gather": small(workers=2, servers=2, cluster="fullc_gather: true"),
    "fullc-gather-processes": small(workers=2, servers=2, cluster="fullc_gather: true", processes=True),
    "one-bit": small(workers=2, servers=2, cluster="compression: kOneBit"),
    "one-bit-processes": small(workers=3, servers=2, cluster="compression: kOneBit", processes=True),
    "top-k": small(workers=2, cluster="compression: kTopK topk_share: 0.05", processes=True),
    "no-overlap": small(workers=2, servers=2, config={"dsinga.overlap": False}),
    "no-overlap-processes": small(workers=2, servers=2, config={"dsinga.overlap": False}, processes=True),
    "warm-up-downpour": small(*WARM_UP, workers=2),
    "warm-up-hogwild": small(*WARM_UP, "cluster.nserver_groups=2"),
    # ways to run
    "graph": small(workers=2, servers=2, grain="graph"),
    "graph-processes": partitioned(*MIXED, workers=2, grain="graph", processes=True),
    "resume": small("updater.type=kAdam", workers=2, servers=2, resume_at=6),
    "resume-processes": small(workers=3, servers=2, resume_at=6, processes=True),
    "resume-text": Run(model("char_rnn", "text", 12, **CHAR_RNN, workers=2).job, resume_at=6),
    "skip-bad-batches": text_run(RESIDUAL, *SPOILT, workers=2),
    "numpy": small(workers=2, environment={"DSINGA_OPS": "numpy"}),
    "numpy-resnet": Run(
        model("resnet", "small", 8, size=16, batchsize=16, train_steps=8, workers=2).job,
        environment={"DSINGA_OPS": "numpy"},
    ),
    "numpy-residual": text_run(RESIDUAL, environment={"DSINGA_OPS": "numpy"}),
}
