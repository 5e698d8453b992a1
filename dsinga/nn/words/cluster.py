"""Defines ``nn.Cluster``, which says how a model trains on a cluster: worker groups, servers and sites."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.job import ClusterConf, SyncMethod
from dsinga.job.message import field_names
from dsinga.nn.words.keras_arguments import check_names, checked


class ClusterFields(TypedDict, total=False):
    """Further fields of ``cluster { }`` that ``nn.Cluster`` accepts, typed for type checkers."""

    server_worker_separate: bool  # whether servers run in processes of their own
    slicing: str  # how params are cut into slices for servers: "kSinga" or "kBlock"
    block_size: int  # the number of elements of a block of kBlock
    block_rows: int  # the number of rows of a block of an embedding
    sync_topology: str  # which server groups are linked: "kAllToAll", "kRing" or "kStar"
    sync_edge: Sequence[Any]  # the links of server groups, in place of a topology
    sync_method: str  # how server groups synchronise: "kSum" of updates, or "kMean", by averaging
    user_sync_method: str  # the name of a registered synchronisation of server groups
    mean_conf: Mapping[str, Any]  # settings of kMean: {"mixing": 0.5}
    staleness: int  # how many steps a worker group may be ahead of the slowest one
    compression: str  # how gradients are compressed: "kOneBit", "kTopK", "kBF16", "kInt8" or "kInt4"
    topk_share: float  # the fraction of a gradient's numbers that kTopK sends
    pull: str  # when workers fetch params: "kAtOnce" or "kDeferred"
    update: str  # where params are updated: "kServer" or "kWorker"
    fullc_gather: bool  # whether activations are sent in place of gradients of dense layers, where that is less
    max_restarts: int  # how often a run that has lost Dask workers starts again
    min_workers: int  # how many processes a start waits for
    patience: float  # for how many seconds it waits
    workspace: str  # the folder of checkpoints and logs


@checked
def Cluster(
    *,
    workers: int | None = None,
    groups: int | None = None,
    servers: int | None = None,
    server_groups: int | None = None,
    workers_per_process: int | None = None,
    servers_per_process: int | None = None,
    sites: int | None = None,
    sync_freq: int | None = None,
    **fields: Unpack[ClusterFields],
) -> ClusterConf:
    """Return how many workers and servers train a model: ``nn.Cluster(workers=4)``; all numbers default to 1.

    Args:
        workers: workers in a group, which share the records of a batch or the layers of a net.
        groups: worker groups, each training on its own batches.
        servers: servers in a group, which keep the params in slices.
        server_groups: server groups, each with all params.
        workers_per_process: workers of a group in one process, on threads.
        servers_per_process: servers of a group in one process.
        sites: worker groups that train apart, with servers of their own. Every ``sync_freq`` steps, their params move
            by the mean of their changes, as in DiLoCo (docs/howto/sites.md).
        sync_freq: steps between two synchronisations of server groups.
        fields: further fields of ``cluster { }`` in a job.

    Raises:
        UserError: an unknown field, or ``sites`` without ``sync_freq`` or with a number of groups.

    Examples:
        >>> from dsinga import nn
        >>> model = nn.Sequential([nn.Dense(1)])
        >>> model.compile("adam", "mse", cluster=nn.Cluster(workers=2))
    """
    check_names("Cluster", [*inspect.signature(Cluster).parameters, *field_names(ClusterConf)], fields)
    topology = {
        "nworkers_per_group": workers,
        "nworker_groups": groups,
        "nservers_per_group": servers,
        "nserver_groups": server_groups,
        "nworkers_per_procs": workers_per_process,
        "nservers_per_procs": servers_per_process,
        "sync_freq": sync_freq,
    }
    given: dict[str, Any] = {**fields, **{name: value for name, value in topology.items() if value is not None}}
    if sites is not None:
        check_whole("sites", sites, 1)
        numbers = {"groups": groups, "server_groups": server_groups}
        named = [name for name, value in numbers.items() if value is not None]
        if named or (named := sorted({"nworker_groups", "nserver_groups", "sync_method"} & {*fields})):
            raise UserError(f"sites={sites} is the number of groups; leave {named[0]} out")
        if sites > 1:
            _check_mean(sites, given)
            given |= {"nworker_groups": sites, "nserver_groups": sites, "sync_method": SyncMethod.kMean}
    return ClusterConf(**given)


def _check_mean(sites: int, fields: Mapping[str, Any]) -> None:
    """Raise UserError for sites without ``sync_freq``, or with a number as compression."""
    if "sync_freq" not in fields:
        raise UserError(f"sites={sites} average every sync_freq steps; give sync_freq, such as 100 (1: each step)")
    mean = fields.get("mean_conf")
    number = mean.get("compression") if isinstance(mean, dict) else None
    if isinstance(number, int):
        raise UserError(f"compression is a name, such as 'kInt4' for 4 bits, not {number}")
