"""The schema of a job: SINGA 0.3's JobProto and its messages, without the layers (``layerconf.py``).

Field names, defaults and meanings are SINGA's (job.proto of branch v0.3) unless a docstring says otherwise; a class
``XConf`` is SINGA's ``XProto``. An extension ``[name] { ... }`` sets the settings that a user's component declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

from dsinga.base.errors import UserError
from dsinga.job.component import Component
from dsinga.job.enums import (
    AlgType,
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
    Steps,
)
from dsinga.job.message import Message, added_message
from dsinga.job.updaterconf import UpdaterConf


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
    if there is any, replaces ``sync_topology``. With ``sync_method: kMean`` server groups average their params, as
    ``mean_conf`` says; otherwise changes add up, unless ``user_sync_method`` names a method that a user has registered
    (:class:`dsinga.cluster.server.GroupSync`). ``staleness`` is how many steps a worker group may be
    ahead of the slowest one of its server group (default: no bound). ``topk_share`` is the fraction of a gradient's
    numbers that kTopK sends. ``fullc_gather`` sends the activations of fully connected layers that are cut by rows in
    place of the gradients of their weights, where that is less. ``max_restarts`` is how often a run that has lost Dask
    workers starts again (default: up to 3 times from one snapshot). While it then, or at the start, has fewer than
    ``min_workers`` processes, or has too few for its workers at the start, it waits, for at most ``patience`` seconds.
    Then it raises :class:`dsinga.ClusterNotReady`, and a command ends with status 75. A run that has a thread for each
    worker, but fewer Dask workers, starts when none has joined for 10 seconds, or for up to a minute where the first
    one took so long to join.
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
    user_sync_method: str | None = None
    staleness: Natural | None = None
    compression: Compression = Compression.kNone
    topk_share: Fraction = 0.01
    pull: PullTime = PullTime.kAtOnce
    update: UpdatePlace = UpdatePlace.kServer
    fullc_gather: bool = False
    max_restarts: Natural | None = None
    min_workers: Members = 1
    patience: NonNegative = 600.0

    @property
    def mean(self) -> Any:
        """How server groups average their params, by default if the job does not say; None if changes add up."""
        if self.sync_method is not SyncMethod.kMean:
            return None
        try:
            return self.mean_conf or added_message(ClusterConf, "mean_conf")()
        except UserError as error:  # the add-on is missing
            raise self.error(str(error), "sync_method") from None

    if TYPE_CHECKING:  # messages of add-ons are fields, too

        def __init__(self, **fields: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


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
    neuralnet: NetConf = field(default_factory=NetConf)

    if TYPE_CHECKING:  # messages of add-ons are fields, too

        def __init__(self, **fields: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    # Set by with_record_offset and with_params.
    _record_offset: ClassVar[int] = 0
    _params: ClassVar[Mapping[str, Any]] = MappingProxyType({})

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
    def params(self) -> Mapping[str, Any]:
        """The arrays by name with which training begins in place of initial values, {} for none."""
        return self._params

    def with_params(self, params: Mapping[str, Any]) -> Self:
        """Return the job with other ``params``, which are no field: no text of the job has them."""
        job = self.replace()
        job._params = params  # type: ignore[misc]
        return job

    @property
    def experience(self) -> Any:
        """The message of an add-on from which the job learns in place of records, None where it reads records."""
        return next((value for value in vars(self).values() if isinstance(value, Message) and value.engine), None)

    @property
    def net(self) -> NetConf:
        """The neural net; a short name for ``neuralnet``."""
        return self.neuralnet


class JobCheck(Protocol):
    """The type of a check of a job, such as the hook ``check_cluster`` of what cuts nets."""

    def __call__(self, job: Job) -> None:
        """Raise JobError for the first field that is invalid."""
