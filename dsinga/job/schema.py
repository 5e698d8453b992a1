"""The fields of a job (SINGA 0.3's JobProto and its messages), except for layers (``layerconf.py``).

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
    Blocks,
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
    """The algorithm for the gradients of a batch: a built-in one, or your own by ``user_alg``.

    In Python it may be an object (:meth:`with_function`), which job files leave out.

    Args:
        alg: the type of the algorithm.
        user_alg: the name of your own algorithm.
    """

    kind: ClassVar = "algorithm"
    type_field: ClassVar = "alg"
    user_field: ClassVar = "user_alg"
    _function: ClassVar[Any] = None

    alg: AlgType = AlgType.kUserAlg
    user_alg: str | None = None

    @property
    def function(self) -> Any:
        """The training algorithm as an object; None if it is built in or registered."""
        return self._function

    def with_function(self, function: Any) -> Self:
        """Return a copy that uses the object ``function`` as algorithm."""
        changed = self.replace()
        changed._function = function  # type: ignore[misc]
        return changed


class LayerGroupConf(Message):
    """Names of layers, which are ignored; for old job files.

    Args:
        layer: the names.
    """

    layer: list[str] = field(default_factory=list)


class NetConf(Message):
    """The neural net: its layers, and how layers without a ``partition_dim`` are divided among workers.

    Args:
        layer: the layers.
        partition_dim: the axis on which layers are cut: 0 for rows, 1 for features, 2 to 4 for points of fields.
        partition_grid: the numbers of workers along the axes of points, starting with ``partition_dim``. By default all
            workers cut the first of these axes.
        partition: with auto, the cost model cuts layers without a ``partition_dim``.
        layer_group: ignored, for old job files.
        unroll_len: the number of time steps of an unrolled net.
        recompute: the number of stretches of layers that keep only their last output. The backward pass computes the
            others again. The last stretch keeps all.
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
        """Whether layers are cut along the axes of images or fields."""
        dims = (self.partition_dim if layer.partition_dim is None else layer.partition_dim for layer in self.layer)
        return any(dim > 1 for dim in dims)

    @property
    def allows_few_rows(self) -> bool:
        """Whether a batch may have fewer rows than workers, as layers may be cut along axes of points."""
        return self.by_space or self.partition is PartitionMethod.auto


class SyncEdgeConf(Message):
    """Two server groups that synchronise with each other.

    Args:
        group: the numbers of the two groups.
    """

    group: list[int] = field(default_factory=list)


