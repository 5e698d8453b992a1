"""Convolution, pooling, padding and resizing of symbolic sequences (B, C, T), images or volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.nn.words.basic_layers import layer_of_type
from dsinga.nn.words.convolutions import Conv2D, Conv3D
from dsinga.nn.words.image_layers import UpSampling2D, UpSampling3D
from dsinga.nn.words.shape_layers import Reshape
from dsinga.nn.words.windows import sides
from dsinga.nn.writing.reshaping import AS_IMAGE, NoLayer
from dsinga.nn.writing.tensor import Tensor, batched

Sizes = tuple[int, ...]
LARGEST = 1 << 26  # the most numbers of a record in an undamaged net
GREATEST = 3.4028234e38  # nearly the largest float32 number, in place of infinity
# Coordinates and roundings with which kUpsampling repeats points, or interpolates between them.
REPEATED = {("kHalfPixel", "kPreferFloor"), ("kHalfPixel", "kPreferCeil"), ("kAsymmetric", "kFloor")}
CENTRED = {"kHalfPixel", "kPytorchHalfPixel"}


class KernelWindow(NamedTuple):
    """The size, stride, padding and dilation of a window along each axis."""

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    before: Sizes
    after: Sizes

    @property
    def extent(self) -> Sizes:
        """The pixels that a window covers along each axis, gaps included."""
        return tuple((size - 1) * gap + 1 for size, gap in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_even(self) -> bool:
        """Whether the padding before and after each axis is equal."""
        return self.before == self.after

    def of_rows(self) -> KernelWindow:
        """Return the window over sequences for images of one row."""
        return KernelWindow(*((axis, *sizes) for axis, sizes in zip((1, 1, 1, 0, 0), self, strict=True)))

    def same(self, size: Sizes, more_after: bool = True) -> KernelWindow:
        """Return the window with padding for ceil(size / stride) positions along each axis (padding "same")."""
        totals = [
            max((-(-length // step) - 1) * step + extent - length, 0)
            for length, step, extent in zip(size, self.strides, self.extent, strict=True)
        ]
        less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
        before, after = (less, more) if more_after else (more, less)
        return self._replace(before=before, after=after)

    def rounded_up(self, size: Sizes) -> KernelWindow:
        """Return the window with the padding after each axis that rounding the output size up needs."""
        after = []
        for _, step, _, first, last, length, extent in zip(*self, size, self.extent, strict=True):
            count = -(-(length + first + last - extent) // step) + 1
            count -= (count - 1) * step >= length + first
            after.append(max((count - 1) * step + extent - length - first, 0))
        return self._replace(after=tuple(after))

    def fields(self, stride: int, pad: Sizes) -> dict[str, Any]:
        """Return the window as layer settings, without defaults; ``stride`` is the default stride."""
        sizes = {"kernel": (self.kernel, 3), "stride": (self.strides, stride), "dilation": (self.dilations, 1)}
        return fields_of(**sizes, pad=(pad, 0))


def fields_of(**sizes: tuple[Sizes, int]) -> dict[str, Any]:
    """Return sizes as layer settings, without those equal to their defaults."""
    return {
        field: number
        for name, (size, default) in sizes.items()
        if {*size} != {default}
        for field, number in sides(name, size).items()
    }


def check_size(sizes: Iterable[int]) -> None:
    """Raise NoLayer for a record so large that the file of the net must be damaged."""
    if math.prod(max(int(size), 1) for size in sizes) > LARGEST:
        raise NoLayer(f"that makes more than {LARGEST} numbers of a record")


def over_images(x: Tensor, window: KernelWindow, compute: Callable[[Tensor, KernelWindow], Tensor]) -> Tensor:
    """Apply an operation for images or volumes; sequences (B, C, T) become images of one row."""
    x.feature()
    if x.rank > 3:
        return compute(x, window)
    records, channels, steps = x.shape
    images = Reshape([channels, 1, steps], name=x.place.name(AS_IMAGE))(x.symbol)
    y = compute(Tensor(x.place, images, (records, channels, 1, steps)), window.of_rows())
    return y.reshape((records, y.shape[1], y.shape[3]), ".steps")


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], suffix: str = "", **fields: Any) -> Tensor:
    """Pad images or volumes by a kPadding layer."""
    sides_of = {"before": [*before], "after": [*after], **fields}
    return batched(x.place, layer_of_type("kPadding", name=x.place.name(suffix), **sides_of)(x.symbol))


def convolved(x: Tensor, window: KernelWindow, make: Callable[..., Any], same: bool = False, **settings: Any) -> Tensor:
    """Apply a convolution, by the layer that the function ``make`` of ``nn`` makes."""

    def compute(images: Tensor, window: KernelWindow) -> Tensor:
        sizes: dict[str, Any] = {"kernel_size": window.kernel, "strides": window.strides}
        sizes["dilation_rate"] = window.dilations
        if same or (not window.is_even and window == window.same(images.shape[2:])):
            sizes["padding"] = "same"
        elif window.is_even:
            sizes["padding"] = window.before
        else:
            images = padded(images, window.before, window.after, ".pad")
        return batched(x.place, make(Conv3D if images.rank == 5 else Conv2D, **settings, **sizes)(images.symbol))

    return over_images(x, window, compute)


def convolved_transposed(x: Tensor, window: KernelWindow, make: Callable[..., Any], **settings: Any) -> Tensor:
    """Apply a transposed convolution; for paddings that the layer lacks, compute all and crop.

    Negative padding after an axis adds pixels that no kernel reaches.
    """

    def compute(images: Tensor, window: KernelWindow) -> Tensor:
        more = tuple(first - last for first, last in zip(window.before, window.after, strict=True))
        is_plain = all(0 <= extra < step for extra, step in zip(more, window.strides, strict=True))
        pad = window.before if is_plain else (0,) * len(more)
        more = more if is_plain else tuple(max(-last, 0) for last in window.after)
        fields = window.fields(1, pad) | fields_of(output_pad=(more, 0)) | settings
        y = batched(x.place, make("kTransposedConvolution", **fields)(images.symbol))
        return y if is_plain else cropped(y, window.before, [max(last, 0) for last in window.after])

    return over_images(x, window, compute)


def cropped(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Remove the first and last numbers of a tensor along its last axes."""
    return x[(..., *(slice(first, -last or None) for first, last in zip(before, after, strict=True)))]


