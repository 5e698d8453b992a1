"""Warns of windows and points left out, uneven steps, and chunks that are decoded often."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.addons.fields.records.axis import GAP_REMEDY, Axis
from dsinga.addons.fields.records.coordinates import date_index, has_frequency, is_date_index, step_lengths
from dsinga.addons.fields.records.definition import SAMPLER_SHARE
from dsinga.addons.fields.records.layout import Layout
from dsinga.addons.fields.records.longitudes import LONGITUDES
from dsinga.addons.fields.records.window_blocks import WindowBlocks
from dsinga.data.array_kinds import label_text

MOST_DECODED = 4  # times that a chunk may be decoded in an epoch without a warning


def left_out_texts(blocks: WindowBlocks, kept: np.ndarray | None, most_nan: float | None) -> list[str]:
    """Describe windows left out, a sentence per dimension with points left out, and one for much NaN."""
    axes, labels, sentences = blocks.layout.axes, blocks.layout.coordinates, []
    for name, axis in axes.items():
        for points, which, place in zip(axis.left_out(), ("first", "last"), (0, -1), strict=True):
            if points:
                ends = (0, points - 1) if place == 0 else (axis.length - points, axis.length - 1)
                words = " to ".join(dict.fromkeys(blocks.layout.label(name, end) for end in ends))
                sentences.append(
                    f"the {which} {points} of {axis.length} points of {name!r} ({words}) fill no window: windows have "
                    f"{axis.input_size} points, a new one every {axis.stride}"
                )
    sentences += gap_texts(axes, labels)
    if kept is not None and len(kept) < len(blocks):
        count = len(blocks) - len(kept)
        sentences.append(f"{count} of {len(blocks)} windows have more than max_nan={most_nan:g} of NaN")
    return sentences


def advice_texts(blocks: WindowBlocks, memory: int) -> list[str]:
    """Advise about chunks that are decoded often with ``memory``, uneven steps of time, and incomplete circles."""
    axes, labels = blocks.layout.axes, blocks.layout.coordinates
    return [*_chunk_texts(blocks, memory), *_uneven_texts(axes, labels), *_period_texts(axes, labels)]


def copying_texts(layout: Layout) -> list[str]:
    """Warn, in a sentence, of a target that is an input of the same time, which a net can copy."""
    dates = [name for name, labels in layout.coordinates.items() if is_date_index(date_index(labels))]
    targets = [part.name for part in layout.targets if part.name in {each.name for each in layout.inputs}]
    if not targets or not dates or any(axis.lead for axis in layout.axes.values()):
        return []
    return [
        f"the target {targets[0]!r} is also an input of the same time, so a net can copy it; to predict a later time "
        f"give lead={{{dates[0]!r}: 1}}"
    ]


def gap_texts(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    """Describe windows left out because they cross a gap, a sentence per dimension of time."""
    sentences = []
    for name, axis in axes.items():
        if axis.all_starts is not None:
            count = len(axis.all_starts) - len(axis.starts)
            index = date_index(labels[name])
            steps, unit = step_lengths(index), " h" if is_date_index(index) else ""
            place = int(axis.gaps[np.argmax(steps[axis.gaps])])
            sentences.append(
                f"{count} of {len(axis.all_starts)} windows along {name!r} reach over a gap of time and are left out "
                f"(the longest, {steps[place]:g}{unit}, follows {label_text(labels[name].values[place])}){GAP_REMEDY}"
            )
    return sentences


def _uneven_texts(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    """Warn of uneven steps in windows, a sentence per dimension of dates.

    Months count as equal steps: the longest step must exceed 1.5 times the shortest.
    """
    sentences = []
    for name, axis in axes.items():
        if name not in labels or (axis.input_size == 1 and not axis.lead):
            continue
        index = date_index(labels[name])
        if not is_date_index(index):
            continue
        hours = step_lengths(index)
        hours[axis.gaps] = np.nan
        if np.isfinite(hours).sum() > 1 and np.nanmax(hours) > 1.5 * np.nanmin(hours) and not has_frequency(index):
            place = int(np.nanargmax(hours))
            sentences.append(
                f"points of {name!r} lie {np.nanmin(hours):g} to {np.nanmax(hours):g} h apart (the longest after "
                f"{label_text(labels[name].values[place])}), and windows count points; where that matters, fill the "
                "gaps: ds.resample or ds.reindex"
            )
    return sentences


def _period_texts(axes: Mapping[str, Axis], labels: Mapping[str, Any]) -> list[str]:
    sentences = []
    for name, axis in axes.items():
        is_longitude = name in labels and str(labels[name].attrs.get("units", "")).startswith("degree")
        if axis.edge != "periodic" or not (is_longitude or name in labels and name in LONGITUDES) or axis.length < 2:
            continue
        first, last = float(labels[name].values[0]), float(labels[name].values[-1])
        step = abs(last - first) / (axis.length - 1)
        if abs(step * axis.length - 360) > step / 2:
            sentences.append(
                f"{name!r} is periodic, but its {axis.length} points from {first:g} to {last:g} with "
                f"a step of {step:g} are not once round 360 degrees; leave out a point that is there twice, or give "
                "other edges to a part of a circle"
            )
    return sentences


def _chunk_texts(blocks: WindowBlocks, memory: int) -> list[str]:
    extents = {
        axis.name: int(axis.starts[count - 1] - axis.starts[0]) + axis.size
        for axis, count in zip(blocks.axes, blocks.block_counts, strict=True)
    }
    sentences = []
    for part in {part.name: part for part in (*blocks.layout.inputs, *blocks.layout.targets)}.values():
        reader, chunk = part.reader, part.reader.chunk_shape
        if chunk is None or (blocks.has_steps(part) and blocks.all_bytes <= memory):
            continue
        axis = blocks.step_axis if blocks.has_steps(part) else None
        whole = axis.name if axis and blocks.longest_chunk(part) <= blocks.longest_run else None
        sizes = [(dim, size) for dim, size in zip(reader.dims, chunk, strict=True) if dim != whole]
        times = math.prod(max(1.0, size / extents[dim]) for dim, size in sizes)
        if times > MOST_DECODED:
            block = tuple(min(extents[dim], size) for dim, size in zip(reader.dims, reader.shape, strict=True))
            needed = math.prod(map(max, chunk, block)) * 4 * SAMPLER_SHARE
            sentences.append(
                f"the chunks of {reader.name!r} have {chunk} points, a block of windows {block}: each chunk is "
                f"decoded about {times:.0f} times an epoch; give memory={-(-needed >> 20)} << 20 or more, or write "
                "smaller chunks"
            )
    return sentences
