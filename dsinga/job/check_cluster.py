"""Checks the topology of a job: numbers of groups, edges between server groups, options for several groups."""

from __future__ import annotations

from collections.abc import Iterable

from dsinga.job.enums import ChangeMethod, Compression, SlicingMethod, SyncMethod, UpdatePlace
from dsinga.job.limits import MAX_MEMBERS
from dsinga.job.schema import ClusterConf, Job, MeanConf
from dsinga.job.updaterconf import UpdaterConf


def check_cluster(job: Job) -> None:
    """Raise JobError for the first field of ``cluster {}``, or one that depends on it, that cannot work."""
    if job.warmup_steps > job.train_steps > 0:
        text = f"warmup_steps: {job.warmup_steps} is more than train_steps: {job.train_steps}; the other worker groups"
        raise job.error(f"{text} would never begin", "warmup_steps")
    cluster = job.cluster
    check_site_paths(job, cluster.nworker_groups if cluster else 1)
    if cluster is None:
        return
    groups, server_groups = cluster.nworker_groups, cluster.nserver_groups
    for count, members, field in (
        (groups, cluster.nworkers_per_group, "nworkers_per_group"),
        (server_groups, cluster.nservers_per_group, "nservers_per_group"),
    ):
        if count * members > MAX_MEMBERS:
            text = f"{field}: {members} in each of {count} groups are more than {MAX_MEMBERS:,} altogether; use fewer"
            raise cluster.error(text, field)
    if groups % server_groups:
        text = f"nserver_groups: {server_groups} must divide nworker_groups: {groups}, because each server group serves"
        raise cluster.error(f"{text} as many worker groups", "nserver_groups")
    check_edges(cluster)
    check_mean(job, cluster)
    for field in ("block_size", "block_rows"):
        if getattr(cluster, field) is not None and cluster.slicing is not SlicingMethod.kBlock:
            raise cluster.error(f"{field} is for slicing: kBlock; set that, or leave {field} out", field)
    if groups > 1:
        check_asynchronous(job, cluster)
    for layer in job.neuralnet.layer:
        if layer.location is not None and layer.location >= cluster.nworkers_per_group:
            last = cluster.nworkers_per_group - 1
            text = f"layer {layer.name!r}: location must be a worker of the group, 0 to {last}, not {layer.location}"
            raise layer.error(text, "location")


def check_site_paths(job: Job, groups: int) -> None:
    """Raise JobError for an input layer that does not name a store for each worker group, though it names some."""
    for layer in job.neuralnet.layer:
        store = layer.store_conf
        if store is None or len(store.site_path) in (0, groups):
            continue
        text = f"layer {layer.name!r}: site_path names {len(store.site_path)} stores, but the job has {groups} worker"
        remedy = "give one for each" if groups > 1 else "use path, or as many nworker_groups and nserver_groups"
        raise store.error(f"{text} group{'s' if groups > 1 else ''}; {remedy}", "site_path")


