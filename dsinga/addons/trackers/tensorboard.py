"""The extension that writes a run's history and histograms of its params for TensorBoard."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.extensions.extension import Extension, LoopView, choose_path
from dsinga.extensions.triggers import AtEnd, EverySteps
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural
from dsinga.monitor import NOT_METRICS

HISTOGRAM_BINS = 30  # as many as TensorBoard draws


@register("extension", kTensorBoard=6)
class TensorBoard(Extension):
    """Writes the history, the learning rate and the speed of a run for TensorBoard.

    Each phase has its own folder, ``train``, ``val`` and ``test``, so that TensorBoard draws their curves together. To
    read the files during the run, use ``tensorboard --logdir FOLDER``. A new run moves earlier files to the folder
    ``old``, where TensorBoard still finds them. A resumed run adds files from its step.

    ``log_dir`` is Keras's name of ``folder``. Raises UserError if tensorboardX is not installed.
    """

    class Conf(Settings):
        """Settings of kTensorBoard."""

        aliases: ClassVar = {"log_dir": "folder"}  # Keras's name

        folder: str | None = setting(None, "the folder; by default tensorboard in the workspace")
        histogram_freq: Natural = setting(
            0, "every how many steps histograms of the params are written; training pauses there; 0 for never"
        )

    settings: Conf

    def set_up(self) -> None:
        """Choose the trigger: histograms are written when training pauses, rows at any time."""
        if importlib.util.find_spec("tensorboardX") is None:
            raise UserError("TensorBoard needs tensorboardX: pip install 'dsinga[tensorboard]'")
        freq = self.settings.histogram_freq
        self.pauses = bool(freq)
        self.trigger = EverySteps(freq) if freq else AtEnd()
        self._folder, self._begin = Path(), 0
        self._writers: dict[str, Any] = {}

    def check(self, workspace: Path | None) -> None:
        """Choose the folder of the files."""
        self._folder = choose_path(self, workspace, self.settings.folder, "tensorboard", "folder")

    def start(self, loop: LoopView) -> None:
        """Set an earlier run's files aside."""
        self.check(loop.workspace)
        self._begin = loop.step
        if not loop.step:
            self._set_aside()

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Write a row's metrics; for training, also the learning rate and the speed."""
        scalars = {name: value for name, value in row.items() if name not in NOT_METRICS}
        if row["phase"] == "train":
            scalars |= {"learning_rate": loop.learning_rate, "samples_per_second": loop.samples_per_second}
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(row["phase"], row["step"], Summary(value=values))

    def run(self, loop: LoopView) -> None:
        """Write histograms of the params, if requested."""
        if not self.pauses:
            return
        from tensorboardX.summary import histogram

        for name, array in loop.params().items():
            self._write("train", loop.step, histogram(name, array, HISTOGRAM_BINS))

    def close(self, error: BaseException | None) -> None:
        """Close the event files of all phases."""
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close()

    def _write(self, phase: str, step: int, summary: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        try:
            writer = self._writers.get(phase) or self._open(phase)
            writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            writer.flush()
        except OSError as error:
            raise self.error(f"the folder {self._folder} cannot be written: {error}") from error

    def _open(self, phase: str) -> Any:
        """Open a phase's file; its first event lets TensorBoard forget an earlier run's later steps."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = self._folder / phase
        folder.mkdir(parents=True, exist_ok=True)
        writer = EventsWriter(str(folder / "events"), f".step{self._begin}")
        restart = SessionLog(status=SessionLog.START)
        writer.write_event(
            Event(wall_time=time.time(), step=self._begin + 1 if self._begin else 0, session_log=restart)
        )
        self._writers[phase] = writer
        return writer

    def _set_aside(self) -> None:
        for path in self._folder.glob("*/*.tfevents.*"):
            if path.parent.name != "old":
                aside = self._folder / "old" / path.parent.name
                aside.mkdir(parents=True, exist_ok=True)
                path.replace(aside / path.name)
