"""Layers that normalise features over the batch, a row or groups of channels, or by a given mean and variance."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from dsinga.base.arguments import check_bool
from dsinga.base.errors import UserError
from dsinga.data import open_records
from dsinga.layers.dense.normalisation import statistics_lists
from dsinga.nn.words.inputs import normalise
from dsinga.nn.words.shape_layers import channels_back, pixels_first
from dsinga.nn.words.windows import refuse_channels_last
from dsinga.nn.writing.feature import Feature, axis_of
from dsinga.nn.writing.symbol import LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings, simple


@layer
def BatchNormalization(
    momentum: float | None = None,
    epsilon: float = 1e-5,
    synchronized: bool = True,
    axis: int | None = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """Normalises each channel over the batch, axis 1, or -1 if records have channels last (kBM).

    ``momentum`` is the share of the old running statistics, as in Keras; by default 0.9 (Keras: 0.99). With
    ``synchronized`` the statistics cover the whole batch over all workers, else (Keras's default) each worker's rows. A
    layer that is not trainable uses its running statistics in training, too.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((16, 8, 8))
        >>> nn.BatchNormalization()(x).shape
        (None, 16, 8, 8)
    """

    def write(writer: LayerWriter) -> Feature:
        rows = writer.rows(writer.source)
        if len(rows) == 2:
            raise writer.fail("normalises channels, axis 1, which of sequences are steps; use nn.LayerNormalization")
        refuse_channels_last(writer)
        if axis is not None and axis_of(writer.source, axis, rows) != 1:
            raise writer.fail(f"normalises channels, which are not the axis {axis} here; leave axis out")
        if momentum is not None and not 0 <= momentum <= 1:
            raise writer.fail(f"momentum, the share of the old statistics, must be in [0, 1], not {momentum}")
        check_bool(f"synchronized of {writer.name}", synchronized)
        settings: dict[str, Any] = {} if momentum is None else {"momentum": round(1 - momentum, 12)}
        settings |= {} if epsilon == 1e-5 else {"epsilon": epsilon}
        settings |= {} if synchronized else {"synchronized": False}
        return writer.add("kBM", bm_conf=settings or None)

    return write


@layer
def LayerNormalization(
    axis: int | Sequence[int] = -1, epsilon: float = 1e-5, **common: Unpack[LayerArguments]
) -> Write:
    """Normalises over the last axis of each row, or over several last axes, as (-2, -1) (kLayerNorm).

    If records have channels last, -1 is the axis of the channels.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20, 32))
        >>> nn.LayerNormalization()(x).shape
        (None, 20, 32)
    """

    def write(writer: LayerWriter) -> Feature:
        count = len(writer.rows(writer.source)) + 1
        axes = sorted(number % count for number in ([axis] if isinstance(axis, int) else axis))
        if not axes or axes != list(range(axes[0], count)) or axes[0] == 0:
            raise writer.fail(f"normalises the last axes of {count}, not the axes {axis}; give -1, or (-2, -1), ...")
        is_last = writer.source.channels_last and count in (4, 5) and axes[0] > 1
        if is_last and len(axes) > 1:
            raise writer.fail(f"of channels that are last normalises these, axis=-1, or all axes, not the axes {axis}")
        settings: dict[str, Any] = {} if axes[0] == 1 else {"first_axis": axes[0]}
        settings |= {} if epsilon == 1e-5 else {"epsilon": epsilon}
        if not is_last:
            return writer.add("kLayerNorm", layernorm_conf=settings or None)
        return channels_back(writer, writer.add("kLayerNorm", sources=pixels_first(writer), layernorm_conf=settings))

    return write


@layer
def GroupNormalization(groups: int = 32, epsilon: float = 1e-5, **common: Unpack[LayerArguments]) -> Write:
    """Normalises each row over groups of channels, with a scale and bias for each channel (kGroupNorm)."""
    return simple("GroupNormalization", "kGroupNorm", groups=groups, epsilon=epsilon)


@layer
def RMSNorm(first_axis: int = 1, epsilon: float = 1e-5, **common: Unpack[LayerArguments]) -> Write:
    """Divides a row by its root mean square over the axes starting at ``first_axis``, times a scale (kRMSNorm)."""
    return simple("RMSNorm", "kRMSNorm", first_axis=first_axis, epsilon=epsilon)


@layer
def LocalResponseNormalization(
    size: int = 5, alpha: float = 1.0, beta: float = 0.75, k: float = 1.0, **common: Unpack[LayerArguments]
) -> Write:
    """Computes x·(k + alpha·mean(x²))^-beta over ``size`` neighbouring channels of images (kLRN)."""
    settings = {"local_size": size, "alpha": alpha, "beta": beta, "knorm": k}
    conf = layer_settings("LocalResponseNormalization", "kLRN", settings)

    def write(writer: LayerWriter) -> Feature:
        refuse_channels_last(writer)
        return writer.add("kLRN", **conf)

    return write


BLOCK = 4096  # records read at a time


class _Normalization(LayerBuilder):
    """The layer of :func:`Normalization`, with ``adapt``, which computes the mean and variance of data."""

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Set the mean and the variance from the given records, for each index along ``axis``.

        Numbers that are the same in all records give 0. Raises UserError if ``steps`` are given.
        """
        if steps is not None:
            raise UserError("adapt reads all records; give as many as are to be read, and leave steps out")
        mean, variance = _moments(data, self.settings.get("axis", -1))
        function, settings = self.remake.func, {**self.remake.keywords}  # type: ignore[attr-defined]
        settings |= {"mean": mean, "variance": np.where(variance > 0, variance, 1.0), "std": None}
        self.remake = functools.partial(function, **settings)
        made = self.remake()
        self.write, self.settings = made.write, made.settings
        if self.values is not None:  # models that contain it already
            numbers = mean, np.sqrt(settings["variance"])
            shapes = [value.shape for value in self.values if value is not None]
            self.values = [np.broadcast_to(*pair).astype(np.float32) for pair in zip(numbers, shapes, strict=True)]


