"""The schema of a job, and reading, checking and writing job files."""

from typing import Any

from dsinga.job.checks import check, training_phases
from dsinga.job.component import Component, Configured, Fault, Settings, component_settings, required, setting
from dsinga.job.enums import *
from dsinga.job.extensionconf import ExtensionConf
from dsinga.job.html_table import job_html  # which also sets how notebooks show a Job
from dsinga.job.inputconf import *
from dsinga.job.layerconf import LayerConf, ParamConf, ParamGenConf
from dsinga.job.lossconf import *
from dsinga.job.message import JobError, Message, Where
from dsinga.job.neuronconf import *
from dsinga.job.reader import load, loads
from dsinga.job.schema import AlgConf, ClusterConf, Job, LayerGroupConf, NetConf, SyncEdgeConf
from dsinga.job.updaterconf import *
from dsinga.job.writer import redact_job, to_text


def __getattr__(name: str) -> Any:
    """Return the settings class of a component, as LRNConf of kLRN, which its own class declares."""
    if name.endswith("Conf"):
        for kind in ("layer", "updater", "schedule", "initialiser", "algorithm", "extension"):
            for _, conf in component_settings(kind):
                if conf.__name__ == name:
                    return conf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
