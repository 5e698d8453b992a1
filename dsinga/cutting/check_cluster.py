"""Checks a job's ``cluster {}``: numbers of groups, edges between server groups, options for several groups."""

from __future__ import annotations

from collections.abc import Iterable

from dsinga.base.arguments import counted
from dsinga.base.errors import UserError
from dsinga.base.registry import implements, lookup, register
from dsinga.job.enums import PartitionMethod, SlicingMethod, SyncMethod, UpdatePlace
from dsinga.job.limits import MAX_MEMBERS
from dsinga.job.schema import ClusterConf, Job, JobCheck


@register("hook", "check_cluster")
@implements(JobCheck)
def check_cluster(job: Job) -> None:
    """Raise JobError for the first invalid field of ``cluster {}``, or of fields that depend on it."""
    if job.blocks:
        check_blocks(job)
    if job.warmup_steps > job.train_steps > 0:
        text = f"warmup_steps: {job.warmup_steps} is more than train_steps: {job.train_steps}; the other worker groups"
        raise job.error(f"{text} would never begin", "warmup_steps")
    cluster = job.cluster
    check_site_paths(job, cluster.nworker_groups if cluster else 1)
    if cluster is None:
        return
    groups, server_groups = cluster.nworker_groups, cluster.nserver_groups
    for count, members, field in (
        (groups, job.blocks or cluster.nworkers_per_group, "blocks" if job.blocks else "nworkers_per_group"),
        (server_groups, cluster.nservers_per_group, "nservers_per_group"),
    ):
        if count * members > MAX_MEMBERS:
            text = f"{field}: {members} in each of {count} groups are more than {MAX_MEMBERS:,} altogether; use fewer"
            raise cluster.error(text, field)
    if groups % server_groups:
        text = f"nserver_groups: {server_groups} must divide nworker_groups: {groups}, because each server group serves"
        raise cluster.error(f"{text} as many worker groups", "nserver_groups")
    check_edges(cluster)
    check_user_sync_method(cluster)
    if (mean := cluster.mean) is not None:
        mean.check(job)
    elif cluster.mean_conf is not None:
        raise cluster.error("mean_conf is for sync_method: kMean; set that, or leave mean_conf out", "mean_conf")
    for field in ("block_size", "block_rows"):
        if getattr(cluster, field) is not None and cluster.slicing is not SlicingMethod.kBlock:
            raise cluster.error(f"{field} is for slicing: kBlock; set that, or leave {field} out", field)
    if groups > 1:
        check_asynchronous(job, cluster)
    check_locations(job, cluster.nworkers_per_group)


def check_blocks(job: Job) -> None:
    """Raise JobError for ``blocks`` beside ``partition: auto``, and for more turns or workers than blocks."""
    if job.micro_batches > job.blocks:
        text = f"{job.micro_batches} micro_batches cannot share {counted(job.blocks, 'block')} of a batch"
        raise job.error(f"{text}; use at most {job.blocks} micro_batches, or more blocks", "micro_batches")
    if job.neuralnet.partition is PartitionMethod.auto:
        text = "partition: auto chooses a cut for the workers at hand, and blocks is for any workers; leave one out"
        raise job.neuralnet.error(text, "partition")
    check_locations(job, 1)
    cluster = job.cluster or ClusterConf()
    if (groups := cluster.nworker_groups) > 1 and (cluster.mean is None or cluster.mean.asynchronous):
        text = f"blocks gives the same bits in each run, but {groups} asynchronous worker groups update params in any"
        raise job.error(f"{text} order; use one worker group, or leave blocks out", "blocks")
    if not cluster.compression.by_number:
        text = (
            f"blocks gives the same bits on other workers, but compression: {cluster.compression.name} keeps a rest in"
        )
        raise cluster.error(f"{text} each worker; use kBF16, or leave blocks out", "compression")
    if cluster.nworkers_per_group > job.blocks:
        count = cluster.nworkers_per_group
        text = f"{count} workers cannot share {counted(job.blocks, 'block')} of a batch; use at most {job.blocks}"
        raise job.error(f"{text} workers (in a job nworkers_per_group), or more blocks", "blocks")


def check_locations(job: Job, workers: int) -> None:
    """Raise JobError for a layer's ``location`` that is none of the group's ``workers``, or of the job's blocks."""
    what = "the number of a block" if job.blocks else "a worker of the group"
    for layer in job.neuralnet.layer:
        if layer.location is not None and layer.location >= (job.blocks or workers):
            last = (job.blocks or workers) - 1
            text = f"layer {layer.name!r}: location must be {what}, 0 to {last}, not {layer.location}"
            raise layer.error(text, "location")


