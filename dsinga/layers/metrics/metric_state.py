"""Mergeable accumulators for metrics that are not sums of numbers; ``+`` joins parts of a batch, workers, batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from dsinga.base.errors import UserError

MOST_BYTES = 1 << 30  # of labels and predictions that a metric gathers


class MetricState(ABC):
    """Base of accumulators for metrics that are no sums; ``+`` returns the state of both sets of records."""

    kinds: ClassVar[dict[str, type[MetricState]]] = {}
    """The classes of states by name, for :func:`restore_state`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        MetricState.kinds[cls.__name__] = cls

    def __radd__(self, nothing: float) -> MetricState:
        """Return the state itself, because Python's sums begin with 0."""
        return self

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """Return the state of both sets of records together."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state's arrays, by the names of the constructor's arguments, to be sent or saved."""

    @property
    def nbytes(self) -> int:
        """The bytes of the state's arrays."""
        return sum(array.nbytes for array in self.arrays().values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        theirs = other.arrays()
        return all(np.array_equal(array, theirs[name]) for name, array in self.arrays().items())

    __hash__ = None  # type: ignore[assignment]


def restore_state(state: Mapping[str, Any]) -> MetricState:
    """Restore a state from :func:`saved_state`."""
    return MetricState.kinds[state["kind"]](**state["arrays"])


def saved_state(state: MetricState) -> dict[str, Any]:
    """Convert a state to plain values and arrays, for a snapshot."""
    return {"kind": type(state).__name__, "arrays": state.arrays()}


class GatheredRows(MetricState):
    """The labels (n, ...) and predictions (n, k) of n records, in no certain order.

    ``arrays`` sorts the rows (by their bytes), so a function of them gives the same bits for any cut over batches and
    workers. Raises UserError for more than ``MOST_BYTES``.
    """

    def __init__(self, labels: np.ndarray, predictions: np.ndarray):
        self._blocks: Any = (labels, predictions)
        self._nbytes = labels.nbytes + predictions.nbytes

    def __add__(self, other: Any) -> GatheredRows:
        joined = object.__new__(GatheredRows)
        joined._blocks, joined._nbytes = [self._blocks, other._blocks], self._nbytes + other._nbytes
        if joined._nbytes > MOST_BYTES:
            raise UserError(
                f"a metric of all labels and predictions would gather more than {MOST_BYTES >> 30} GiB: evaluate fewer "
                "records (validate_steps, test_steps, or a smaller store), or leave it out, and compute it from "
                "dsinga.predict, which writes predictions to a store"
            )
        return joined

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        labels, predictions = self.rows()
        if len(labels):
            keys = np.concatenate([_bytes(labels), _bytes(predictions)], axis=1)
            order = np.argsort(keys.view(f"V{keys.shape[1]}")[:, 0], kind="stable")
            labels, predictions = labels[order], predictions[order]
        return {"labels": labels, "predictions": predictions}

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels and the predictions, in the order in which they were added."""
        blocks, waiting = [], [self._blocks]
        while waiting:
            block = waiting.pop()
            if isinstance(block, list):
                waiting += reversed(block)
            else:
                blocks.append(block)
        labels, predictions = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        self._blocks = (labels, predictions)
        return labels, predictions

    def __getstate__(self) -> dict[str, Any]:
        self.rows()  # nested blocks would need as many frames to pickle
        return vars(self)


class ArraySum(MetricState):
    """An array of sums or counts of any shape, such as one for each class; ``+`` adds it up."""

    def __init__(self, sums: np.ndarray):
        self.sums = sums

    def __add__(self, other: Any) -> ArraySum:
        return ArraySum(self.sums + other.sums)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"sums": self.sums}


class RunningMoments(MetricState):
    """Mergeable statistics for R²: count, mean and squared deviations of labels, and squares of errors, (k,) float64.

    ``+`` is Chan, Golub and LeVeque's formula (1979).
    """

    def __init__(self, count: np.ndarray, mean: np.ndarray, deviations: np.ndarray, squares: np.ndarray):
        self.count, self.mean, self.deviations, self.squares = count, mean, deviations, squares

    @classmethod
    def of(cls, labels: np.ndarray, errors: np.ndarray) -> RunningMoments:
        """Compute the moments of labels and errors (B, k)."""
        labels = labels.astype(np.float64)
        count = np.full(labels.shape[1], len(labels), np.float64)
        mean = labels.sum(axis=0) / np.maximum(count, 1)
        return cls(count, mean, ((labels - mean) ** 2).sum(axis=0), (errors.astype(np.float64) ** 2).sum(axis=0))

    def __add__(self, other: Any) -> RunningMoments:
        count, gap = self.count + other.count, other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        deviations = self.deviations + other.deviations + gap**2 * self.count * share
        return RunningMoments(count, self.mean + gap * share, deviations, self.squares + other.squares)

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "count": self.count, "mean": self.mean, "deviations": self.deviations, "squares": self.squares,
        }  # fmt: skip


def _bytes(rows: np.ndarray) -> np.ndarray:
    """View the rows of an array (n, ...) as bytes, (n, bytes) uint8, to sort them."""
    return np.ascontiguousarray(rows.reshape(len(rows), -1)).view(np.uint8)
