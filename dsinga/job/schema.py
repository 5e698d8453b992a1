"""The schema of a job: SINGA 0.3's JobProto and its messages, without the layers (``layerconf.py``).

Field names, defaults and meanings are SINGA's (job.proto of branch v0.3) unless a docstring says otherwise; a class
``XConf`` is SINGA's ``XProto``. An extension ``[name] { ... }`` sets the settings that a user's component declares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, ClassVar, Self

from dsinga.job.component import Component, Settings, setting
from dsinga.job.enums import (
    AlgType,
    ChangeMethod,
    Compression,
    ExtensionType,
    PartitionMethod,
    Precision,
    PullTime,
    SlicingMethod,
    SyncMethod,
    SyncTopology,
    UpdatePlace,
    UpdaterType,
)
from dsinga.job.layerconf import LayerConf
from dsinga.job.limits import (
    Count,
    Fraction,
    Members,
    Natural,
    NonNegative,
    PartitionDim,
    Parts,
    Range,
    Share,
    Steps,
    Unit,
)
from dsinga.job.message import Message
from dsinga.job.type_names import TypeName
from dsinga.job.updaterconf import LRGenConf, UpdaterConf


class LearningAlgorithm(TypeName, kind="learning_algorithm", user="kUserAlgorithm", number=107):
    """The algorithms of reinforcement learning."""


class ReplayConf(Settings):
    """The replay memory of algorithms that learn from transitions, as kDQN, and when they do. Not of a single class."""

    capacity: Count = setting(100_000, "how many transitions are kept")
    batch_size: Count = setting(32, "transitions of an update")
    learn_every: Count = setting(1, "steps of environments for each update")
    learn_after: Natural = setting(1000, "steps of environments before the first update")
    n_steps: Count = setting(1, "steps of a transition")
    prioritized: bool = setting(False, "whether transitions of a large error are drawn more often")


class ReinforcementConf(Component):
    """How an agent learns from an environment, in place of records.

    ``environment`` is its name, as for :func:`dsinga.rl.make_environments`, and ``num_environments`` how many are
    stepped together; with ``num_actors`` each of so many actors on a Dask cluster has as many. With
    ``central_inference`` actors send observations, and the learner chooses all actions. A rollout of an actor is at
    most ``max_staleness`` updates old when kIMPALA learns from it, or when a replay memory gets it, where all updates
    between two rollouts count as one. Where the job's cluster has several workers, each learns, and has so many
    environments or actors (kA2C, kPPO; kIMPALA). ``rollout_steps`` are the steps of each environment in a rollout, or
    those between rows of metrics. The job's ``train_steps``, ``disp_freq``, ``test_freq`` and ``checkpoint_freq`` count
    steps of all environments together; a test is an evaluation by the best actions in ``evaluation_episodes`` episodes,
    and the run ends when its mean return is ``stop_return``. ``discount`` is the factor of the next step's reward.
    ``heads`` are the layers to which the algorithm gives a meaning, such as a policy and a value; by default those that
    are no sources of others.
    """

    kind: ClassVar = "learning_algorithm"
    type_field: ClassVar = "algorithm"
    user_field: ClassVar = "user_algorithm"

    environment: str
    num_environments: Count = 8
    num_actors: Natural = 0
    central_inference: bool = False
    max_staleness: Natural = 8
    algorithm: LearningAlgorithm = LearningAlgorithm.kUserAlgorithm
    user_algorithm: str | None = None
    rollout_steps: Count = 128
    discount: Unit = 0.99
    evaluation_episodes: Natural = 10
    stop_return: float | None = None
    heads: list[str] = field(default_factory=list)
    replay_conf: ReplayConf | None = None


def outer_nesterov() -> UpdaterConf:
    """Return the outer updater of DiLoCo: Nesterov's momentum of 0.9 at a rate of 0.7 (arXiv 2311.08105, table 5)."""
    rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=0.7)
    return UpdaterConf(type=UpdaterType.kNesterov, learning_rate=rate, momentum=0.9)


