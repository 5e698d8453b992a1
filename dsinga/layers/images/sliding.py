"""Geometry of windows that slide over images: sizes, positions and padding, and settings for each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from dsinga.job.component import Settings, setting
from dsinga.job.limits import Padding, Pixels
from dsinga.job.message import field_types
from dsinga.layers.interface.checks import SHAPE_OF_RECORD, shape_text
from dsinga.layers.interface.layer import FLOAT_BYTES, Array, Layer, Shape
from dsinga.layers.interface.region import Reach, Region
from dsinga.layers.interface.taps import Taps
from dsinga.ops import Ops
from dsinga.ops.layout import LAST, extents, output_sizes, padded_sizes, to_image
from dsinga.ops.types import Sizes


class WindowConf(Settings):
    """Settings shared by convolution and pooling: the window's size, stride and padding, for all axes or each."""

    kernel: Pixels | None = setting(None, "the height and width of the window; 3 without it, kernel_x and kernel_y")
    pad: Padding | None = setting(None, "how many pixels of zeros surround an image; 0 without it, pad_x and pad_y")
    stride: Pixels | None = setting(
        None, "by how many pixels the window moves; without it, stride_x and stride_y, 1 (pooling: 2)"
    )
    kernel_x: Pixels | None = setting(None, "the width of the window; by default kernel")
    kernel_y: Pixels | None = setting(None, "the height of the window; by default kernel")
    pad_x: Padding | None = setting(None, "how many pixels of zeros are left and right of an image; by default pad")
    pad_y: Padding | None = setting(None, "how many pixels of zeros are above and below an image; by default pad")
    stride_x: Pixels | None = setting(None, "by how many pixels the window moves to the right; by default stride")
    stride_y: Pixels | None = setting(None, "by how many pixels the window moves down; by default stride")
    kernel_z: Pixels | None = setting(None, "the depth of the window in volumes; by default kernel; beyond SINGA")
    pad_z: Padding | None = setting(None, "how many pixels of zeros are before and behind a volume; by default pad")
    stride_z: Pixels | None = setting(None, "by how many pixels the window moves along the depth; by default stride")
    same: bool = setting(
        False,
        "whether to pad so that there are size / stride windows along an axis, rounded up, as in Keras; odd padding "
        "is below and on the right",
    )

    def sizes(self, field: str, default: int, axes: int) -> Sizes:
        """Return the setting "kernel", "pad" or "stride" for the last ``axes`` of depth, height and width."""
        every = getattr(self, field)
        if every is not None:
            return (every,) * axes
        sides = [getattr(self, f"{field}_{axis}") for axis in "zyx"[-axes:]]
        return tuple(default if side is None else side for side in sides)


