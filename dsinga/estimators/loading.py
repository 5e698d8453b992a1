"""Loading saved estimators: nothing is unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.checkpoint.tensors import read_safetensors
from dsinga.errors import UserError
from dsinga.estimators.classifier import Classifier
from dsinga.estimators.records import Scaling
from dsinga.estimators.regressor import Regressor
from dsinga.estimators.saving import SCALINGS
from dsinga.estimators.transformer import Transformer
from dsinga.job import Job
from dsinga.job import load as load_job
from dsinga.monitor import History
from dsinga.regular_files import read_regular_text

KINDS: dict[str, Any] = {cls.__name__: cls for cls in (Classifier, Regressor, Transformer)}


def load(path: str | os.PathLike[str]) -> Any:
    """Return the fitted estimator that was saved in a folder. Raises UserError where there is none or it is damaged."""
    folder = Path(path)
    for name in ("estimator.json", "params.safetensors", "job.conf"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} is no saved estimator: it lacks {name}")
    arrays, job = read_safetensors(folder / "params.safetensors"), load_job(folder / "job.conf")
    try:
        described = json.loads(read_regular_text(folder / "estimator.json"))
        return _restored(described, arrays, job)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise UserError(f"{folder} is a damaged estimator ({reason}); save it again, or fit it anew") from error


def _restored(described: Any, arrays: Mapping[str, np.ndarray], job: Job) -> Any:
    """Return the estimator of a description, its arrays and its job. What is raised for damaged ones is not uniform."""
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in described["parameters"].items()}
    if parameters["net"] is not None:
        parameters["net"] = job
    estimator = KINDS[described["class"]](**parameters)
    state = dict(described["attributes"])
    state["history_"] = History(state["history_"])
    for name in ("_record_shape", "_target_shape"):
        if name in state:
            state[name] = tuple(state[name])
    for name in ("classes_", "feature_names_in_"):
        if name in described:
            state[name] = np.array(described[name]["values"], described[name]["dtype"])
    params = {name.removeprefix("params/"): array for name, array in arrays.items() if name.startswith("params/")}
    for name in SCALINGS:
        has_scaling = f"{name}/offset" in arrays
        state[name] = Scaling(*(arrays[f"{name}/{part}"] for part in Scaling._fields)) if has_scaling else None
    estimator.__setstate__(vars(estimator) | state | {"job_": job, "params_": params, "_updater": None})
    return estimator
