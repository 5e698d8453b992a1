"""The packing of sequences of different lengths."""

import numpy as np

from dsinga.ops.packing import pack_sequences


def test_steps_after_the_end_of_a_row_are_not_computed():
    packing = pack_sequences(4, 10, np.array([2, 0, 7, 2]), reverse=False)
    assert packing.counts == (3, 3, 1, 1, 1, 1, 1)
    assert packing.order.tolist() == [2, 0, 3, 1]
    assert packing.places.tolist() == [20, 0, 30, 21, 1, 31, 22, 23, 24, 25, 26]
    backwards = pack_sequences(4, 10, np.array([2, 0, 7, 2]), reverse=True)
    assert backwards.places.tolist() == [26, 1, 31, 25, 0, 30, 24, 23, 22, 21, 20]