class MeanConf(Message):
    """How server groups agree by the mean of their changes, where the cluster has ``sync_method: kMean``.

    Every ``sync_freq`` steps the mean of what the groups have changed since the last time, with the sign of a gradient,
    is the gradient of ``updater``, which changes the outer values. Each group goes on from these, and keeps the state
    of the job's own updater. Schedules of ``updater`` count these outer steps.

    ``weight`` has a number for each server group, in proportion to which its changes count (default: all the same).
    Up to step ``every_step_until`` groups agree after every step. ``mixing`` is the share of its own values that a
    group keeps. ``compression`` is that of the changes: kNone, kBF16, kInt8 or kInt4. With several ``fragments`` the
    slices of the params agree in turn, a fragment every ``sync_freq`` / ``fragments`` steps. Changes are applied
    ``delay`` steps after they were made, and are sent meanwhile. ``asynchronous`` groups do not wait for each other:
    the change of a group that is a agreements late counts 1 / √(1 + a) times, and not at all if a is more than
    ``max_age``. ``site`` is a pattern for each group, such as ``10.0.1.*``, of the hosts, names, addresses or resources
    of its Dask workers (default: a host each).
    """

    updater: UpdaterConf = field(default_factory=outer_nesterov)
    weight: list[NonNegative] = field(default_factory=list)
    every_step_until: Natural = 0
    mixing: Share = 0.0
    compression: Compression = Compression.kNone
    fragments: Count = 1
    delay: Natural = 0
    asynchronous: bool = False
    max_age: Natural = 8
    site: list[str] = field(default_factory=list)


class AlgConf(Component):
    """The TrainOneBatch algorithm: a built-in one, or the registered one that ``user_alg`` names.

    In Python it may also be an object, ``function``, which ``user_alg`` only describes then. It is not a field of the
    schema: copies keep it, job files leave it out.
    """

    kind: ClassVar = "algorithm"
    type_field: ClassVar = "alg"
    user_field: ClassVar = "user_alg"
    _function: ClassVar[Any] = None

    alg: AlgType = AlgType.kUserAlg
    user_alg: str | None = None

    @property
    def function(self) -> Any:
        """The algorithm, where it is an object; None for a built-in or registered one."""
        return self._function

    def with_function(self, function: Any) -> Self:
        """Return a copy whose algorithm is ``function``."""
        changed = self.replace()
        changed._function = function  # type: ignore[misc]
        return changed


class LayerGroupConf(Message):
    """The names of the layers of a group."""

    layer: list[str] = field(default_factory=list)


class NetConf(Message):
    """The neural net: its layers, and the dimension on which layers without a ``partition_dim`` are partitioned.

    Beyond SINGA: with ``partition: auto`` the cost model chooses, except for layers with a ``partition_dim``.
    ``partition_grid`` has the numbers of workers along the axes of points from ``partition_dim`` (2 to 4) on; by
    default all workers cut the first.
    ``recompute`` is the number of stretches of layers, about equal in memory, that keep only their last feature for the
    backward pass and compute the others again, but for the uppermost stretch; 0 or 1: none.
    """

    layer: list[LayerConf] = field(default_factory=list)
    partition_dim: PartitionDim = 0
    partition_grid: list[Parts] = field(default_factory=list)
    partition: PartitionMethod = PartitionMethod.manual
    layer_group: list[LayerGroupConf] = field(default_factory=list)
    unroll_len: Steps = 1
    recompute: Natural = 0

    @property
    def by_space(self) -> bool:
        """Whether layers are cut by space."""
        dims = (self.partition_dim if layer.partition_dim is None else layer.partition_dim for layer in self.layer)
        return any(dim > 1 for dim in dims)

    @property
    def allows_few_rows(self) -> bool:
        """Whether a batch may have fewer rows than there are workers: the planner may choose to cut by space, too."""
        return self.by_space or self.partition is PartitionMethod.auto


class SyncEdgeConf(Message):
    """Two server groups that synchronise with each other."""

    group: list[int] = field(default_factory=list)


class ClusterConf(Message):
    """The topology (5.1 and 5.2 of the paper). Beyond SINGA: ``slicing`` and the fields after it.

    ``start_port``, ``share_memory`` and ``poll_time`` are SINGA's and have no effect, because Dask connects the
    workers. ``sync_freq`` is the number of updates between two synchronisations of linked server groups; ``sync_edge``,
    if there is any, replaces ``sync_topology``. With ``sync_method: kMean`` server groups agree by the mean of their
    changes, as ``mean_conf`` says; otherwise changes add up. ``staleness`` is how many steps a worker group may be
    ahead of the slowest one of its server group (default: no bound). ``topk_share`` is the fraction of a gradient's
    numbers that kTopK sends. ``fullc_gather`` sends the activations of fully connected layers that are cut by rows in
    place of the gradients of their weights, where that is less. ``max_restarts`` is how often a run that has lost Dask
    workers starts again (default: up to 3 times from one snapshot). While it then, or at the start, has fewer than
    ``min_workers`` processes, or has too few for its workers at the start, it waits, for at most ``patience`` seconds.
    ``block_size`` is the number of elements of a block of ``slicing: kBlock`` (default: PaddlePaddle's formula),
    ``block_rows`` the number of rows of a block of an embedding (default: as many as fit into such a block).
    """

    nworker_groups: Members = 1
    nserver_groups: Annotated[int, Range(1, 1000)] = 1
    nworkers_per_group: Members = 1
    nservers_per_group: Members = 1
    nworkers_per_procs: Count = 1
    nservers_per_procs: Count = 1
    workspace: str | None = None
    server_worker_separate: bool = False
    sync_freq: Count = 1
    start_port: int = 6723
    share_memory: bool = True
    poll_time: int = 100
    slicing: SlicingMethod = SlicingMethod.kSinga
    block_size: Count | None = None
    block_rows: Count | None = None
    sync_topology: SyncTopology = SyncTopology.kAllToAll
    sync_edge: list[SyncEdgeConf] = field(default_factory=list)
    sync_method: SyncMethod = SyncMethod.kSum
    mean_conf: MeanConf | None = None
    staleness: Natural | None = None
    compression: Compression = Compression.kNone
    topk_share: Fraction = 0.01
    pull: PullTime = PullTime.kAtOnce
    update: UpdatePlace = UpdatePlace.kServer
    fullc_gather: bool = False
    max_restarts: Natural | None = None
    min_workers: Members = 1
    patience: NonNegative = 600.0