def pooled(x: Tensor, window: KernelWindow, pool: str, ceil: bool = False, counts_padding: bool = True) -> Tensor:
    """Apply max (MAX) or mean (AVG) pooling; with ``ceil`` also of incomplete last windows."""

    def compute(images: Tensor, window: KernelWindow) -> Tensor:
        size, rounds_up = images.shape[2:], ceil
        is_same = not window.is_even and window == window.same(size)
        is_apart = not window.is_even and not is_same  # padding that the layer does not support
        if is_apart and rounds_up:  # the last window begins before the padding after an axis
            if pool == "AVG" and counts_padding:
                raise NoLayer("with ceil_mode, more padding on one side, and means that count it")
            window, rounds_up = window.rounded_up(size), False
        leaves_out = pool == "AVG" and not counts_padding and any(window.before + window.after)
        fields: dict[str, Any] = {} if pool == "MAX" else {"pool": pool}
        fields |= window.fields(2, window.before if window.is_even else (0,) * len(size))
        fields |= {"same": True} if is_same else {"ceil": True} if rounds_up else {}
        fields |= {"count_include_pad": False} if leaves_out and not is_apart else {}
        if is_apart:
            value = {"value": -GREATEST} if pool == "MAX" else {}
            images = padded(images, window.before, window.after, ".pad", **value)
        y = batched(x.place, layer_of_type("kPooling", name=x.place.name(), **fields)(images.symbol))
        return y * shares(window, size, y.shape[2:]) if is_apart and leaves_out else y

    return over_images(x, window, compute)