def check_site_paths(job: Job, groups: int) -> None:
    """Raise JobError if an input layer's ``site_path`` names stores, but not one for each worker group."""
    for layer in job.neuralnet.layer:
        store = layer.store_conf
        if store is None or len(store.site_path) in (0, groups):
            continue
        text = f"layer {layer.name!r}: site_path names {len(store.site_path)} stores, but the job has {groups} worker"
        remedy = "give one for each" if groups > 1 else "use path, or as many nworker_groups and nserver_groups"
        raise store.error(f"{text} group{'s' if groups > 1 else ''}; {remedy}", "site_path")


def check_user_sync_method(cluster: ClusterConf) -> None:
    """Raise JobError for an unregistered ``user_sync_method``, or one together with ``sync_method``."""
    if (name := cluster.user_sync_method) is None:
        return
    if cluster.sync_method is not SyncMethod.kSum:
        raise cluster.error("user_sync_method takes the place of sync_method; leave one out", "user_sync_method")
    try:
        lookup("sync_method", name)
    except UserError as error:
        raise cluster.error(str(error), "user_sync_method") from error


def check_asynchronous(job: Job, cluster: ClusterConf) -> None:
    """Raise JobError for options that do not work with several worker groups.

    ``staleness`` is refused if each worker group has its own server group, which could not keep the bound.
    """
    groups = cluster.nworker_groups
    if cluster.update is UpdatePlace.kWorker:
        text = f"update: kWorker keeps a copy of the params in every worker, and the copies of {groups} worker groups"
        raise cluster.error(f"{text} would drift apart; use update: kServer, or one worker group", "update")
    if cluster.fullc_gather:
        text = f"fullc_gather keeps weights in the workers, and the copies of {groups} worker groups would drift apart"
        raise cluster.error(f"{text}; leave it out, or use one worker group", "fullc_gather")
    for param in (param for layer in job.neuralnet.layer for param in layer.param if param.static):
        text = f"static params are kept by the workers of one group, but the job has {groups} worker groups"
        raise param.error(f"{text}; use lr_scale: 0, or one worker group", "static")
    for layer in job.neuralnet.layer:
        if layer.bm_conf is not None and layer.bm_conf.use_global_stats:
            text = f"layer {layer.name!r}: use_global_stats keeps statistics in the workers of one group, but there are"
            raise layer.bm_conf.error(f"{text} {groups} worker groups; use one worker group", "use_global_stats")
    if cluster.staleness is not None and cluster.nserver_groups == groups:
        text = f"staleness bounds the worker groups of one server group, but each of the {groups} server groups has one"
        raise cluster.error(f"{text} worker group only; leave it out, or use fewer server groups", "staleness")


def check_edges(cluster: ClusterConf) -> None:
    """Raise JobError for a sync_edge to an unknown server group, and for an unreached server group."""
    groups = cluster.nserver_groups
    for edge in cluster.sync_edge:
        if len(edge.group) != 2:
            text = f"sync_edge joins two server groups, as in sync_edge {{ group: 0 group: 1 }}; it has {edge.group}"
            raise edge.error(text, "group")
        for item, group in enumerate(edge.group):
            if group not in range(groups):
                text = f"sync_edge names server group {group}, but the job has {groups}, numbered from 0"
                raise edge.error(text, "group", item)
        if edge.group[0] == edge.group[1]:
            raise edge.error(f"sync_edge joins server group {edge.group[0]} to itself; join it to another", "group")
    if cluster.sync_edge:
        unreached = sorted(set(range(groups)) - reachable([tuple(edge.group) for edge in cluster.sync_edge]))
        if unreached:
            text = f"no path of sync_edge leads from server group 0 to {unreached[0]}; their params would drift apart"
            raise cluster.error(text, "sync_edge")


def reachable(edges: Iterable[tuple[int, ...]], start: int = 0) -> set[int]:
    """Return the nodes of a graph that undirected ``edges`` connect with ``start``."""
    edges, nodes, frontier = list(edges), {start}, {start}
    while frontier:
        frontier = {node for edge in edges if frontier & set(edge) for node in edge} - nodes
        nodes |= frontier
    return nodes
