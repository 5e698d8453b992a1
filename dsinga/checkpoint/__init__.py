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
from dsinga.checkpoint.port import export_safetensors, params_of, port, read_params
from dsinga.checkpoint.tensors import separate_arrays

__all__ = [
    "Checkpoint",
    "export_safetensors",
    "latest",
    "latest_finite",
    "latest_step",
    "params_of",
    "port",
    "read_checkpoint",
    "read_newest_checkpoint",
    "read_params",
    "remove_old_checkpoints",
    "separate_arrays",
    "write_checkpoint",
]