class Window(NamedTuple):
    """A window over images: kernel, stride and pad, each (vertical, horizontal), and the output size (H', W').

    Volumes have the depth first. ``extra`` is how many more pixels of padding are below and on the right than above and
    on the left. ``dilation`` is 1 if empty.
    """

    kernel: Sizes
    stride: Sizes
    pad: Sizes
    outputs: Sizes
    extra: Sizes = ()
    dilation: Sizes = ()

    @property
    def extent(self) -> Sizes:
        """How many pixels a window covers along each axis, gaps included."""
        return extents(self.kernel, self.dilation) if self.dilation else self.kernel

    def extend(self, x: Array, ops: Ops, fill: float = 0.0) -> Array:
        """Add the ``extra`` rows and columns of ``fill`` to images (B, C, H, W); kernels only pad symmetrically."""
        if not any(self.extra):
            return x
        batch, channels, *size = x.shape
        shape = (batch, *map(sum, zip(size, self.extra, strict=True)), channels)
        rows = ops.xp.full_like(x, fill, shape=shape, order="C")
        rows[(slice(None), *map(slice, size))] = x.transpose(LAST[x.ndim])
        return to_image(rows)

    def crop(self, extended: Array) -> Array:
        """Remove the rows and columns that :meth:`extend` has added."""
        if not any(self.extra):
            return extended
        sizes = zip(extended.shape[2:], self.extra, strict=True)
        return extended[(slice(None), slice(None), *(slice(size - more) for size, more in sizes))]

    def extended_sizes(self, images: int, size: Sizes) -> list[int]:
        """Return the bytes of extended images and of their gradient, for memory estimates; [] without ``extra``."""
        if not any(self.extra):
            return []
        return [FLOAT_BYTES * images * math.prod(map(sum, zip(size, self.extra, strict=True)))] * 2

    def reach(self) -> tuple[Reach, ...]:
        """Return which source pixels a window reads along each axis, for cuts by space."""
        extras = self.extra or (0,) * len(self.kernel)
        return tuple(
            Reach(stride, 1, pad, extent - 1 - pad, "edge" if pad or extra else "")
            for extent, stride, pad, extra in zip(self.extent, self.stride, self.pad, extras, strict=True)
        )

    def in_region(self, region: Region) -> Window:
        """Return the window for one worker's region; its sources have the padding along the region's axes."""
        pad, outputs, extra = list(self.pad), list(self.outputs), list(self.extra)
        for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True):
            pad[axis - 2], outputs[axis - 2] = 0, stop - start
            extra[axis - 2 : axis - 1] = [0] if extra else []
        return self._replace(pad=tuple(pad), outputs=tuple(outputs), extra=tuple(extra))

    def rounded_up(self, size: Sizes) -> Window:
        """Return the window with one more position along each axis on which it leaves pixels over, as for ``ceil``."""
        outputs, extra = [], []
        for length, kernel, step, pad in zip(size, self.extent, self.stride, self.pad, strict=True):
            count = -(-(length + 2 * pad - kernel) // step) + 1
            count -= (count - 1) * step >= length + pad
            outputs.append(count)
            extra.append(max((count - 1) * step + kernel - length - 2 * pad, 0))
        return self._replace(outputs=tuple(outputs), extra=tuple(extra))

    def pixels(self, size: Sizes, padding: Sizes = ()) -> np.ndarray:
        """Count the pixels of an image and its ``padding`` that each window covers, (H', W') float64."""
        covered = np.ones(())
        around = padding or (0,) * len(size)
        for count, stride, pad, kernel, length, more in zip(
            self.outputs, self.stride, self.pad, self.kernel, size, around, strict=True
        ):
            starts = np.arange(count) * stride - pad
            covered = np.multiply.outer(
                covered, np.minimum(starts + kernel, length + more) - np.maximum(starts, float(-more))
            )
        return covered


def window_shape(layer: Layer) -> Shape:
    """Return (C, H, W) or (C, D, H, W) of a layer's images; (B, H, W) are images with one channel."""
    takes = "images (batch, channels, height, width) or volumes with a depth before the height"
    shape = layer.expect_axes((3, 4, 5), takes, SHAPE_OF_RECORD)
    return (1, *shape[1:]) if len(shape) == 3 else shape[1:]


def window_sizes(layer: Layer, conf: WindowConf, axes: int, **defaults: int) -> list[Sizes]:
    """Return the settings named in ``defaults``, such as ``kernel=3``, for each axis."""
    for field in [f"{name}_z" for name in defaults] if axes == 2 else []:
        if getattr(conf, field) is not None:
            raise layer.fail(f"takes images, which have no depth; leave {field} out", conf, field)
    return [conf.sizes(name, default, axes) for name, default in defaults.items()]


def sliding_window(layer: Layer, conf: WindowConf, stride: int, size: Sizes = (), dilation: Sizes = ()) -> Window:
    """Compute the window and output size of convolution or pooling from ``conf``, with a default ``stride``.

    H' = floor((H + 2·pad - kernel) / stride) + 1, with ``same`` ceil(H / stride). A window with ``dilation`` counts
    with its gaps. Raises UserError if the window is larger than the padded image.
    """
    size = size or window_shape(layer)[1:]
    kernel, pad, step = window_sizes(layer, conf, len(size), kernel=3, pad=0, stride=stride)
    if conf.same:
        if any(pad):
            field = next(name for name in ("pad", "pad_x", "pad_y", "pad_z") if getattr(conf, name))
            raise layer.fail(f"has both {field} and same; leave one of them out", conf, field)
        return same_window(size, kernel, step, dilation)
    extent = extents(kernel, dilation) if dilation else kernel
    room, what = padded_sizes(size, pad), "images" if len(size) == 2 else "volumes"
    if any(length > space for length, space in zip(extent, room, strict=True)):
        gaps = f" with a dilation of {shape_text(dilation)}" if dilation else ""
        raise layer.fail(
            f"a kernel of {shape_text(kernel)}{gaps} does not fit {what} of {shape_text(size)} padded by "
            f"{shape_text(pad)}; make kernel smaller or pad larger",
            conf,
            "kernel",
        )
    return Window(kernel, step, pad, output_sizes((0, 0, *size), extent, step, pad), dilation=dilation)


def same_window(size: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes = ()) -> Window:
    """Return the window over images of ``size`` with TensorFlow's and Keras's padding "same"."""
    outputs, before, extra = [], [], []
    for length, window, step in zip(size, extents(kernel, dilation) if dilation else kernel, stride, strict=True):
        count = -(-length // step)
        total = max((count - 1) * step + window - length, 0)
        outputs.append(count)
        before.append(total // 2)
        extra.append(total % 2)
    return Window(kernel, stride, tuple(before), tuple(outputs), tuple(extra), dilation)


def whole_image(layer: Layer, conf: WindowConf) -> Window:
    """Return a window that covers the whole image, for global pooling."""
    size = window_shape(layer)[1:]
    refuse_window(layer, conf, f"global_pooling takes the whole image, {shape_text(size)}, as its window")
    once = (1,) * len(size)
    return Window(size, once, (0,) * len(size), once)


def refuse_window(layer: Layer, conf: WindowConf, because: str) -> None:
    """Raise UserError if the settings give a window, where another setting determines it."""
    names = [*field_types(WindowConf), *(f"dilation{axis}" for axis in ("", "_x", "_y", "_z"))]
    fields = [name for name in names if getattr(conf, name, None) not in (None, False)]
    if fields:
        raise layer.fail(f"{because}; leave out {' and '.join(fields)}", conf, fields[0])


def window_taps(window: Window, size: Sizes, counts_padding: bool, ceil: bool) -> tuple[Taps, ...]:
    """Return the weights of pixels in means over windows, by axis; a window of padding alone has weights of 0.

    With ``counts_padding`` a mean divides by all points of the window, or with ``ceil`` by those in the padded image.
    """
    taps = []
    gaps = window.dilation or (1,) * len(size)
    for length, kernel, stride, pad, count, gap in zip(size, *window[:4], gaps, strict=True):
        points = (np.arange(count) * stride - pad)[:, None] + np.arange(kernel) * gap
        inside = (points >= 0) & (points < length)
        padded = (points >= -pad) & (points < length + pad)
        counted = (padded if ceil else np.ones_like(inside)) if counts_padding else inside
        taps.append(Taps.of(points, inside / np.maximum(counted.sum(axis=1, keepdims=True), 1), length))
    return tuple(taps)


def adaptive_taps(size: Sizes, outputs: Sizes) -> tuple[Taps, ...]:
    """Return the weights of pixels in means over PyTorch's adaptive windows, for n of H points.

    Window j covers the points floor(j·H / n) to ceil((j + 1)·H / n) - 1.
    """
    taps = []
    for length, count in zip(size, outputs, strict=True):
        numbers = np.arange(count)
        starts, ends = numbers * length // count, -(-(numbers + 1) * length // count)
        points = starts[:, None] + np.arange((ends - starts).max())
        inside = points < ends[:, None]
        taps.append(Taps.of(points, inside / inside.sum(axis=1, keepdims=True), length))
    return tuple(taps)


def as_images(x: Array) -> Array:
    """Return a view of (B, H, W) as (B, 1, H, W); other images and volumes unchanged."""
    return x[:, None] if x.ndim == 3 else x


V = TypeVar("V")


def points_shape(layer: Layer) -> Shape:
    """Return (H, W) of a layer's images (B, C, H, W), or (D, H, W) of volumes (B, C, D, H, W)."""
    takes = "images (batch, channels, height, width) or volumes with a depth before the height"
    return layer.expect_axes((4, 5), takes, SHAPE_OF_RECORD)[2:]


def by_axis(layer: Layer, field: str, default: V) -> tuple[V, ...]:
    """Return a setting's value for each axis after the channels; one value is for all, none means ``default``."""
    values: Sequence[V] = getattr(layer.settings, field) or [default]
    axes = len(points_shape(layer))
    layer.expect_numbers(field, (0, 1, axes), f"{axes} axes follow the channels; give one for all, or one for each")
    return tuple(values) * (axes // len(values))


def interior(before: Sequence[int], sizes: Sequence[int], first: int = 2) -> tuple[slice, ...]:
    """Return the index that cuts the inner points out of a padded array, ``sizes`` points after ``before`` points."""
    parts = (slice(start, start + size) for start, size in zip(before, sizes, strict=True))
    return (*(slice(None),) * first, *parts)


def embed(x: Array, index: tuple[slice, ...], shape: Shape, ops: Ops) -> Array:
    """Place x at ``index`` in an array of zeros; its rows have the shape ``shape[1:]``."""
    y = ops.empty((len(x), *shape[1:]), x.dtype)
    y[...] = 0
    y[index] = x
    return y
