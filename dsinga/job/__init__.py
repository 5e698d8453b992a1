"""Defines the fields of a job, and reads, checks and writes job files."""

from typing import Any

from dsinga.job.checks import check, training_phases
from dsinga.job.component import (
    Component,
    Configured,
    Fault,
    Settings,
    component_settings,
    required,
    setting,
    settings_named,
)
from dsinga.job.enums import *
from dsinga.job.layerconf import AugmentConf, DataConf, LayerConf, ParamConf, ParamGenConf, StoreConf
from dsinga.job.message import JobError, Message, Where
from dsinga.job.reader import load, loads
from dsinga.job.schema import AlgConf, ClusterConf, ExtensionConf, Job, LayerGroupConf, NetConf, SyncEdgeConf
from dsinga.job.updaterconf import *
from dsinga.job.writer import job_html, redact_job, to_text  # and it sets how a Job is shown


def __getattr__(name: str) -> Any:
    """Find a class of settings by name, such as LRNConf, the settings of kLRN."""
    if name.endswith("Conf") and (conf := settings_named(name)):
        return conf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
