"""Records all kernels of one forward or backward pass, and launches them at once on new records."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np

from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array
from dsinga.ops.host_pass import HostPass
from dsinga.ops.interface import PassMemory, PassResult
from dsinga.ops.types import FinishedCopy, RecordedStep
from dsinga.training import Metrics
from dsinga.training.metrics import UnreadMetrics, report_metrics

PARAM = "param of this pass: "  # begins the names of params among records

Compute = Callable[[Mapping[str, Records], Mapping[str, Array], Context], Any]
"""A function that computes a pass on records and params of the device, and returns outputs."""


class CapturedPass:
    """A recorded pass, which computes new records by one launch instead of many Python calls."""

    def __init__(self, memory: PassMemory):
        self.memory = memory
        self.recorded = self.rejected = 0
        self.held: dict[str, Array] = {}
        self.key: Hashable = None  # by which it was asked for last
        self.net: Any = None
        self.buffers: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}  # of records and labels, on a host
        self.inputs: list[tuple[str, bool, np.ndarray]] = []  # input layers, and the buffers of records and labels
        self.unread: list[UnreadMetrics] = []
        self.outputs: Any = None

    def compute_or_launch(
        self, records: Mapping[str, Records], ctx: Context, compute: Compute, values: Mapping[str, Array] | None = None
    ) -> bool:
        """Compute a pass, and record it the first time; return whether only a launch was needed."""
        if self.memory.captured:
            self.launch(ctx.step, records)
            return True
        on_device, params = split_params(self._put_all(records))
        if values is not None:
            self.held = dict(values)
            params = dict(self.memory.hold(self.held))
        self.unread = []
        recorded_ctx = replace(ctx, step=cast(Any, RecordedStep()), unread=self.unread)
        with self.memory.recording(ctx.step):
            with contextlib.nullcontext() if self.recorded < self.memory.warm_ups else self.memory.capturing():
                self.outputs = compute(on_device, params, recorded_ctx)
        self.outputs = self.memory.results(self.outputs)
        self.recorded += 1
        if self.held and isinstance(memory := self.memory, HostPass):
            self.buffers = {
                name: (memory.buffer(f"{name} data"), None if labels is None else memory.buffer(f"{name} labels"))
                for name, (_, labels) in records.items()
            }
        if self.memory.captured:
            self.memory.launch(ctx.step)
        return False

    def uses(self, values: Mapping[str, Array] | None) -> bool:
        """Whether the recording reads exactly these arrays of params."""
        if values is not None:
            for name, value in self.held.items():
                if values.get(name) is not value:
                    return False
        return True

    def can_launch_on_arrays(self, has_gradients: bool) -> bool:
        """Prepare :meth:`launch_on_arrays`; return whether the pass supports it."""
        if self.buffers and not self.inputs:
            inputs = [(name, False, data) for name, (data, _) in self.buffers.items()]
            inputs += [(name, True, labels) for name, (_, labels) in self.buffers.items() if labels is not None]
            assert isinstance(self.memory, HostPass)
            arrays = [buffer for *_, buffer in inputs]
            self.memory.require_finite(arrays, self.outputs.values() if has_gradients else ())
            self.inputs = inputs
        return bool(self.inputs)

    def launch_on_arrays(self, values: Mapping[str, Array], x: Any, y: Any, step: int) -> PassResult | None:
        """Compute a caller's records and labels by one launch: arrays, or dicts by input layer.

        Returns None if they differ from the recorded ones, or a metric is not finite.
        """
        if not self.uses(values):
            return None
        for name, is_label, buffer in self.inputs:
            batch = y if is_label else x
            if not _fill(buffer, batch.get(name) if type(batch) is dict else batch):
                return None
        return self._launch(step)

    def launch_on_batch(
        self, values: Mapping[str, Array] | None, records: Mapping[str, Records], step: int
    ) -> PassResult | None:
        """Compute an engine's next batch by one launch, on a host.

        Returns None if they differ from the recorded ones, or a metric is not finite.
        """
        if not (self.buffers and self.uses(values)):
            return None
        for name, batch in records.items():
            for array, buffer in zip(batch, self.buffers[name], strict=True):
                if buffer is not None and not _fill(buffer, array.array if type(array) is FinishedCopy else array):
                    return None
        return self._launch(step)

    def _launch(self, step: int) -> PassResult | None:
        self.memory.launch(step)
        metrics = self.read(self.net)
        return None if metrics is None else PassResult(metrics, self.outputs)

    def launch(self, step: int, records: Mapping[str, Records]) -> None:
        """Start computing these records, on a GPU by its graph."""
        self._put_all(records)
        self.memory.launch(step)

    def read(self, net: NeuralNet) -> Metrics | None:
        """Wait for the earliest running pass; return its metrics, None if they are not finite."""
        numbers = self.memory.read()
        if not all(map(math.isfinite, numbers)):
            return None
        (unread,) = self.unread
        return report_metrics(net, unread.with_numbers(numbers)) if unread.reports else {}

    def _put_all(self, records: Mapping[str, Records]) -> dict[str, Records]:
        return {name: self._put(name, batch) for name, batch in records.items()}

    def _put(self, name: str, batch: Records) -> Records:
        data, labels = batch
        data = self.memory.put(f"{name} data", data)
        return batch._replace(data=data, labels=None if labels is None else self.memory.put(f"{name} labels", labels))


def _fill(buffer: np.ndarray, array: Any) -> bool:
    """Copy an array to the recorded address; return False unless shape, dtype and order match."""
    if type(array) is not np.ndarray or array.shape != buffer.shape or array.dtype != buffer.dtype:
        return False
    if not array.flags.c_contiguous:
        return False
    buffer[...] = array
    return True


def split_params(on_device: Mapping[str, Records]) -> tuple[dict[str, Records], dict[str, Array]]:
    """Split the arrays that a pass reads into records and params."""
    records = {name: batch for name, batch in on_device.items() if not name.startswith(PARAM)}
    params = {name: batch.data for name, batch in on_device.items() if name not in records}
    return records, {name.removeprefix(PARAM): value for name, value in params.items()}
