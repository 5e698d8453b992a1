"""Saves fitted estimators in a folder of plain files, and loads them without unpickling."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dsinga.api.jobs_with_data import roots
from dsinga.api.trained import JOB, OPTIMIZER, PARAMS, Trained
from dsinga.base.arguments import with_types
from dsinga.base.arrays import refuse_nan
from dsinga.base.durable_files import (
    explained_writing,
    holds_files,
    local_folder,
    read_saved,
    replaced_files,
    write_file,
)
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.checkpoint.tensor_files import check_marks, read_safetensors, write_tensors
from dsinga.estimators.scaling import Scaling
from dsinga.estimators.tables import definition_of
from dsinga.job import Job, Phase, redact_job, to_text
from dsinga.job import load as load_job
from dsinga.monitor import History
from dsinga.reading.checked_job import check_job

T = TypeVar("T")

DESCRIBED = "estimator.json"
FILES = DESCRIBED, PARAMS, JOB, OPTIMIZER
ATTRIBUTES = (
    "n_features_in_", "history_", "best_epoch_", "temperature_", "_multilabel", "_record_shape", "_target_shape",
    "_order", "_label_order", "_target_names", "_is_small",
)  # fmt: skip
ARRAYS = "classes_", "feature_names_in_"
SCALINGS = ("_scaling", "_target_scaling")
_KINDS: dict[str, type[Any]] = {}  # the classes of estimators, by name


def loadable(cls: type[T]) -> type[T]:
    """Decorate a class of estimators so that :func:`load` can read it."""
    _KINDS[cls.__name__] = cls
    return cls


def save(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator to a folder, for :func:`dsinga.estimators.load`.

    The net is in ``job.conf``, its params in ``params.safetensors`` and the updater's state in
    ``optimizer.safetensors``; the rest is in ``estimator.json``. Raises UserError if the folder is not empty or cannot
    be written.
    """
    check_is_fitted(estimator, "params_")
    folder = local_folder(path)
    with explained_writing(folder):
        if folder.exists() and holds_files(folder, FILES):
            raise UserError(f"{folder} is not empty; give another folder, or remove it")
    parameters = estimator.get_params(deep=False) | {"validation_split": None}  # an object of scikit-learn
    parameters["net"] = None if estimator.net is None else JOB
    if isinstance(parameters.get("class_weight"), Mapping):  # JSON has text keys only; classes may be other values
        parameters["class_weight"] = {"pairs": [*map(list, parameters["class_weight"].items())]}
    if not isinstance(estimator.random_state, (int, np.integer)):
        parameters["random_state"] = None
    described = {
        "class": type(estimator).__name__,
        "parameters": parameters,
        "has_columns": estimator.columns_ is not None,  # the job's input layer has them
        "attributes": {name: getattr(estimator, name) for name in ATTRIBUTES if hasattr(estimator, name)},
    }
    for name in ARRAYS:
        if (array := getattr(estimator, name, None)) is not None:
            dtype = "object" if array.dtype == object else array.dtype.str
            described[name] = {"dtype": dtype, "values": array.tolist()}
    arrays = {f"params/{name}": np.ascontiguousarray(value) for name, value in estimator.params_.items()}
    for name in SCALINGS:
        if getattr(estimator, name, None) is not None:
            offset, scale = getattr(estimator, name)
            arrays |= {f"{name}/offset": np.asarray(offset, np.float64), f"{name}/scale": np.asarray(scale, np.float64)}
    job = to_text(redact_job(estimator.job_))
    with explained_writing(folder), replaced_files(folder, FILES) as files:
        mark = write_tensors(files / PARAMS, arrays).mark()
        write_file(files / JOB, f"# {mark}\n{job}")
        estimator._trained.write_state(files, mark)
        write_file(files / DESCRIBED, json.dumps({"mark": mark, **described}, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    """Convert a history, a numpy number or an array for JSON."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, History):
        return [*value]
    raise TypeError(f"{value!r} cannot be saved; give the estimator plain values")


@with_types
@public
def load(path: str | os.PathLike[str]) -> Any:
    """Read the fitted estimator that ``save`` wrote to a folder. Raises UserError if it is missing or damaged."""
    folder = local_folder(path)
    return read_saved(folder, FILES, lambda place: _read(folder, place))


def _read(folder: Path, place: Callable[[str], Path]) -> Any:
    for name in (DESCRIBED, PARAMS, JOB):
        if not place(name).is_file():
            of_model = f"; if a model saved it, call dsinga.nn.load_model({str(folder)!r})" if name == DESCRIBED else ""
            raise UserError(f"{folder} is no saved estimator: it lacks {name}{of_model}")
    arrays, job = read_safetensors(place(PARAMS)), load_job(place(JOB))
    check_marks(place, PARAMS, FILES)
    refuse_nan({name: array for name, array in arrays.items() if name.startswith("params/")}, str(folder / PARAMS))
    try:
        described = read_json(place(DESCRIBED))
        return _restored(described, arrays, job, Trained().with_state_of(place))
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise UserError(f"{folder} is a damaged estimator ({reason}); save it again, or fit it anew") from error


def _restored(described: Any, arrays: Mapping[str, np.ndarray], job: Job, trained: Trained) -> Any:
    """Make the estimator from the contents of its files; damaged files raise various errors."""
    parameters = {name: tuple(v) if isinstance(v, list) else v for name, v in described["parameters"].items()}
    if parameters["net"] is not None:
        parameters["net"] = job
    by_class: Any = parameters.get("class_weight")
    if isinstance(by_class, dict):
        parameters["class_weight"] = dict(by_class["pairs"])
    check_job(job, roots(job, None), [Phase.kTrain], needs_paths=False)
    estimator = _KINDS[described["class"]](**parameters)
    state = {"best_epoch_": None, **described["attributes"]}
    state["history_"] = History(state["history_"])
    for name in ("_record_shape", "_target_shape"):
        if name in state:
            state[name] = tuple(state[name])
    for name in ARRAYS:
        if name in described:
            state[name] = np.array(described[name]["values"], described[name]["dtype"])
    classes = state.get("classes_", ["any"])
    if np.ndim(classes) != 1 or not len(classes) or not np.array_equal(np.unique(classes), classes):
        raise ValueError("its classes are no sorted list of different ones")
    params = {name.removeprefix("params/"): array for name, array in arrays.items() if name.startswith("params/")}
    for name in SCALINGS:
        has_scaling = f"{name}/offset" in arrays
        state[name] = Scaling(*(arrays[f"{name}/{part}"] for part in Scaling._fields)) if has_scaling else None
    state["columns_"] = definition_of(job) if described.get("has_columns") else None
    vars(estimator).update(state, _trained=replace(trained, params=params, is_complete=True))
    estimator.job_ = estimator._marked(job)  # older versions saved it without the mark
    return estimator
