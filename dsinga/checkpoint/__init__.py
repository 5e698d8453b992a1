"""Checkpoints: written so that a run can be resumed bit for bit, read by this net or by another one."""

from dsinga.checkpoint.directory import Checkpoint, latest, read_checkpoint, write_checkpoint
from dsinga.checkpoint.port import export_safetensors, port, read_params

__all__ = [
    "Checkpoint",
    "export_safetensors",
    "latest",
    "port",
    "read_checkpoint",
    "read_params",
    "write_checkpoint",
]