class ClusterConf(Message):
    """The numbers and groups of workers and servers, and how they exchange gradients and params.

    A run that has a thread for each worker may start with fewer Dask workers, if none has joined for 10 to 60 seconds.

    Args:
        nworker_groups: the number of worker groups. Each trains on batches of its own.
        nserver_groups: the number of server groups. Each has all params.
        nworkers_per_group: the number of workers of a group. They share a batch, or the layers of the net.
        nservers_per_group: the number of servers of a group. They divide the params.
        nworkers_per_procs: how many workers of a group run as threads of one process.
        nservers_per_procs: how many servers of a group run in one process.
        workspace: the folder for metrics and checkpoints.
        server_worker_separate: whether servers run in processes of their own.
        sync_freq: the number of updates between two synchronisations of linked server groups.
        start_port: ignored, for old job files.
        share_memory: ignored, for old job files.
        poll_time: ignored, for old job files.
        slicing: how params are cut for servers. kSinga keeps them whole where that is as even. kBlock cuts equal blocks
            and assigns them by hash.
        block_size: the elements of a block of kBlock; by default PaddlePaddle's formula.
        block_rows: the rows of a block of an embedding; by default as many as fit.
        sync_topology: which server groups send each other the changes of their params.
        sync_edge: the pairs of server groups that do so, in place of ``sync_topology``.
        sync_method: whether the changes of server groups add up (kSum) or their params are averaged (kMean).
        user_sync_method: the name of your own method (:class:`dsinga.cluster.server.GroupSync`).
        staleness: how many steps a worker group may be ahead of the slowest one of its server group; by default any.
        compression: how gradients are compressed.
        topk_share: the fraction of a gradient's numbers that kTopK sends.
        pull: whether workers fetch new params right after sending gradients, or when a forward pass needs them.
        update: whether servers update the params, or each worker does with the summed gradients.
        fullc_gather: whether workers send activations of dense layers in place of gradients, where that is less.
        max_restarts: how often a run starts again after it has lost Dask workers; by default 3 times from one snapshot.
        min_workers: the fewest processes with which a run starts, or starts again.
        patience: how many seconds a run waits for these processes. Then it raises :class:`dsinga.ClusterNotReady`.
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
        """The outer optimizer that averages params of server groups; None if their changes add up."""
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
    """An extension of the training loop: a built-in one by ``type``, or a registered one by ``user_type``.

    Args:
        type: the type of the extension.
        user_type: the name of your own extension.
        freq: the steps between two calls of your own extension.
        after: the step of its first call.
    """

    kind: ClassVar = "extension"
    flat: ClassVar = True

    type: ExtensionType = ExtensionType.kUserExtension
    user_type: str | None = None
    freq: Count | None = None
    after: Natural | None = None


class Job(Message):
    """A training job: the net, its training and its data.

    Args:
        name: the name of the job. The default workspace is called after it.
        seed: determines all random numbers. With one worker group, the same job and seed give the same bits.
        train_steps: the number of iterations.
        epochs: how often training goes through the records, in place of ``train_steps``. Metrics and tests without a
            frequency come after each epoch.
        disp_freq: the steps between two rows of training metrics.
        disp_after: the step of the first row of training metrics.
        test_freq: the steps between two tests. A test also comes at the end.
        test_steps: the batches of a test; 0 for all records.
        test_after: the step of the first test.
        validate_freq: the steps between two validations. A validation also comes at the end.
        validate_steps: the batches of a validation; 0 for all records.
        validate_after: the step of the first validation.
        checkpoint_freq: the steps between two checkpoints. A checkpoint is also written at the end.
        checkpoint_after: the step of the first checkpoint; by default ``checkpoint_freq``.
        checkpoint_keep: how many of the newest checkpoints are kept; 0 keeps all.
        checkpoint_path: checkpoints with the params from which training starts.
        warmup_steps: how many steps group 0 trains alone before other worker groups start with its params.
        skip_bad_batches: whether a worker group skips a batch if its loss, gradient or record is not finite, without a
            change of params. Otherwise it ends training. Graph grain cannot skip.
        micro_batches: in how many turns a batch is computed, to save memory. The turns are equal parts of the batch,
            whose gradients add up. With ``blocks``, each turn computes some of the blocks, and the bits stay the same.
        blocks: the number of parts of a batch, equal if possible, that are computed each by itself and shared out among
            the workers. Any number of workers then gives the same bits. 0 for none.
        precision: the precision of matrix products and convolutions. Params and sums stay float32.
        reset_param_version: ignored, for old job files.
        num_openblas_threads: ignored, for old job files.
        gpu: the numbers of the GPUs of each host, for its workers in order. Further workers use CPU cores.
        debug: ignored, for old job files.
        resume: whether training continues from the newest undamaged checkpoint in the workspace.
        step: ignored, for old job files.
        id: ignored, for old job files.
        train_one_batch: the algorithm that computes gradients.
        updater: the updater, which changes the params.
        cluster: the topology: groups of workers and servers. Without it, all workers share each batch.
        extension: the extensions (callbacks) of the training loop.
        neuralnet: the net.
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
    blocks: Blocks = 0
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
    def passes(self) -> int:
        """How many passes compute a batch, one after another: ``micro_batches``, or 1 with ``blocks``."""
        return 1 if self.blocks else self.micro_batches

    @property
    def blocks_at_once(self) -> int:
        """The most blocks of a batch in memory at a time, which ``micro_batches`` turns compute; 0 without blocks."""
        return -(-self.blocks // self.micro_batches)

    @property
    def record_offset(self) -> int:
        """Where in the endless order of records step 0 lies, if all batches had the job's size."""
        return self._record_offset

    def with_record_offset(self, offset: int) -> Self:
        """Return the job with another ``record_offset``, which job files do not have."""
        job = self.replace()
        job._record_offset = offset  # type: ignore[misc]
        return job

    @property
    def params(self) -> Mapping[str, Any]:
        """The arrays by name that training starts from in place of initial values; {} for none."""
        return self._params

    def with_params(self, params: Mapping[str, Any]) -> Self:
        """Return the job with params to start from, which job files do not have."""
        job = self.replace()
        job._params = params  # type: ignore[misc]
        return job

    @property
    def experience(self) -> Any:
        """The source of an agent's experience, as an add-on's message; None for a job with records."""
        return next((value for value in vars(self).values() if isinstance(value, Message) and value.engine), None)

    @property
    def net(self) -> NetConf:
        """The neural net, short for ``neuralnet``."""
        return self.neuralnet


class JobCheck(Protocol):
    """The type of a function that checks a job, such as the hook ``check_cluster``."""

    def __call__(self, job: Job) -> None:
        """Raise JobError if the job is wrong."""
