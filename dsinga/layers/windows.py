"""Windows that move over images: their settings, their places, and the padding around images."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsinga.job.component import Settings, setting
from dsinga.job.limits import Padding, Pixels
from dsinga.job.message import field_types
from dsinga.layers.base import FLOAT_BYTES, Array, Layer, as_text
from dsinga.layers.region import FILL, Region
from dsinga.ops import Ops, Pair


class WindowConf(Settings):
    """Settings shared by convolution and pooling: a window, for both directions or each."""

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
    same: bool = setting(
        False,
        "whether to pad so that there are size / stride windows along an axis, rounded up, with one pixel more below "
        "and on the right where the padding is odd, as in TensorFlow and Keras; beyond SINGA",
    )

    def pair(self, field: str, default: int) -> Pair:
        """Return (vertical, horizontal) of "kernel", "pad" or "stride"."""
        both = getattr(self, field)
        if both is not None:
            return both, both
        sides = (getattr(self, f"{field}_y"), getattr(self, f"{field}_x"))
        return tuple(default if side is None else side for side in sides)  # type: ignore[return-value]


class Window(NamedTuple):
    """Kernel, stride and pad, each (vertical, horizontal), and the output size (H', W').

    ``extra`` is how many more pixels of padding are below and on the right of an image than above and on the left,
    ``lead`` how many are above and on the left beside ``pad``.
    """

    kernel: Pair
    stride: Pair
    pad: Pair
    outputs: Pair
    extra: Pair = (0, 0)
    lead: Pair = (0, 0)

    def extend(self, x: Array, ops: Ops, fill: float = 0.0) -> Array:
        """Return images (B, C, H, W) with ``lead`` and ``extra`` pixels of ``fill``, as kernels pad symmetrically."""
        if self.extra == self.lead == (0, 0):
            return x
        batch, channels, height, width = x.shape
        (top, left), (below, right) = self.lead, self.extra
        rows = ops.xp.full((batch, top + height + below, left + width + right, channels), fill, x.dtype)
        rows[:, top : top + height, left : left + width] = x.transpose(0, 2, 3, 1)
        return rows.transpose(0, 3, 1, 2)

    def crop(self, extended: Array) -> Array:
        """Undo :meth:`extend`."""
        if self.extra == self.lead == (0, 0):
            return extended
        (top, left), (below, right) = self.lead, self.extra
        return extended[:, :, top : extended.shape[2] - below, left : extended.shape[3] - right]

    def extended_sizes(self, images: int, size: Pair) -> list[int]:
        """Return the bytes of ``images`` extended images of ``size`` and of their gradient, none without ``extra``."""
        if self.extra == self.lead == (0, 0):
            return []
        height, width = (size[axis] + self.lead[axis] + self.extra[axis] for axis in (0, 1))
        return [FLOAT_BYTES * images * height * width] * 2

    def source_points(self, axis: int, start: int, stop: int, size: int) -> np.ndarray:
        """Return the rows (``axis`` 0) or columns (1) of an image of ``size`` under the windows from start to stop - 1.

        FILL is for padding.
        """
        first = start * self.stride[axis] - self.pad[axis]
        points = np.arange(first, (stop - 1) * self.stride[axis] - self.pad[axis] + self.kernel[axis])
        return np.where((points < 0) | (points >= size), FILL, points)

    def in_region(self, region: Region) -> Window:
        """Return the window of a part that gets the points of :meth:`source_points`, its padding included."""
        pad, outputs, extra = list(self.pad), list(self.outputs), list(self.extra)
        for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True):
            pad[axis - 2], outputs[axis - 2], extra[axis - 2] = 0, stop - start, 0
        return self._replace(pad=_pair(pad), outputs=_pair(outputs), extra=_pair(extra))

    def pixels(self, size: Pair) -> np.ndarray:
        """Return how many pixels of an image, not of its padding, each window covers: (H', W') float64."""
        vertical, horizontal = (
            np.minimum(starts + kernel, length) - np.maximum(starts, 0.0)
            for starts, kernel, length in (
                (np.arange(self.outputs[axis]) * self.stride[axis] - self.pad[axis], self.kernel[axis], size[axis])
                for axis in (0, 1)
            )
        )
        return vertical[:, None] * horizontal


def sliding_window(layer: Layer, conf: WindowConf, stride: int) -> Window:
    """Return the window of ``conf`` over the images of ``layer``, with a default ``stride``.

    H' = floor((H + 2·pad - kernel) / stride) + 1 for both convolution and pooling, as in SINGA (Caffe's pooling rounds
    up); with ``same`` H' = ceil(H / stride). Raises UserError where the window is larger than the padded image, and
    where ``conf`` has both ``same`` and a pad.
    """
    size = layer.image_shape()[1:]
    kernel, pad, step = conf.pair("kernel", 3), conf.pair("pad", 0), conf.pair("stride", stride)
    if conf.same:
        if pad != (0, 0):
            field = next(name for name in ("pad", "pad_x", "pad_y") if getattr(conf, name))
            raise layer.fail(f"has both {field} and same; leave one of them out", conf, field)
        return same_window(size, kernel, step)
    room = (size[0] + 2 * pad[0], size[1] + 2 * pad[1])
    if kernel[0] > room[0] or kernel[1] > room[1]:
        raise layer.fail(
            f"a kernel of {as_text(kernel)} does not fit images of {as_text(size)} padded by {as_text(pad)};"
            " make kernel smaller or pad larger",
            conf,
            "kernel",
        )
    outputs = ((room[0] - kernel[0]) // step[0] + 1, (room[1] - kernel[1]) // step[1] + 1)
    return Window(kernel, step, pad, outputs)


def same_window(size: Pair, kernel: Pair, stride: Pair) -> Window:
    """Return the window over images of ``size`` whose padding is that of "same" in TensorFlow and Keras.

    Along an axis there are ceil(size / stride) windows, and as much padding as these need: half of it, rounded down,
    before the image, the rest after it.
    """
    outputs, before, extra = [], [], []
    for length, window, step in zip(size, kernel, stride, strict=True):
        count = -(-length // step)
        total = max((count - 1) * step + window - length, 0)
        outputs.append(count)
        before.append(total // 2)
        extra.append(total % 2)
    return Window(kernel, stride, _pair(before), _pair(outputs), _pair(extra))


def _pair(numbers: list[int]) -> Pair:
    vertical, horizontal = numbers
    return vertical, horizontal


def whole_image(layer: Layer, conf: WindowConf) -> Window:
    """Return the window that is the whole image of ``layer``; raise UserError where ``conf`` gives another one."""
    size = layer.image_shape()[1:]
    given = {name: getattr(conf, name) for name in field_types(WindowConf)}
    fields = [name for name, value in given.items() if value is not None and value is not False]
    if fields:
        raise layer.fail(
            f"global_pooling takes the whole image, {as_text(size)}, as its window; leave out {' and '.join(fields)}",
            conf,
            fields[0],
        )
    return Window(size, (1, 1), (0, 0), (1, 1))


def as_images(x: Array) -> Array:
    """Return a view of (B, H, W) as (B, 1, H, W), or (B, C, H, W) unchanged."""
    return x if x.ndim == 4 else x[:, None]