def shares(window: KernelWindow, size: Sizes, counts: Sizes) -> np.ndarray:
    """Return factors that correct means for padding: each window's size over its unpadded count, (1, H', W')."""
    inside: Any = np.ones(1)
    for kernel, step, gap, before, _, length, count in zip(*window, size, counts, strict=True):
        check_size([count, kernel])
        points = np.arange(count)[:, None] * step - before + np.arange(kernel) * gap
        inside = np.multiply.outer(inside, ((points >= 0) & (points < length)).sum(axis=1))
    return (math.prod(window.kernel) / inside).astype(np.float32)


def pooled_whole(x: Tensor, pool: str) -> Tensor:
    """Pool over all points, to images of one point."""
    axes = x.rank - 2
    layer = layer_of_type("kPooling", pool=pool, global_pooling=True, name=x.place.name())
    return over_images(x, KernelWindow(*[(1,) * axes] * 5), lambda images, _: batched(x.place, layer(images.symbol)))


def surrounded(x: Tensor, pads: Any, mode: str = "kZero", value: float = 0.0) -> Tensor:
    """Pad a tensor around row axes by two numbers for each axis; negative ``pads`` crop."""
    x.feature()
    lost, pairs = np.maximum(-np.asarray(pads), 0), np.maximum(pads, 0)
    x = cropped(x, *lost.T.tolist()) if lost.any() else x
    rows = x.shape[1:]
    check_size(pairs.sum(axis=1) + rows)
    if not pairs.any():
        return x
    images = rows if len(rows) > 2 and not pairs[0].any() else (*(1,) * max(1, 3 - len(rows)), *rows)
    if len(images) > 4:
        raise NoLayer(f"around {len(rows)} axes")
    before, after = np.pad(pairs, ((len(images) - len(rows), 0), (0, 0)))[1:].T.tolist()
    fields: dict[str, Any] = {} if mode == "kZero" else {"mode": [mode]}
    fields |= {"value": max(-GREATEST, min(value, GREATEST))} if mode == "kZero" and value else {}
    y = padded(x.reshape((x.shape[0], *images), ".axes"), before, after, **fields)
    return y.reshape((x.shape[0], *y.shape[1 + len(images) - len(rows) :]), ".rows")


def resized(x: Tensor, size: Sequence[int], scale: Sequence[float] | None = None, **settings: Any) -> Tensor:
    """Resize sequences, images or volumes.

    Args:
        x: tensor.
        size: new size along each axis after the channels.
        scale: exact factor of the size along each axis.
        settings: settings of kResize: method, coordinates, rounding and so on.
    """
    axes, method = x.rank - 2, settings["method"]
    old, coordinates = x.shape[2:], settings.get("coordinates", "kHalfPixel")
    if scale is not None and np.allclose(np.multiply(old, scale), size, rtol=1e-6):
        scale = None
    is_whole = not any(n % o for n, o in zip(size, old, strict=True)) and scale is None
    is_repeated = method == "kNearest" and (coordinates, settings.get("rounding")) in REPEATED
    is_between = method == "kLinear" and coordinates in CENTRED

    def compute(images: Tensor, _: KernelWindow) -> Tensor:
        new = (*(1,) * (images.rank - 2 - axes), *size)
        if is_whole and (is_repeated or is_between):
            make, between = (UpSampling3D, "trilinear") if axes == 3 else (UpSampling2D, "bilinear")
            factors = tuple(n // o for n, o in zip(new, images.shape[2:], strict=True))
            layer = make(factors, "nearest" if is_repeated else between, name=x.place.name())
        else:
            factors_of = {} if scale is None else {"scale": [1.0] * (len(new) - axes) + [*scale]}
            layer = layer_of_type("kResize", name=x.place.name(), size=[*new], **settings, **factors_of)
        return batched(x.place, layer(images.symbol))

    return over_images(x, KernelWindow(*[(1,) * axes] * 5), compute)
