"""Saving fitted estimators in a folder of plain files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dsinga.checkpoint.tensors import write_tensors
from dsinga.durable_files import explained_writing, replace_file
from dsinga.errors import UserError
from dsinga.job import redact_job, to_text
from dsinga.monitor import History

ATTRIBUTES = ("n_features_in_", "history_", "_multilabel", "_record_shape", "_target_shape")
SCALINGS = ("_scaling", "_target_scaling")


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Save a fitted estimator in a folder, from which :func:`dsinga.estimators.load` reads it.

    Its net is ``job.conf`` there, its params are ``params.safetensors``, the rest is ``estimator.json``. The state of
    the updater is left out. Raises UserError where the folder exists and is not empty, and where it cannot be written.
    """
    check_is_fitted(estimator, "params_")
    folder = Path(path)
    with explained_writing(folder):
        if folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty; give another folder, or remove it")
    parameters = estimator.get_params(deep=False)
    parameters["net"] = None if estimator.net is None else "job.conf"
    if not isinstance(estimator.random_state, (int, np.integer)):
        parameters["random_state"] = None
    described = {
        "class": type(estimator).__name__,
        "parameters": parameters,
        "attributes": {name: getattr(estimator, name) for name in ATTRIBUTES if hasattr(estimator, name)},
    }
    for name in ("classes_", "feature_names_in_"):
        if hasattr(estimator, name):
            array = getattr(estimator, name)
            described[name] = {
                "dtype": array.dtype.str if array.dtype != object else "object",
                "values": array.tolist(),
            }
    arrays = {f"params/{name}": np.ascontiguousarray(value) for name, value in estimator.params_.items()}
    for name in SCALINGS:
        if getattr(estimator, name, None) is not None:
            offset, scale = getattr(estimator, name)
            arrays |= {f"{name}/offset": np.asarray(offset, np.float64), f"{name}/scale": np.asarray(scale, np.float64)}
    texts = {
        "job.conf": to_text(redact_job(estimator.job_)),
        "estimator.json": json.dumps(described, indent=1, default=_plain),
    }
    with explained_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(folder / "params.safetensors", arrays)
        for name, text in texts.items():
            replace_file(folder / name, text)


def _plain(value: Any) -> Any:
    """Return a history, a number or an array of numpy as json has it. Raises TypeError for other objects."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, History):
        return [*value]
    raise TypeError(f"{value!r} cannot be saved; give the estimator plain values")
