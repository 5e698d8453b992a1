"""The summary of a store's contents, for ``dsinga data info``."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.data.store import RecordStore
from dsinga.data.store_format import LABEL_ROWS

SAMPLED_CHUNKS = 4


def describe(store: RecordStore) -> dict[str, Any]:
    """Return a summary of a store: counts, shapes, bytes, labels and the range of values.

    Keys: ``location``, ``records``, ``shape``, ``dtype``, ``chunk_rows``, ``chunks``, ``raw_bytes``, ``stored_bytes``,
    ``labels`` (number of records, or of steps of sequences, by label or class name; None without labels),
    ``vocabulary`` (its length), ``sample`` (``rows`` and the ``min``, ``max``, ``mean`` of their values, from up to 4
    chunks spread over the store).
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
        labels = labels[labels != -1] if store.label_shape else labels  # -1 pads a sequence after its end
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            counts[int(label)] = counts.get(int(label), 0) + int(count)
    names = dict(enumerate(store.classes))
    return {names.get(label, str(label)): counts[label] for label in sorted(counts)}


def _sample(store: RecordStore, chunks: int) -> dict[str, float]:
    indices = np.unique(np.linspace(0, chunks - 1, SAMPLED_CHUNKS).round().astype(int))
    rows, low, high, total = 0, np.inf, -np.inf, 0.0
    for index in indices:
        data, _ = store.read(np.arange(index * store.chunk, min((index + 1) * store.chunk, len(store))))
        rows += len(data)
        low, high = min(low, float(data.min())), max(high, float(data.max()))
        total += float(data.mean(dtype=np.float64)) * len(data)
    return {"rows": rows, "min": low, "max": high, "mean": total / rows}