class ExtensionConf(Component):
    """An extension of the training loop: a built-in one by its ``type``, or ``user_type`` names a registered one.

    The settings of its type are fields, too. ``freq`` and ``after`` say every how many steps a user's extension runs,
    and from which step on. Not in SINGA.
    """

    kind: ClassVar = "extension"
    flat: ClassVar = True

    type: ExtensionType = ExtensionType.kUserExtension
    user_type: str | None = None
    freq: Count | None = None
    after: Natural | None = None


class Job(Message):
    """A training job.

    Beyond SINGA: ``seed`` determines all random numbers of the job; ``skip_bad_batches`` skips a batch whose loss or
    gradient is not finite, where training otherwise ends with an error; ``precision`` is the precision of products;
    ``extension`` adds extensions to the training loop; ``checkpoint_keep`` is how many checkpoints are kept, the newest
    ones (0: all). ``epochs``, in place of ``train_steps``, says how many times training goes through the records;
    metrics, validation and tests without a frequency come at the end of each epoch. ``resume`` continues from the
    newest undamaged checkpoint in the workspace, as ``dsinga train --resume`` does. ``micro_batches`` is the number of
    equal parts in which a batch is computed, one after another, to need less memory; their gradients add up to that of
    the whole batch.

    With ``reinforcement`` the net learns from an environment in place of records.

    ``gpu`` has the numbers of the GPUs to use on each host: the host's first worker computes on the first GPU, and so
    on; further workers compute on CPU cores.
    """

    aliases: ClassVar = {"net": "neuralnet"}

    _repr_html_: ClassVar[Callable[[Any], str]]  # set by dsinga.job.writer

    name: str = "job"
    seed: Natural = 0
    train_steps: Natural = 0
    epochs: Natural = 0
    disp_freq: Natural = 0
    disp_after: Natural = 0
    test_freq: Natural = 0
    test_steps: Natural = 0
    test_after: Natural = 0
    validate_freq: Natural = 0
    validate_steps: Natural = 0
    validate_after: Natural = 0
    checkpoint_freq: Natural = 0
    checkpoint_after: Natural = 0
    checkpoint_keep: Natural = 0
    checkpoint_path: list[str] = field(default_factory=list)
    warmup_steps: Natural = 0
    skip_bad_batches: bool = False
    micro_batches: Members = 1
    precision: Precision = Precision.kFloat32
    reset_param_version: bool = True
    num_openblas_threads: Count = 1
    gpu: list[Natural] = field(default_factory=list)
    debug: bool = False
    resume: bool = False
    step: Natural = 0
    id: int = -1
    train_one_batch: AlgConf = field(default_factory=lambda: AlgConf(alg=AlgType.kBP))
    updater: UpdaterConf = field(default_factory=lambda: UpdaterConf(type=UpdaterType.kSGD))
    cluster: ClusterConf | None = None
    extension: list[ExtensionConf] = field(default_factory=list)
    reinforcement: ReinforcementConf | None = None
    neuralnet: NetConf = field(default_factory=NetConf)

    # Set by with_record_offset.
    _record_offset: ClassVar[int] = 0

    @property
    def record_offset(self) -> int:
        """The position in the order of records where step 0 would begin if all batches had the size of the job's.

        It is 0 but for a run that goes on with batches of another size than it had before.
        """
        return self._record_offset

    def with_record_offset(self, offset: int) -> Self:
        """Return the job with another ``record_offset``, which is no field: no text of the job has it."""
        job = self.replace()
        job._record_offset = offset  # type: ignore[misc]
        return job

    @property
    def net(self) -> NetConf:
        """The neural net; a short name for ``neuralnet``."""
        return self.neuralnet
