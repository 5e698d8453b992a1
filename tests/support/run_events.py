"""Events of runs as the dashboard reads them."""

from typing import Any


def begin(run: str, **fields: Any) -> dict[str, Any]:
    return {"event": "begin", "run": run, "job": "mlp", "client": "c", "step": 0, "train_steps": 90, **fields}


def round_of(run: str, **fields: Any) -> dict[str, Any]:
    return {"event": "round", "run": run, "job": "mlp", **fields}


def end(run: str, **fields: Any) -> dict[str, Any]:
    return {"event": "end", "run": run, "job": "mlp", "step": 90, "state": "done", **fields}


GROUP = {
    "group": 0,
    "steps": 10,
    "compute": [1.0, 2.0],
    "exchange": [0.5, 0.25],
    "data": [0.5, 0.25],
    "crossing": [100, 50],
    "within": [10, 0],
}
