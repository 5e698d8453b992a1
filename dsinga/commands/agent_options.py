"""Refuses options of a command that have no effect on a job with ``reinforcement { }``."""

from __future__ import annotations

import click
from click.core import ParameterSource

from dsinga.errors import UserError

CLUSTER = ("scheduler", "scheduler_file", "tls_ca_file", "tls_cert", "tls_key")

# What applies to an agent in place of an option, by the name of the option.
INSTEAD = {
    "epochs": "it learns from an environment, not from records: set train_steps",
    "grain": "the iterations of an agent are no Dask tasks",
    "retry": "train again with --resume",
    "device": "an agent learns on the CPU",
    "data_root": "it reads no records",
    "phase": "it is evaluated in its environment",
    "resources": "its workers and actors are on any Dask workers",
    "hosts": "its workers and actors are on any Dask workers",
    "workers": "set cluster.nworkers_per_group, or num_actors",
}


def refuse_without_effect(uses_cluster: bool | None = None) -> None:
    """Raise UserError for an option of the running command that has no effect on an agent.

    The options of a cluster have one where ``uses_cluster``; it is None for an evaluation.
    """
    instead = dict(INSTEAD)
    if not uses_cluster:
        what = "evaluated in this process"
        if uses_cluster is False:
            what = "trained in this process, unless num_actors or several workers are set"
        instead |= dict.fromkeys(CLUSTER, f"it is {what}")
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in instead and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{option.opts[0]} has no effect on a job with reinforcement {{ }}: {instead[option.name]}; leave "
                f"{option.opts[0]} out"
            )
