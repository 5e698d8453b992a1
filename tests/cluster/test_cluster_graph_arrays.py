"""Arrays between the tasks of graph grain: aligned, whatever the frames of Dask are, and in the same layout."""

from __future__ import annotations

import numpy as np
import pytest

from dsinga.cluster.graph_grain.tasks import _restore
from dsinga.transport.message import flatten


@pytest.mark.parametrize("layout", ["rows", "channels last"])
def test_a_received_array_is_aligned(layout: str) -> None:
    array = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    if layout == "channels last":
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    layouts, (buffer,) = flatten([array])
    frame = np.zeros(buffer.nbytes + 3, np.uint8)
    frame[3:] = np.frombuffer(buffer, np.uint8)
    received = _restore(layouts, [frame[3:].data])
    assert received.flags.aligned
    assert received.strides == array.strides
    np.testing.assert_array_equal(received, array)
