"""A Dask worker trains from a store larger than its memory limit, predicts and writes, within the limit."""

from pathlib import Path

import pytest

from tools.benchmarks.field_memory import measure


@pytest.mark.slow
@pytest.mark.process
def test_a_worker_stays_within_its_limit_with_a_larger_store(tmp_path: Path) -> None:
    """Dask's nanny would start a process that needs more again, with another number."""
    figures = measure(tmp_path, 448 << 20, times=1.5, memory=32 << 20)
    assert figures.right
    assert not figures.restarts
    assert figures.before < figures.written < figures.limit < figures.store
    assert figures.trained < figures.limit
    # Beside the fields there are modules, batches that are read ahead, the block that is being decoded, and results.
    assert max(figures.trained, figures.written) < figures.before + (32 << 20) + (160 << 20)
