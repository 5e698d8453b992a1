"""Records a pass on CPU cores once and replays it as a flat list of calls, to spare small nets Python's overhead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dsinga.ops.compiled.joined_calls import RepeatedCalls
from dsinga.ops.recorded_array import RecordedArray, RecordedResult, Recorder, plain, set_recorder
from dsinga.ops.recorded_checks import Deviated, FiniteCheck
from dsinga.ops.sparse import values_of
from dsinga.ops.types import Array, AsyncCopy


class HostPass:
    """Records the kernel calls of one pass over batches of fixed shapes, and repeats them; for one thread."""

    warm_ups = 0
    is_on_host = True
    rows = 0, 0, 0

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._calls = RepeatedCalls(())
        self._buffers: dict[str, np.ndarray] = {}
        self._captured = False
        self._has_deviated = False

    def put(self, name: str, array: Any) -> Array:
        """Copy an array of the batch to the fixed buffer that the recorded calls read; return the buffer."""
        if type(array) is not np.ndarray and isinstance(array, AsyncCopy):
            array = array.result()
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = self._buffers[name] = np.empty_like(array)
        buffer[...] = array
        return RecordedArray(buffer)

    def buffer(self, name: str) -> np.ndarray:
        """Return the buffer that :meth:`put` has filled for this name."""
        return self._buffers[name]

    def require_finite(self, inputs: Iterable[np.ndarray], outputs: Iterable[np.ndarray | RecordedResult]) -> None:
        """Make launches without effect if these arrays are not finite: inputs before the pass, outputs after it."""
        outputs = list(outputs)
        results = [x for x in outputs if isinstance(x, RecordedResult)]
        arrays = [x for x in outputs if not isinstance(x, RecordedResult)]
        before, after = [[x.ravel(order="K") for x in each if x.dtype.kind == "f"] for each in (inputs, arrays)]
        calls = self._recorder.calls
        if before:
            calls.insert(int(self._recorder.calls_library), FiniteCheck(before))
        if after:
            calls.append(FiniteCheck(after))
        if results:
            calls.append(lambda: FiniteCheck([values_of(result.value).reshape(-1) for result in results])())
        self._calls = RepeatedCalls(calls)

    @contextlib.contextmanager
    def recording(self, step: int) -> Iterator[None]:
        """Record the calls made in the context, with the numbers of ``step``."""
        self._recorder = Recorder(self.rows)
        self._recorder.step = step
        set_recorder(self._recorder)
        try:
            yield
        finally:
            set_recorder(None)

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """Make the calls in the context launchable, within :meth:`recording`."""
        yield
        self._captured = True
        self._calls = RepeatedCalls(self._recorder.calls)

    @property
    def captured(self) -> bool:
        """Whether there are recorded calls to launch."""
        return self._captured

    def launch(self, step: int) -> None:
        """Run the recorded calls with the numbers of ``step``."""
        self._recorder.step, self._recorder.first_row = step, self.rows[0]
        self._has_deviated = False
        try:
            with np.errstate(all="ignore"):
                self._calls()
        except Deviated:
            self._has_deviated = True

    def read(self) -> list[float]:
        """Return the metrics of the last launch; NaN if the batch would make Python branch differently."""
        return [np.nan] if self._has_deviated else [float(number) for number in self._recorder.numbers]

    def hold(self, params: Mapping[str, Array]) -> Mapping[str, Array]:
        """Record params by their addresses, so that each launch reads their present values."""
        return {name: RecordedArray(value) for name, value in params.items()}

    def results(self, outputs: Any) -> Any:
        """Return the recorded pass's outputs as plain arrays, which each launch overwrites."""
        return plain(outputs)

    def cancel(self) -> None:
        """Do nothing: calls on the host have ended."""

    @property
    def nbytes(self) -> int:
        """The bytes of the recorded pass's arrays."""
        return self._recorder.nbytes + sum(buffer.nbytes for buffer in self._buffers.values())