def _moments(data: Any, axis: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute the mean and variance of records (n, ...) for each index of an axis, float64."""
    source = open_records(data)

    def mean_of(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        means, counts = [], []
        for start in range(0, len(source), BLOCK):
            x = source.read(np.arange(start, min(start + BLOCK, len(source))))[0].astype(np.float64)
            kept = {number % x.ndim for number in ([] if axis is None else np.atleast_1d(axis))}
            others = tuple({*range(x.ndim)} - kept)
            means.append(function(x).mean(axis=others, keepdims=True))
            counts.append(len(x))
        return np.average(means, axis=0, weights=counts)

    mean = mean_of(lambda x: x)
    return mean.reshape(-1), mean_of(lambda x: np.square(x - mean)).reshape(-1)


@functools.partial(layer, builder=_Normalization)
def Normalization(
    mean: Any = None,
    variance: Any = None,
    mean_file: str | None = None,
    std_file: str | None = None,
    std: Any = None,
    invert: bool = False,
    axis: Any = -1,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes (x - mean) / √variance, or with ``invert`` the inverse x·√variance + mean.

    ``mean`` and ``variance``, the square of ``std``, are numbers, or arrays with a number for each channel or for each
    number of a row: ``nn.Normalization([280.0], [64.0])`` divides by 8. Without them, ``adapt(records)`` computes them
    for each index along ``axis`` of the records, by default the last; None for all numbers together. Params of a
    kNormalization layer keep them in checkpoints.

    Directly after nn.Input, you can also give ``mean_file`` and ``std_file``, stores with a number for each element or
    channel of a record.

    Examples:
        >>> import numpy as np
        >>> from dsinga import nn
        >>> x = np.array([[1.0, 100.0], [3.0, 500.0]])
        >>> scale = nn.Normalization()
        >>> scale.adapt(x)
        >>> model = nn.Sequential([scale])
        >>> model.predict(x)
        array([[-1., -1.],
               [ 1., 1.]], dtype=float32)
    """
    if hasattr(mean, "of_inputs"):
        raise UserError(
            f"Normalization: mean is a {type(mean).__name__}; write nn.Normalization(**statistics.of_inputs(windows))"
        )
    if variance is not None and std is not None:
        raise UserError("Normalization: give the variance or the std, not both")
    if variance is not None:
        variance = np.asarray(variance, np.float64)
        std = np.sqrt(np.where(variance > 0, variance, 0))
    lists = statistics_lists(mean, std)

    def write(writer: LayerWriter) -> Feature:
        files = {"mean_file": mean_file, "std_file": std_file}
        if not invert and writer.source.is_input and all(len(numbers) == 1 for numbers in lists.values()):
            numbers = {f"{name}_value": values[0] for name, values in lists.items()}
            return normalise(writer, **numbers, **files)
        if any(files.values()):
            raise writer.fail("takes mean_file and std_file directly after nn.Input only; give arrays, mean and std")
        return writer.add("kNormalization", normalization_conf=_of_rows(writer, lists, invert))

    return write


def _of_rows(writer: LayerWriter, lists: Mapping[str, list[float]], invert: bool) -> dict[str, Any]:
    """Return the layer's settings; for sequences (B, T, n), n numbers are repeated for each step."""
    rows = writer.rows(writer.source)
    if any(len(numbers) == rows[-1] != rows[0] for numbers in lists.values()):
        refuse_channels_last(writer)
    steps = rows[0] if len(rows) == 2 else 1
    by_step = {name: numbers * steps if [*rows[1:]] == [len(numbers)] else numbers for name, numbers in lists.items()}
    return by_step | ({"inverse": True} if invert else {})
