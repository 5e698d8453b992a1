"""The return types of ``evaluate`` (named numbers) and ``predict`` (an array with tensor methods)."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dsinga.base.arguments import fail_for_name
from dsinga.base.errors import UserError
from dsinga.base.registry import listed


class EvaluationResult(tuple[float, ...]):
    """The loss and the metrics of an evaluation: a tuple of numbers that also works as a dict.

    Unpacking follows Keras's order: the loss, then the metrics of ``compile``, or all metrics if it had none.
    ``evaluation["loss"]``, ``evaluation.loss`` and ``dict(evaluation)`` also have the metrics that the loss reports.
    """

    _figures: dict[str, float]
    _metrics: Sequence[str]

    def __new__(cls, figures: Mapping[str, float], metrics: Sequence[str] = ()) -> Self:
        """Return the evaluation with these numbers."""
        names = metrics or [name for name in figures if name != "loss"]
        evaluation = super().__new__(cls, [figures[name] for name in ("loss", *names) if name in figures])
        evaluation._figures, evaluation._metrics = dict(figures), metrics
        return evaluation

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self._figures, self._metrics

    def keys(self) -> KeysView[str]:
        """Return the names of loss and metrics."""
        return self._figures.keys()

    def items(self) -> ItemsView[str, float]:
        """Return pairs of name and number, for ``dict(evaluation)``."""
        return self._figures.items()

    def __contains__(self, name: object) -> bool:
        return name in self._figures

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self._figures:
            raise KeyError(f"no figure {key!r}; these are {listed(self._figures)}")
        return self._figures[key] if isinstance(key, str) else super().__getitem__(key)

    def __getattr__(self, name: str) -> float:
        if name in vars(self).get("_figures", ()):
            return self._figures[name]
        fail_for_name("the evaluation", name, vars(self).get("_figures", ()), {})

    def __repr__(self) -> str:
        return f"EvaluationResult({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __float__(self) -> float:
        """Return the loss, as Keras's evaluate does without metrics. Raises UserError if metrics were compiled."""
        if self._metrics:
            raise UserError(f"evaluate returns several figures: {', '.join(self.keys())}; take one, as figures['loss']")
        return self["loss"]

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)


class Predictions(np.ndarray[Any, Any]):
    """A numpy array of predictions with PyTorch's and TensorFlow's methods ``numpy`` and ``detach``."""

    def numpy(self) -> np.ndarray:
        """Return a plain numpy array."""
        return self.view(np.ndarray)

    def detach(self) -> Self:
        """Return the array unchanged, like a PyTorch tensor without gradients."""
        return self

    cpu = detach


def with_tensor_methods(predictions: Any) -> Any:
    """Give predictions the tensor methods of :class:`Predictions`, also inside a list."""
    if isinstance(predictions, list):
        return [with_tensor_methods(array) for array in predictions]
    return predictions.view(Predictions) if type(predictions) is np.ndarray else predictions
