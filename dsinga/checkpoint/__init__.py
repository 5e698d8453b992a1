"""Checkpoints: writing, reading, and loading the params of one net into another."""

from dsinga.checkpoint.directory import (
    Checkpoint,
    latest,
    latest_finite,
    latest_step,
    read_checkpoint,
    read_newest_checkpoint,
    remove_old_checkpoints,
    write_checkpoint,
)
from dsinga.checkpoint.nested_state import separate_arrays
from dsinga.checkpoint.port import export_safetensors, port, read_params

__all__ = [
    "Checkpoint",
    "export_safetensors",
    "latest",
    "latest_finite",
    "latest_step",
    "port",
    "read_checkpoint",
    "read_newest_checkpoint",
    "read_params",
    "remove_old_checkpoints",
    "separate_arrays",
    "write_checkpoint",
]
