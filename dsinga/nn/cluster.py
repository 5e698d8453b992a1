"""Cluster: how many workers and servers train a model, in words of Python."""

from __future__ import annotations

from typing import Any

from dsinga.job import ClusterConf
from dsinga.job.message import field_types
from dsinga.nn.keras_arguments import check_names

FIELDS = {
    "workers": "nworkers_per_group",
    "groups": "nworker_groups",
    "servers": "nservers_per_group",
    "server_groups": "nserver_groups",
    "workers_per_process": "nworkers_per_procs",
    "servers_per_process": "nservers_per_procs",
}


def Cluster(**fields: Any) -> ClusterConf:
    """Return a topology: ``nn.Cluster(workers=4, groups=2, servers=2, server_groups=1)``.

    ``workers`` and ``servers`` are those of one group; ``workers_per_process`` and ``servers_per_process`` say where
    they run. Every field of ``cluster { }`` in a job is an argument, too. Raises UserError for an unknown one.
    """
    check_names("Cluster", [*FIELDS, *field_types(ClusterConf)], fields)
    return ClusterConf(**{FIELDS.get(name, name): value for name, value in fields.items()})
