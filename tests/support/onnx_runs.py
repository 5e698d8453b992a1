"""Runs cases of onnx.backend.test as models of dsinga: which pass, in which way, and with what error."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.onnx_batches import Net, nets_of
from tests.support.onnx_cases import Case

RTOL, ATOL = 1e-3, 1e-7  # those of onnx.backend.test
# Cases whose results are given with four digits, so that they tell nothing of the last place.
FOUR_DIGITS = {"test_averagepool_2d_ceil_last_window_starts_on_pad"}


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    way: str = ""  # how its graph became a net of records, "" where no way passes
    error: float = 0.0  # the greatest, in units of the last place
    fault: str = ""  # why it does not pass
    is_refused: bool = False  # whether the import says so, in a sentence; else the results are wrong


def outcome(case: Case) -> Outcome:
    """Return what becomes of a case: the first way in which it is imported decides."""
    faults = []
    for net in nets_of(case):
        try:
            results = computed(net)
        except UserError as error:
            faults.append(str(error))
            continue
        except Exception as error:  # so that one list has all that is wrong
            return Outcome(fault=f"{net.way}: {type(error).__name__}: {error}")
        found = compared(net, results)
        return replace(found, error=0.0) if case.name in FOUR_DIGITS else found
    return Outcome(fault=faults[0] if faults else "no input is brought by records", is_refused=True)


def computed(net: Net) -> list[np.ndarray]:
    """Return the outputs of the model of a graph for its records. Raises UserError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(net.model, path)
        model = nn.load_onnx(path)
    results = model.predict(net.records if len(net.records) > 1 else net.records[0])
    return list(results) if isinstance(results, (list, tuple)) else [results]


def compared(net: Net, results: list[np.ndarray]) -> Outcome:
    """Return whether results are what they have to be, and the greatest error."""
    errors = []
    for ours, theirs in zip(results, net.results, strict=True):
        if ours.size != theirs.size or len(ours) != len(theirs):
            return Outcome(fault=f"{net.way}: the shape is {ours.shape}, not {theirs.shape}")
        ours, theirs = ours.reshape(theirs.shape).astype(np.float32), theirs.astype(np.float32)
        if not np.allclose(ours, theirs, RTOL, ATOL, equal_nan=True):
            return Outcome(fault=f"{net.way}: wrong by {np.nanmax(np.abs(ours - theirs))}")
        errors.append(last_places(ours, theirs))
    return Outcome(net.way, max(errors))


def last_places(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the greatest error in units of the last place; numbers below the mean size are as large as that."""
    is_finite = np.isfinite(theirs) & np.isfinite(ours)
    ours, theirs = ours[is_finite].astype(np.float64), theirs[is_finite]
    if not theirs.size:
        return 0.0
    sizes = np.maximum(np.abs(theirs), np.abs(theirs).mean())
    return float(np.max(np.abs(ours - theirs) / np.spacing(sizes)))
