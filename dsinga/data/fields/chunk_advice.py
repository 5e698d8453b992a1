"""Says where chunks of the data are so large that each is decoded again for many blocks of windows."""

from __future__ import annotations

import math

from dsinga.data.fields.definition import SAMPLER_SHARE
from dsinga.data.fields.window_blocks import WindowBlocks

MOST_DECODED = 4  # times in an epoch, above which it is said


def chunk_texts(blocks: WindowBlocks) -> list[str]:
    """Return a sentence for each variable whose chunks are decoded more than four times in an epoch."""
    extents = {
        axis.name: int(axis.starts[count - 1] - axis.starts[0]) + axis.size
        for axis, count in zip(blocks.axes, blocks.block_counts, strict=True)
    }
    sentences = []
    for reader in {part.name: part.reader for part in (*blocks.layout.inputs, *blocks.layout.targets)}.values():
        chunk = reader.chunk_shape
        if chunk is None:
            continue
        times = math.prod(max(1.0, size / extents[dim]) for dim, size in zip(reader.dims, chunk, strict=True))
        if times > MOST_DECODED:
            block = tuple(min(extents[dim], size) for dim, size in zip(reader.dims, reader.shape, strict=True))
            needed = math.prod(map(max, chunk, block)) * 4 * SAMPLER_SHARE
            sentences.append(
                f"the chunks of {reader.name!r} have {chunk} points, a block of windows {block}: each chunk is "
                f"decoded about {times:.0f} times an epoch; give memory={-(-needed >> 20)} << 20 or more, or write "
                "smaller chunks"
            )
    return sentences
