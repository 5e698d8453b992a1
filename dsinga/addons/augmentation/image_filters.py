"""Brightness, contrast and other filters of uint8 images as in Pillow, with a strength for each image of a batch.

Images are (n, C, H, W) uint8, with C = 1 or 3 (red, green, blue) if colours matter. Strengths are (n,) float; a factor
of 1 changes nothing.
"""

from __future__ import annotations

import numpy as np


def grayscale(images: np.ndarray) -> np.ndarray:
    """Return the luminance (n, 1, H, W) uint8, (19595·R + 38470·G + 7471·B)/2¹⁶ rounded, as Pillow's mode L."""
    if images.shape[1] == 1:
        return images
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    luminance = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return luminance.astype(np.uint8)[:, None]


def blend(degenerate: np.ndarray, images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return degenerate + factor·(images - degenerate), limited to 0 to 255 and truncated, as ``PIL.Image.blend``.

    ``degenerate`` broadcasts against ``images``.
    """
    start = degenerate.astype(np.float32)
    mixed = images - start
    mixed *= np.asarray(factors, np.float32)[:, None, None, None]
    mixed += start
    return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def brightness(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Blend with black, as ``ImageEnhance.Brightness``."""
    return blend(np.zeros(1, np.uint8), images, factors)


def contrast(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Blend with the mean luminance of each image, rounded, as ``ImageEnhance.Contrast``."""
    means = np.floor(grayscale(images).mean(axis=(1, 2, 3), dtype=np.float64) + 0.5)
    return blend(means[:, None, None, None], images, factors)


def saturation(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Blend with each pixel's luminance, as ``ImageEnhance.Color``; images of one channel are unchanged."""
    return images if images.shape[1] == 1 else blend(grayscale(images), images, factors)


def sharpness(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1)/13 within its border, as ``ImageEnhance.Sharpness``."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images
    whole = images.astype(np.uint16)
    total = 4 * whole[:, :, 1:-1, 1:-1]
    for row in range(3):
        for column in range(3):
            total += whole[:, :, row : row + height - 2, column : column + width - 2]
    smooth = images.copy()
    smooth[:, :, 1:-1, 1:-1] = np.floor(total / np.float32(13) + np.float32(0.5)).astype(np.uint8)
    return blend(smooth, images, factors)


def hue(images: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Rotate the hue by a share of the circle, from -½ to ½, in float32, as torchvision's ``adjust_hue`` of tensors."""
    if images.shape[1] == 1:
        return images
    colors = np.moveaxis(images, 1, 0).astype(np.float32) / np.float32(255)
    red, green, _ = colors
    high, low = colors.max(axis=0), colors.min(axis=0)
    spread = high - low
    from_red, from_green, from_blue = (high - colors) / np.where(spread == 0, np.float32(1), spread)
    turn = np.where(high == green, 2 + from_red - from_blue, 4 + from_green - from_red)
    turn = np.where(high == red, from_blue - from_green, turn) / np.float32(6)  # 0 for gray
    turn += np.asarray(shifts, np.float32)[:, None, None]
    turn -= np.floor(turn)
    turn *= 6
    # A channel is high within a third of the circle around its own hue, and changes linearly next to it.
    out = np.empty_like(images)
    for channel, offset in enumerate((5, 3, 1)):
        place = turn + np.float32(offset)
        place -= 6 * (place >= 6)
        share = np.clip(np.minimum(place, 4 - place), 0, 1)
        out[:, channel] = np.clip((high - spread * share) * np.float32(255.999), 0, 255)
    return out


def posterize(images: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Keep the highest ``bits`` bits, 0 to 8, of each number, as ``ImageOps.posterize``."""
    masks = (0xFF << (8 - np.asarray(bits, np.int64))) & 0xFF
    return images & masks.astype(np.uint8)[:, None, None, None]


def solarize(images: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Invert numbers from the threshold up, as ``ImageOps.solarize``."""
    return np.where(images < np.asarray(thresholds)[:, None, None, None], images, 255 - images)


def autocontrast(images: np.ndarray) -> np.ndarray:
    """Stretch each channel's numbers to 0 to 255, as ``ImageOps.autocontrast``."""
    low, high = images.min(axis=(2, 3)).astype(np.float64), images.max(axis=(2, 3)).astype(np.float64)
    scale = 255.0 / np.where(high > low, high - low, 255.0)
    offset = np.where(high > low, -low * scale, 0.0)
    table = np.arange(256) * scale[:, :, None] + offset[:, :, None]
    return _look_up(images, np.clip(table, 0, 255).astype(np.uint8))


def equalize(images: np.ndarray) -> np.ndarray:
    """Make each channel's numbers about equally frequent, as ``ImageOps.equalize``."""
    count, channels = images.shape[:2]
    places = np.arange(count * channels).reshape(count, channels, 1, 1) * 256
    counts = np.bincount((places + images).reshape(-1), minlength=count * channels * 256)
    counts = counts.reshape(count, channels, 256)
    last = 255 - np.argmax(counts[:, :, ::-1] > 0, axis=2)
    of_last = np.take_along_axis(counts, last[:, :, None], axis=2)[:, :, 0]
    step = (counts.sum(axis=2) - of_last)[:, :, None] // 255
    before = np.cumsum(counts, axis=2) - counts
    table = np.minimum((step // 2 + before) // np.maximum(step, 1), 255)
    return _look_up(images, np.where(step > 0, table, np.arange(256)).astype(np.uint8))


def _look_up(images: np.ndarray, tables: np.ndarray) -> np.ndarray:
    count, channels = images.shape[:2]
    numbers = np.take_along_axis(tables, images.reshape(count, channels, -1).astype(np.intp), axis=2)
    return numbers.reshape(images.shape)
