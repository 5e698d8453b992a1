"""Writes and reads checkpoints, and loads the params of one net into another."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
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
    from dsinga.checkpoint.porting import export_safetensors, params_of, port, port_to_net, read_all_params, read_params
else:
    __getattr__, __dir__ = lazy_names(__name__)
