"""Winograd's convolution of channels-last images by 3 x 3 kernels, and its gradients, in a compiled loop.

A tile of 4 x 4 pixels is transformed to 16 parts, (16, tiles, C). They are multiplied by the 16 parts of the kernel,
(16, C, F), and the products are transformed to 2 x 2 pixels: 16 multiplications in place of 36. A block of tiles stays
in a core's cache, its lines of the image with their padding, too. The gradient for the kernel adds up products of
parts of images and of results' gradients.

Results have other last bits than sums of products. Where they would be infinite, they may be NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dsinga.ops.compiled.code_files import ROWS
from dsinga.ops.compiled.compiler import load_loop
from dsinga.ops.types import Sizes

TILES = 128  # of a block, at most, unless a row of an image has more
PACK, CONVOLVE, ADD_UP, UNPACK = range(4)
FIELDS = (
    *("task", "taken", "threads", "source", "second", "result", "scratch", "slot", "images", "height", "width"),
    *("channels", "filters", "above", "left", "result_height", "result_width", "group", "count", "pieces"),
    *("step", "bias"),
)
"""The integers of a record, which several threads may run: addresses, sizes, and how many shares and places in scratch
memory are taken, 0 at first. A share is ``count`` images, or one of the ``pieces`` of an image. Channels, filters and
steps are in bytes."""

LOOP = """
PACK, CONVOLVE, ADD_UP, UNPACK = range(4)
def loop(r):
    {fields}
    if task == PACK:
        # (3, 3, size) at source to 16 parts at result; step is negative for the kernel turned around
        for at in range(0, channels, 64):
            kernel_tile(source + at, 3 * step, step, result + at, channels)
        return
    if task == UNPACK:
        for share in range(1, images):
            for at in range(0, 16 * channels, 64):
                add_register(source + share * 16 * channels + at, source + at)
        for at in range(0, channels, 64):
            kernel_gradient_tile(source + at, 4 * channels, channels, result + at, channels)
        return
    down, across = (result_height + 1) // 2, (result_width + 1) // 2
    line = (2 * across + 2) * channels
    tiles = (group * across + {rows} - 1) // {rows} * {rows}
    blocks = (down + group - 1) // group
    padded = scratch + take(r, 2) * slot
    x_parts = padded + (2 * group + 2) * line
    x_step = tiles * channels + 64  # not the same sets of the cache for all parts
    y_parts = x_parts + 16 * x_step
    y_step = tiles * filters + 64
    spare = y_parts + 16 * y_step
    for at in range(padded, y_parts, 64):
        clear_register(at)
    for at in range(spare, spare + filters, 64):
        clear_register(at)
    part_bytes = channels // 4 * filters
    while True:
        share = take(r, 1)
        first = share // pieces * count
        last = min(images, first + count)
        if first >= images:
            return
        sums = result + share * 16 * part_bytes
        if task == ADD_UP:
            for at in range(sums, sums + 16 * part_bytes, 64):
                clear_register(at)
        for image in range(first, last):
            for block in range(share % pieces * blocks // pieces, (share % pieces + 1) * blocks // pieces):
                top = block * group
                bottom = min(top + group, down)
                for k in range(2 * (bottom - top) + 2):
                    i = 2 * top + k - above
                    start = source + (image * height + i) * width * channels
                    target = padded + k * line + left * channels
                    if 0 <= i < height:
                        for at in range(0, width * channels, 64):
                            copy_register(start + at, target + at)
                    else:
                        for at in range(0, width * channels, 64):
                            clear_register(target + at)
                for i in range(top, bottom):
                    for j in range(across):
                        tile = (i - top) * across + j
                        corner = padded + 2 * (i - top) * line + 2 * j * channels
                        for at in range(0, channels, 64):
                            image_tile(corner + at, line, channels, x_parts + tile * channels + at, x_step)
                        if task == ADD_UP:
                            {gradient}
                            for at in range(0, filters, 64):
                                start = y_parts + tile * filters + at
                                result_gradient_tile(p + at, q + at, u + at, v + at, start, y_step)
                rows = (bottom - top) * across
                for k in range(16):
                    x, y = x_parts + k * x_step, y_parts + k * y_step
                    for f in range(0, filters, 64):
                        if task == CONVOLVE:
                            for t in range(0, rows, {rows}):
                                multiply(
                                    x + t * channels, channels, 4, second + k * part_bytes + f, filters, channels // 4,
                                    y + t * filters + f, filters,
                                )
                        else:
                            for c in range(0, channels, 4 * {rows}):
                                add_product(
                                    x + c, 4, channels, y + f, filters, rows,
                                    sums + k * part_bytes + c // 4 * filters + f, filters,
                                )
                if task == CONVOLVE:
                    for i in range(top, bottom):
                        for j in range(across):
                            tile = (i - top) * across + j
                            {result}
                            for at in range(0, filters, 64):
                                start = y_parts + tile * filters + at
                                result_tile(start, 4 * y_step, y_step, bias + at, p + at, q + at, u + at, v + at)
"""
# The addresses of the pixels of a tile, above p and q, below u and v; what lies outside the image is spare memory.
_PIXELS = """p = {array} + ((image * result_height + 2 * i) * result_width + 2 * j) * filters
                            u = p + result_width * filters if 2 * i + 1 < result_height else spare
                            q = p + filters if 2 * j + 1 < result_width else spare
                            v = u + filters if u != spare and q != spare else spare"""


def shares_of(filters: int, channels: int) -> int:
    """Return in how many shares of a batch the gradient for a kernel is added up, apart, for any number of threads."""
    return 4 if filters * channels <= 1 << 14 else 2  # the parts of a larger kernel take megabytes


def pieces_of(result: Sizes, images: int, threads: int) -> int:
    """Return in how many pieces to share out each image, so that no thread is idle."""
    return min(-(-((result[0] + 1) // 2) // group_of(result)), -(-threads // images))


def slot_bytes(channels: int, filters: int, result: Sizes) -> int:
    """Return the bytes of scratch memory that a thread needs, for channels and filters in numbers."""
    group, across = group_of(result), (result[1] + 1) // 2
    tiles = -(-group * across // ROWS) * ROWS
    padded = (2 * group + 2) * (2 * across + 2) * channels
    return 4 * (padded + 16 * tiles * (channels + filters) + filters) + 32 * 64


def group_of(result: Sizes) -> int:
    """Return how many rows of tiles make a block."""
    down, across = ((size + 1) // 2 for size in result)
    return min(down, max(1, TILES // across))


@cache
def winograd_loop() -> Callable[..., None] | None:
    """Return the compiled loop over a record; None without numba."""
    fields = "\n    ".join(f"{name} = r[{place}]" for place, name in enumerate(FIELDS))
    numbers = {"rows": ROWS, "fields": fields}
    places = {"result": _PIXELS.format(array="result"), "gradient": _PIXELS.format(array="second")}
    return load_loop(LOOP.format(**numbers, **places), "q", wide=True)
