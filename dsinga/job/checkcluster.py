"""The topology of a job: groups that go into each other, server groups that reach each other, options that hold."""

from __future__ import annotations

from collections.abc import Iterable

from dsinga.job.enums import UpdatePlace
from dsinga.job.schema import ClusterConf, Job


def check_cluster(job: Job) -> None:
    """Raise JobError for the first field of ``cluster {}``, or that depends on it, which cannot be done."""
    if job.warmup_steps > job.train_steps > 0:
        text = f"warmup_steps: {job.warmup_steps} is beyond the {job.train_steps} train_steps; the other worker groups"
        raise job.error(f"{text} would never begin", "warmup_steps")
    cluster = job.cluster
    if cluster is None:
        return
    groups, server_groups = cluster.nworker_groups, cluster.nserver_groups
    if groups % server_groups:
        text = f"nserver_groups: {server_groups} must divide nworker_groups: {groups}; a server group serves equally"
        raise cluster.error(f"{text} many", "nserver_groups")
    check_edges(cluster)
    if groups > 1:
        check_asynchronous(cluster)
    for layer in job.neuralnet.layer:
        if layer.location is not None and layer.location >= cluster.nworkers_per_group:
            last = cluster.nworkers_per_group - 1
            text = f"layer {layer.name!r}: location must be one of the group's workers, 0 to {last}"
            raise layer.error(text, "location")


def check_asynchronous(cluster: ClusterConf) -> None:
    """Refuse what several worker groups cannot have.

    ``staleness`` is no mistake in a job of one group, which is never ahead of another, so the bound holds; but one
    group alone at its server group would be ahead of the others unbounded where the job says it may not.
    """
    groups = cluster.nworker_groups
    if cluster.update is UpdatePlace.kWorker:
        text = f"update: kWorker keeps a copy of the params in every worker, and those of {groups} worker groups would"
        raise cluster.error(f"{text} drift apart; use update: kServer, or one worker group", "update")
    if cluster.fullc_gather:
        text = f"fullc_gather keeps weights in the workers, and those of {groups} worker groups would drift apart"
        raise cluster.error(f"{text}; leave it out, or use one worker group", "fullc_gather")
    if cluster.staleness is not None and cluster.nserver_groups == groups:
        text = "staleness bounds how far the worker groups of one server group are apart, and each of the job's"
        remedy = "leave it out, or use fewer server groups"
        raise cluster.error(f"{text} {groups} server groups has only one; {remedy}", "staleness")


def check_edges(cluster: ClusterConf) -> None:
    """Refuse edges between server groups that are not there, and server groups that no updates would reach."""
    groups = cluster.nserver_groups
    for edge in cluster.sync_edge:
        if len(edge.group) != 2:
            text = f"sync_edge joins two server groups, as in sync_edge {{ group: 0 group: 1 }}; it has {edge.group}"
            raise edge.error(text, "group")
        for item, group in enumerate(edge.group):
            if group not in range(groups):
                there = f"the job has {groups}, numbered from 0"
                raise edge.error(f"sync_edge names server group {group}, but {there}", "group", item)
        if edge.group[0] == edge.group[1]:
            raise edge.error(f"sync_edge joins server group {edge.group[0]} to itself; join it to another", "group")
    if cluster.sync_edge:
        lost = sorted(set(range(groups)) - reached([tuple(edge.group) for edge in cluster.sync_edge]))
        if lost:
            text = f"no path of sync_edge leads from server group 0 to {lost[0]}; their params would drift apart"
            raise cluster.error(text, "sync_edge")


def reached(edges: Iterable[tuple[int, ...]], start: int = 0) -> set[int]:
    """Return what can be reached from ``start`` along edges, either way."""
    edges, found, frontier = list(edges), {start}, {start}
    while frontier:
        frontier = {node for edge in edges if frontier & set(edge) for node in edge} - found
        found |= frontier
    return found
