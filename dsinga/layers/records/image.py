"""Image preprocessing: kImagePreprocess, kRGBImage (crop, mirror, mean, scale) and kMnist (an affine map)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural, Padding, Positive
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Connection, Cut
from dsinga.layers.interface.layer import Array, Arrays, Layer, Output, Shape
from dsinga.layers.interface.region import Reach


@register("layer", kImagePreprocess=101, kRGBImage=193)
class ImagePreprocess(Layer):
    """Crop images (B, C, H, W) to (B, C, cropsize, cropsize) and mirror them: at random in training, else centred.

    A pixel becomes (pixel - mean)·scale. ``pad`` pixels of zeros are added on every side before the crop. The random
    crop and mirroring of an image depend on its global row, not on how the batch is cut.
    """

    class Conf(Settings, name="RGBImageConf"):
        """Settings of kImagePreprocess and kRGBImage."""

        scale: Positive = setting(1.0, "the factor of the pixels")
        cropsize: Natural = setting(0, "the height and width of the crop, in pixels; 0 keeps the whole image")
        mirror: bool = setting(False, "whether half of the images are mirrored in training, at random")
        meanfile: str = setting("", "not read: name it as mean_file of the input layer's store_conf")
        pad: Padding = setting(0, "how many pixels of zeros are added on every side before the crop; beyond SINGA")

    settings: Conf
    source_count = 1
    cut = Cut(gathered_because="crops and mirrors whole images")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        image = self.settings
        channels, height, width = self.image_shape()
        mean = self._mean(info, (channels, height, width))
        self.pad = image.pad
        height, width = height + 2 * image.pad, width + 2 * image.pad
        self.crop = (image.cropsize, image.cropsize) if image.cropsize else (height, width)
        if not 0 < self.crop[0] <= height or not 0 < self.crop[1] <= width:
            raise self.fail(
                f"cannot cut {shape_text(self.crop)} out of images of {shape_text((height, width))}; "
                "make cropsize smaller, or 0 for the whole image",
                image,
                "cropsize",
            )
        self.mirror, self.scale = image.mirror, image.scale
        self.mean = mean
        self.shape = (self.source_shapes[0][0], channels, *self.crop)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        images = sources[0] if sources[0].ndim == 4 else sources[0][:, None]
        if self.mean is not None:
            images = ctx.ops.images(images, self.scale, self.mean)
        images = self._crop_at_random(images, ctx) if ctx.training else self._crop_centre(images, ctx)
        if self.mean is None and self.scale != 1:
            images = ctx.ops.images(images, self.scale)
        return Output(images)

    def _crop_centre(self, images: Array, ctx: Context) -> Array:
        (height, width), (down, right) = self.crop, self._margins(images)
        top, left = down // 2, right // 2
        if not self.pad:
            return images[:, :, top : top + height, left : left + width]
        rows, xp = len(images), ctx.ops.xp
        if ctx.unread is not None:
            tops, lefts, mirrored = xp.full(rows, top), xp.full(rows, left), xp.full(rows, False)
            return ctx.ops.crop(images, tops, lefts, mirrored, self.crop, self.pad)
        return ctx.ops.crop(images, [top] * rows, [left] * rows, [False] * rows, self.crop, self.pad)

    def _crop_at_random(self, images: Array, ctx: Context) -> Array:
        margins = self._margins(images)
        if not self.mirror and margins == (0, 0):
            return self._crop_centre(images, ctx)
        is_recorded = ctx.unread is not None
        uniform = ctx.random(self.name, 3) if is_recorded else ctx.uniform(self.name, 3)
        uniform = uniform.astype(np.float64)  # float32 could round up to the margin + 1
        tops, lefts = ((uniform[:, k] * (margin + 1)).astype(np.int64) for k, margin in enumerate(margins))
        mirrored = uniform[:, 2] < (0.5 if self.mirror else 0.0)
        windows: list[Any] = [tops, lefts, mirrored] if is_recorded else [x.tolist() for x in (tops, lefts, mirrored)]
        return ctx.ops.crop(images, windows[0], windows[1], windows[2], self.crop, self.pad)

    def _margins(self, images: Array) -> tuple[int, int]:
        """Return how many pixels the crop can move, down and to the right."""
        return images.shape[2] + 2 * self.pad - self.crop[0], images.shape[3] + 2 * self.pad - self.crop[1]

    def _mean(self, info: RecordInfo | None, shape: Shape) -> Any:
        image = self.settings
        mean = None if info is None else info.mean
        if mean is None:
            if image.meanfile:
                raise self.fail(
                    "the meanfile of an image layer is not read; name it where the images are read, "
                    f'store_conf {{ mean_file: "{image.meanfile}" }} of the input layer',
                    image,
                    "meanfile",
                )
            return None
        mean = np.asarray(mean, np.float32)
        if mean.ndim and mean.size != math.prod(shape):
            raise self.fail(
                f"the mean has the shape {shape_text(mean.shape)}, an image {shape_text(shape)}; make them equal", image
            )
        return mean.reshape(shape) if mean.ndim else mean


@register("layer", kMnist=192)
class Mnist(Layer):
    """Scale and shift pixels (B, ...): x/norm_a - norm_b, float32. The elastic distortion's settings have no effect."""

    class Conf(Settings):
        """Settings of kMnist: x/norm_a - norm_b."""

        norm_a: Positive = setting(1.0, "what pixels are divided by")
        norm_b: float = setting(0.0, "what is subtracted after the division")
        kernel: int = setting(0, "has no effect; in SINGA's documentation, of the elastic distortion")
        sigma: float = setting(0.0, "has no effect; in SINGA's documentation, of the elastic distortion")
        alpha: float = setting(0.0, "has no effect; in SINGA's documentation, of the elastic distortion")
        beta: float = setting(0.0, "has no effect; in SINGA's documentation, of the elastic distortion")
        gamma: float = setting(0.0, "has no effect; in SINGA's documentation, of the elastic distortion")
        resize: int = setting(0, "has no effect; in SINGA's documentation, of the elastic distortion")
        elastic_freq: int = setting(0, "has no effect; in SINGA's documentation, of the elastic distortion")

    settings: Conf
    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)

    def reach(self) -> tuple[Reach, ...]:
        return self.same_points()

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        scale, shift = self.settings.norm_a, self.settings.norm_b
        return Output(ctx.ops.images(sources[0], mean=scale * shift, std=scale))
