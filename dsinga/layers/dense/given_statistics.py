"""kNormalization: normalisation by a mean and a standard deviation that are known before training, and its inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Positive
from dsinga.layers.interface.context import Columns, Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut, ParamSpec
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.interface.region import Reach, Region


@register("layer", kNormalization=810)
class Normalization(Layer):
    """(x - mean)/std of (B, C, ...), or its inverse x·std + mean, with statistics by channel or by channel and point.

    The statistics are static params, of the shape (C,) or of a row, so that a checkpoint has them: a net that begins
    with a kNormalization and ends with an ``inverse`` one takes and gives numbers in the units of the data. They are
    rounded to float32, which moves a result by up to 6e-8·|mean|/std: 4e-6 for temperatures of 280 K ± 4 K. NaN stays
    NaN. Without a mean or std nothing is subtracted, or divided by.
    """

    class Conf(Settings):
        """Settings of kNormalization: each one number, one for each channel, or one for each number of a row."""

        mean: list[float] = setting([], "the means; 0 by default")
        std: list[Positive] = setting([], "the standard deviations; 1 by default")
        inverse: bool = setting(False, "whether the result is x·std + mean")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        if len(self.shape) < 2:
            raise self.fail(f"takes (batch, channels, ...), but {self.source_name(0)} gives {as_text(self.shape)}")
        self.params = (self._param("mean", 0.0), self._param("std", 1.0))

    def _param(self, name: str, default: float) -> ParamSpec:
        """Return the static param of a setting. Raises JobError where it has another count of numbers than a row."""
        numbers: list[float] = getattr(self.settings, name) or [default]
        row = self.shape[1:]
        shape = row if len(numbers) == math.prod(row) and len(row) > 1 else row[:1]
        if len(numbers) not in (1, math.prod(shape)):
            raise self.fail(
                f"has {len(numbers)} numbers in {name}, but rows of {as_text(row)}; give 1, one for each of {row[0]} "
                f"channels, or all {math.prod(row)}",
                self.settings,
                name,
            )
        initial = np.broadcast_to(np.array(numbers, np.float32).reshape(shape if len(numbers) > 1 else ()), shape)
        return ParamSpec(name, shape, trainable=False, static=True, initial=initial)

    def cut_conf(self, columns: Columns) -> LayerConf:
        kept = {}
        for spec in self.params:
            numbers = getattr(self.settings, spec.role)
            if len(numbers) > 1:
                kept[spec.role] = np.reshape(numbers, spec.shape)[columns.start : columns.stop].reshape(-1).tolist()
        return self.conf.replace(normalization_conf=self.settings.replace(**kept))

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        return self.copy_for_region(region, source_shapes)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, (mean, std) = sources[0], (self._by_point(param) for param in params)
        if self.settings.inverse:
            y = x * std
            y += mean
        else:
            y = x - mean
            y /= std
        return Output(y)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        std = self._by_point(params[1])
        dx = (grad * std if self.settings.inverse else grad / std) if needs[0] else None
        return (dx,), (None, None)

    def _by_point(self, param: Array) -> Array:
        """Return a param in a shape that broadcasts against rows, or their regions."""
        if self.region is not None and param.ndim > 1:
            return self.region.of(param, missing=1)
        return param.reshape(*param.shape, *(1,) * (len(self.shape) - 1 - param.ndim))


def statistics_lists(mean: Any, std: Any) -> dict[str, list[float]]:
    """Return the settings of a mean and a std, which are numbers, arrays, or None. Raises UserError for a std of 0."""
    settings = {}
    for name, values in (("mean", mean), ("std", std)):
        if values is None:
            continue
        array = np.asarray(values, np.float64)
        if not np.isfinite(array).all() or (name == "std" and (array <= 0).any()):
            wrong = array[~np.isfinite(array) | (array <= 0 if name == "std" else False)][0]
            remedy = "give finite numbers" + (" above 0: a constant has nothing to normalise" if name == "std" else "")
            raise UserError(f"the {name} has {wrong:g}; {remedy}")
        settings[name] = array.reshape(-1).tolist()
    return settings
