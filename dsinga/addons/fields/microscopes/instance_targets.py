"""Makes targets such as "border(cells)" from the label image "cells" of a Dataset, lazily.

A target is computed for the region that is read plus the points it needs around it: 1 for borders, 16 for distances,
whole instances for flows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import IndexingSupport, LazilyIndexedArray, explicit_indexing_adapter

from dsinga.addons.fields.microscopes.instances import borders, components, distances, flows
from dsinga.base.errors import UserError

MOST_DISTANCE = 16  # points of the last axis
MOST_REACH = 1024  # points that are read beyond a region, on each side, to complete its instances
Ranges = list[tuple[int, int]]  # the first point along each axis, and the one after the last
_TARGET = re.compile(r"(inside|border|distance|flow_(.+?))\((.+)\)")


def with_instance_targets(dataset: Any, names: Iterable[str]) -> Any:
    """Add the missing targets in ``names`` to a Dataset, computed lazily from its label images.

    "inside(cells)" is 1 in an instance and 0 in the background. "border(cells)" is a class: 0 background, 1 inside, 2
    border. "distance(cells)" is the distance in points to the end of the instance, at most 16. "flow_y(cells)" and
    "flow_x(cells)" are the components of :func:`dsinga.addons.fields.microscopes.instances.flows`.

    Instances lie along z, y and x of a label image, or along its last two dimensions if it has fewer than two of z, y,
    x.
    """
    for name in names:
        match = _TARGET.fullmatch(name)
        if match is None or name in dataset.variables or match[3] not in dataset.data_vars:
            continue
        labels = dataset[match[3]].variable
        if labels.dtype.kind not in "iub":
            raise UserError(
                f"{name!r} is made from a label image, but {match[3]!r} has {labels.dtype} numbers; give integers, 0 "
                f"for the background: ds[{match[3]!r}].astype('int32')"
            )
        dims = instance_dims(labels.dims)
        if match[2] and match[2] not in dims:
            raise UserError(f"{name!r}: instances of {match[3]!r} lie along {' and '.join(dims)}, not along {match[2]}")
        spacing = [_spacing(dataset, dim) for dim in dims]
        array = _InstanceTarget(labels, match[1], dims, [round(step / spacing[-1], 6) for step in spacing])
        encoding = {"preferred_chunks": labels.encoding.get("preferred_chunks", {})}
        dataset = dataset.assign({name: Variable(labels.dims, LazilyIndexedArray(array), encoding=encoding)})
    return dataset


def instance_dims(dims: Iterable[Any]) -> tuple[str, ...]:
    """Return the dimensions of instances: z, y and x if at least two exist, else the last two."""
    names = tuple(map(str, dims))
    space = tuple(name for name in names if name in ("z", "y", "x"))
    return space if len(space) > 1 else names[-2:]


def _spacing(dataset: Any, dim: str) -> float:
    """Return the distance of neighbouring points along a dimension; 1 without a numeric coordinate."""
    if dim not in dataset.coords or dataset[dim].dtype.kind not in "iuf" or dataset.sizes[dim] < 2:
        return 1.0
    ends = dataset[dim].values[[0, -1]].astype(np.float64)
    return abs(float(ends[1] - ends[0])) / (dataset.sizes[dim] - 1) or 1.0


class _InstanceTarget(BackendArray):
    """A target made from a label image, as an xarray backend array that computes regions when read."""

    def __init__(self, labels: Any, kind: str, dims: tuple[str, ...], spacing: list[float]):
        self._labels, self._kind, self._dims, self._spacing = labels, kind, dims, spacing
        self._axes = [labels.dims.index(dim) for dim in dims]
        self.shape, self.dtype = labels.shape, np.dtype(np.float32)

    def __getitem__(self, key: Any) -> Any:
        return explicit_indexing_adapter(key, self.shape, IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        ranges, within = [], []
        for part, size in zip(key, self.shape, strict=True):
            points = range(size)[part] if isinstance(part, slice) else range(size)[part : part + 1 or None]
            ranges.append((min(points), max(points) + 1) if points else (0, 0))
            within.append(slice(None, None, points.step) if isinstance(part, slice) else 0)
        out = np.empty([stop - start for start, stop in ranges], np.float32)
        planes = [
            [(stop - start, start)] if axis in self._axes else [(1, at) for at in range(start, stop)]
            for axis, (start, stop) in enumerate(ranges)
        ]
        for plane in product(*planes) if out.size else ():
            into = tuple(
                slice(at - start, at - start + size) for (size, at), (start, _) in zip(plane, ranges, strict=True)
            )
            out[into] = self._plane([(at, at + size) for size, at in plane])
        return out[tuple(within)]

    def _plane(self, ranges: Ranges) -> np.ndarray:
        if self._kind.startswith("flow_"):
            wide, labels = self._whole_instances(ranges)
        else:
            margins = {"inside": [0.0], "border": [1.0]}.get(self._kind) or [MOST_DISTANCE / s for s in self._spacing]
            wide = list(ranges)
            for axis, margin in zip(self._axes, margins * len(self._axes), strict=False):
                wide[axis] = self._wider(ranges[axis], axis, math.ceil(margin))
            labels = self._numbers(wide)
        image = labels.reshape([labels.shape[axis] for axis in self._axes])
        if self._kind == "inside":
            target = (image != 0).astype(np.float32)
        elif self._kind == "border":
            target = borders(image)
        elif self._kind == "distance":
            target = distances(image, MOST_DISTANCE, self._spacing)
        else:
            target = flows(image)[self._dims.index(self._kind.removeprefix("flow_"))]
        return target.reshape(labels.shape)[_within(ranges, wide)]

    def _whole_instances(self, ranges: Ranges) -> tuple[Ranges, np.ndarray]:
        """Extend a region until no instance continues beyond it, and return it with the components that touched it."""
        wide, step = list(ranges), 32
        while True:
            parts = components(self._numbers(wide))
            ids = np.unique(parts[_within(ranges, wide)])
            parts = np.where(np.isin(parts, ids), parts, 0)
            is_whole = True
            for axis in self._axes:
                low, high = wide[axis]
                first, last = self._wider(ranges[axis], axis, MOST_REACH + 1)
                more = [step if parts.take(-side, axis).any() else 0 for side in (0, 1)]
                wide[axis] = max(low - more[0], first), min(high + more[1], last)
                is_whole = is_whole and wide[axis] == (low, high)
                if more[0] and low == first > 0 or more[1] and high == last < self.shape[axis]:
                    raise UserError(
                        f"an instance reaches more than {MOST_REACH} points along {self._labels.dims[axis]!r} beyond "
                        "the region that is read, and flows need whole instances; take border or distance as targets"
                    )
            if is_whole:
                return wide, parts
            step *= 2

    def _wider(self, ends: tuple[int, int], axis: int, more: int) -> tuple[int, int]:
        return max(ends[0] - more, 0), min(ends[1] + more, self.shape[axis])

    def _numbers(self, ranges: Ranges) -> np.ndarray:
        part = self._labels[tuple(slice(*ends) for ends in ranges)]
        values = part.data.compute(scheduler="synchronous") if part.chunks is not None else part.values
        return np.asarray(values)


def _within(ranges: Ranges, wide: Ranges) -> tuple[slice, ...]:
    return tuple(slice(start - low, stop - low) for (start, stop), (low, _) in zip(ranges, wide, strict=True))
