"""Refuses options of a command that have no effect on a job with ``reinforcement { }``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dsinga.errors import UserError

if TYPE_CHECKING:
    from dsinga.job.reinforcementconf import ReinforcementConf

CLUSTER = ("scheduler", "scheduler_file", "tls_ca_file", "tls_cert", "tls_key")

# What applies to an agent in place of an option, by the name of the option.
INSTEAD = {
    "epochs": "it learns from an environment, not from records: set train_steps",
    "grain": "the iterations of an agent are no Dask tasks",
    "retry": "train again with --resume",
    "device": "an agent learns on the CPU",
    "data_root": "it reads no records",
    "phase": "it is evaluated in its environment",
    "resources": "it is trained in this process",
    "hosts": "it is trained in this process",
    "workers": "set num_actors",
}


def refuse_without_effect(trained: ReinforcementConf | None = None) -> None:
    """Raise UserError for an option of the running command that has no effect on an agent.

    The options of a cluster have one where ``trained`` is given and has actors.
    """
    instead = dict(INSTEAD)
    if trained is None or not trained.num_actors:
        what = "evaluated in this process" if trained is None else "trained in this process, unless num_actors is set"
        instead |= dict.fromkeys(CLUSTER, f"it is {what}")
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in instead and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise UserError(
                f"{option.opts[0]} has no effect on a job with reinforcement {{ }}: {instead[option.name]}; leave "
                f"{option.opts[0]} out"
            )
