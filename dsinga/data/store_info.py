"""What is in a store, for ``dsinga data info``."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.data.store import RecordStore
from dsinga.data.store_format import LABEL_ROWS

SAMPLED_CHUNKS = 4


def describe(store: RecordStore) -> dict[str, Any]:
    """Return the facts about a store: counts, shapes, bytes, labels, range of values.

    Keys: ``location``, ``records``, ``shape``, ``dtype``, ``chunk_rows``, ``chunks``, ``raw_bytes``, ``stored_bytes``,
    ``labels`` (label or its class name -> records, or steps of sequences; None where there are no labels),
    ``vocabulary`` (how many codes have a name), ``sample`` (``rows`` and the ``min``, ``max``, ``mean`` of their
    values; up to 4 chunks spread over the store are read).
    """
    chunks = -(-len(store) // store.chunk)
    return {
        "location": store.location,
        "records": len(store),
        "shape": store.shape,
        "dtype": store.dtype.name,
        "chunk_rows": store.chunk,
        "chunks": chunks,
        "raw_bytes": store.raw_bytes,
        "stored_bytes": store.stored_bytes,
        "labels": _histogram(store),
        "vocabulary": len(store.vocabulary),
        "sample": _sample(store, chunks),
    }


def _histogram(store: RecordStore) -> dict[str, int] | None:
    counts: dict[int, int] = {}
    for start in range(0, len(store), LABEL_ROWS):
        labels = store.read_labels(np.arange(start, min(start + LABEL_ROWS, len(store))))
        if labels is None:
            return None
        labels = labels[labels != -1] if store.label_shape else labels  # what follows the end of a sequence
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            counts[int(label)] = counts.get(int(label), 0) + int(count)
    names = dict(enumerate(store.classes))
    return {names.get(label, str(label)): counts[label] for label in sorted(counts)}


def _sample(store: RecordStore, chunks: int) -> dict[str, float]:
    chosen = np.unique(np.linspace(0, chunks - 1, SAMPLED_CHUNKS).round().astype(int))
    rows, low, high, total = 0, np.inf, -np.inf, 0.0
    for index in chosen:
        data, _ = store.read(np.arange(index * store.chunk, min((index + 1) * store.chunk, len(store))))
        rows += len(data)
        low, high = min(low, float(data.min())), max(high, float(data.max()))
        total += float(data.mean(dtype=np.float64)) * len(data)
    return {"rows": rows, "min": low, "max": high, "mean": total / rows}