def check_asynchronous(job: Job, cluster: ClusterConf) -> None:
    """Raise JobError for options that do not work with several worker groups.

    ``staleness`` is allowed in a job of one worker group, which keeps any bound. It is refused where each worker group
    has a server group of its own, because no server group could then keep the bound.
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


CHANGE_COMPRESSIONS = (Compression.kNone, Compression.kBF16, Compression.kInt8, Compression.kInt4)


def check_mean(job: Job, cluster: ClusterConf) -> None:
    """Raise JobError for server groups that cannot agree by the mean as the job says."""
    groups, mean = cluster.nserver_groups, cluster.mean_conf
    if cluster.sync_method is not SyncMethod.kMean:
        if mean is not None:
            raise cluster.error("mean_conf is for sync_method: kMean; set that, or leave mean_conf out", "mean_conf")
        return
    if groups == 1:
        text = (
            "sync_method: kMean is for several server groups; set nworker_groups and nserver_groups, each to the number"
        )
        raise cluster.error(f"{text} of sites, or leave sync_method out", "sync_method")
    if groups != cluster.nworker_groups:
        text = f"sync_method: kMean needs a server group for each of the {cluster.nworker_groups} worker groups, not"
        raise cluster.error(f"{text} {groups}; set nserver_groups: {cluster.nworker_groups}", "nserver_groups")
    if cluster.sync_freq > job.train_steps > 0:
        text = f"sync_freq: {cluster.sync_freq} is more than train_steps: {job.train_steps}, so that the groups agree"
        raise cluster.error(f"{text} at the end only; lower sync_freq", "sync_freq")
    if cluster.compression is not Compression.kNone and cluster.nworkers_per_group == 1:
        text = f"compression: {cluster.compression.name} is that of gradients between the workers of a site, which has"
        raise cluster.error(f"{text} one; put it into mean_conf, for the changes between sites", "compression")
    check_mean_conf(job, cluster, mean or MeanConf())
    check_outer_updater((mean or MeanConf()).updater)


def check_mean_conf(job: Job, cluster: ClusterConf, mean: MeanConf) -> None:
    """Raise JobError for settings of the mean that contradict each other or the job."""
    groups = cluster.nserver_groups
    if not mean.asynchronous and job.warmup_steps:
        text = "warmup_steps let worker group 0 train alone, but groups that agree by the mean wait for each other; use"
        raise job.error(f"{text} mean_conf {{ every_step_until: {job.warmup_steps} }} in its place", "warmup_steps")
    if mean.every_step_until >= job.train_steps > 0:
        text = f"every_step_until: {mean.every_step_until} leaves none of train_steps: {job.train_steps} for sync_freq"
        raise mean.error(f"{text}; lower it", "every_step_until")
    if mean.max_age != MeanConf().max_age and not mean.asynchronous:
        text = "max_age is the bound of asynchronous groups, but these wait for each other; set asynchronous: true, or"
        raise mean.error(f"{text} leave max_age out", "max_age")
    if mean.weight and (len(mean.weight) != groups or not sum(mean.weight)):
        text = f"weight has {len(mean.weight)} numbers for {groups} server groups"
        text = text if len(mean.weight) != groups else "weight is 0 for all server groups"
        raise mean.error(f"{text}; give one for each, not all 0", "weight")
    if mean.site and len(mean.site) != groups:
        text = (
            f"site names the Dask workers of {len(mean.site)} groups, but there are {groups}; give a pattern for each"
        )
        raise mean.error(f'{text}, such as site: "10.0.1.*", or none', "site")
    if mean.fragments > cluster.sync_freq:
        text = (
            f"fragments: {mean.fragments} cannot agree in turn within sync_freq: {cluster.sync_freq} steps; use at most"
        )
        raise mean.error(f"{text} {cluster.sync_freq}", "fragments")
    if mean.delay >= cluster.sync_freq:
        text = f"delay: {mean.delay} must be less than sync_freq: {cluster.sync_freq}, the steps after which the slices"
        raise mean.error(f"{text} agree again", "delay")
    if mean.delay and mean.asynchronous:
        raise mean.error("asynchronous groups do not wait for changes; leave delay out, or asynchronous", "delay")
    if mean.compression not in CHANGE_COMPRESSIONS:
        names = ", ".join(each.name for each in CHANGE_COMPRESSIONS)
        raise mean.error(
            f"compression of changes is one of {names}, not {mean.compression.name}: changes are not sparse",
            "compression",
        )
    if mean.asynchronous and mean.compression is not Compression.kNone:
        text = "asynchronous groups add up changes that wait to be sent, in float32; leave compression out, or"
        raise mean.error(f"{text} asynchronous", "compression")


def check_outer_updater(updater: UpdaterConf) -> None:
    """Raise JobError for settings of an outer updater that have no effect, or an effect that is never meant."""
    if updater.ema_conf is not None:
        raise updater.error("the outer updater keeps no averages; put ema_conf into the job's updater", "ema_conf")
    for field in ("clip_norm", "clip_global_norm"):
        if getattr(updater, field):
            text = f"the outer updater has slices of the changes, not their norm; put {field} into the job's updater"
            raise updater.error(text, field)
    rate = updater.learning_rate
    if rate.type is ChangeMethod.kFixed and not rate.base_lr:
        text = "base_lr: 0 of the outer updater drops what sites have learnt at each agreement; give a rate, such as 1"
        raise rate.error(f"{text} for the mean of the params", "base_lr")


def check_edges(cluster: ClusterConf) -> None:
    """Raise JobError for a sync_edge to an unknown server group, and for a server group that no edge reaches."""
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
        unreached = sorted(set(range(groups)) - reached([tuple(edge.group) for edge in cluster.sync_edge]))
        if unreached:
            text = f"no path of sync_edge leads from server group 0 to {unreached[0]}; their params would drift apart"
            raise cluster.error(text, "sync_edge")


def reached(edges: Iterable[tuple[int, ...]], start: int = 0) -> set[int]:
    """Return the nodes that can be reached from ``start`` along edges in either direction."""
    edges, nodes, frontier = list(edges), {start}, {start}
    while frontier:
        frontier = {node for edge in edges if frontier & set(edge) for node in edge} - nodes
        nodes |= frontier
    return nodes
