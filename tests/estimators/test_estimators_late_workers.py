"""Estimators wait for Dask workers that come late."""

from pathlib import Path
from typing import Any

import dask.array as da
import pytest

from dsinga.estimators import Classifier
from tests.support.late_workers import X, Y, check_wait


@pytest.mark.parametrize("data", [(X, Y), (da.from_array(X, 20), da.from_array(Y, 20))], ids=["numpy", "dask"])
def test_a_classifier_waits_for_late_workers(data: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    check_wait(1, lambda _, client: Classifier(epochs=1).fit(*data, client=client), tmp_path, monkeypatch)
