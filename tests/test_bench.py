"""Measuring an iteration without data: records and texts are made up."""

from __future__ import annotations

import pytest

from dsinga.bench import measure
from dsinga.cluster import connect
from dsinga.models import char_rnn


@pytest.mark.parametrize("cell", ["kGRU", "kLSTM"])
def test_a_char_rnn_needs_no_text(cell: str):
    job = char_rnn(7, hidden=8, cell=cell, steps=5, batchsize=4)
    with connect(workers=1) as client:
        figures = measure(job, client, steps=3, synthetic=True, data_root=None)
    assert figures["ms_per_iteration"] > 0
    assert figures["samples_per_second"] == pytest.approx(4e3 / figures["ms_per_iteration"])
