"""Temperatures of ERA5: a net trained on four leads forecasts two days ahead better than one trained on one."""

from pathlib import Path

import pytest

from tools.benchmarks import accuracy_leads
from tools.benchmarks.accuracy_leads import era5, errors, train

pytestmark = pytest.mark.data


def test_four_leads_in_training_keep_forecasts_of_eight_stable(
    real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy_leads, "RAW", real_data / "climate")
    case = era5()._replace(steps=200)
    first, several = (errors(case, train(case, leads)) for leads in (1, 4))
    assert all(of_several < of_one for (of_several, _), (of_one, _) in zip(several[3:], first[3:], strict=True))
    assert 2 * several[7][0] < first[7][0]
    assert several[0][0] < 1.1 * first[0][0] < several[0][1]  # the next step is forecast as well, persistence is worse
