"""The extension that writes checkpoints."""

from __future__ import annotations

from dsinga.extensions.extension import Extension
from dsinga.extensions.loop_view import LoopView
from dsinga.extensions.triggers import Trigger


class Checkpointing(Extension):
    """Writes a checkpoint of the run to its workspace, if it has one."""

    def __init__(self, trigger: Trigger):
        self.trigger = trigger

    def run(self, loop: LoopView) -> None:
        """Ask for a checkpoint of this step."""
        loop.write_checkpoint()
