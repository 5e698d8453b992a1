"""The sliding window of convolution and pooling: kernel, stride, padding and output size."""

from __future__ import annotations

from typing import NamedTuple

from dsinga.job import ConvolutionConf, PoolingConf, WindowConf
from dsinga.job.message import field_types
from dsinga.layers.base import Array, Layer, as_text
from dsinga.ops import Pair


class Window(NamedTuple):
    """Kernel, stride and pad, each (vertical, horizontal), and the output size (H', W')."""

    kernel: Pair
    stride: Pair
    pad: Pair
    outputs: Pair


def sliding_window(layer: Layer, conf: ConvolutionConf | PoolingConf, stride: int) -> Window:
    """Return the window of ``conf`` over the images of ``layer``, with a default ``stride``.

    H' = floor((H + 2·pad - kernel) / stride) + 1 for both convolution and pooling, as in SINGA (Caffe's pooling rounds
    up). Raises UserError where the window is larger than the padded image.
    """
    _, height, width = layer.image_shape()
    if isinstance(conf, PoolingConf) and conf.global_pooling:
        return _whole_image(layer, conf, (height, width))
    kernel, pad, step = conf.pair("kernel", 3), conf.pair("pad", 0), conf.pair("stride", stride)
    if min(kernel) < 1 or min(step) < 1 or min(pad) < 0:
        raise layer.fail(
            f"kernel {as_text(kernel)}, stride {as_text(step)}, pad {as_text(pad)}: "
            "kernel and stride are at least 1, pad at least 0",
            conf,
        )
    room = (height + 2 * pad[0], width + 2 * pad[1])
    if kernel[0] > room[0] or kernel[1] > room[1]:
        raise layer.fail(
            f"a kernel of {as_text(kernel)} does not fit images of {as_text((height, width))} padded by {as_text(pad)};"
            " make kernel smaller or pad larger",
            conf,
            "kernel",
        )
    outputs = ((room[0] - kernel[0]) // step[0] + 1, (room[1] - kernel[1]) // step[1] + 1)
    return Window(kernel, step, pad, outputs)


def _whole_image(layer: Layer, conf: PoolingConf, size: Pair) -> Window:
    fields = [name for name in field_types(WindowConf) if getattr(conf, name) is not None]
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
