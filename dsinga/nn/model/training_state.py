"""What a model keeps besides its params: the optimizer's state, what fits began with, names of classes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dsinga.api.workspaces import has_checkpoint
from dsinga.base.durable_files import write_file
from dsinga.base.errors import UserError
from dsinga.base.regular_files import read_json
from dsinga.checkpoint.tensors import read_safetensors, write_tensors
from dsinga.data import RecordNames
from dsinga.data.filesystem import is_url

FIRST_SEED = [0]  # of the first fit of models that are made from now on


@dataclass
class TrainingState:
    """What the optimizer has learnt so far, with which the next ``fit`` goes on.

    Attributes:
        steps: how many steps it has done.
        slots: its arrays by param and slot, such as the momentum.
    """

    steps: int = 0
    slots: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def write(self, path: Path, mark: str) -> None:
        """Write the state, if there is one, to a safetensors file that says by ``mark`` what params it is for.

        Its arrays are called "param/slot"; "steps" is the number of steps. Raises OSError.
        """
        if self.steps:
            arrays = {f"{name}/{slot}": array for name, slots in self.slots.items() for slot, array in slots.items()}
            write_tensors(path, {"steps": np.array([self.steps]), **arrays}, {"mark": mark})

    @classmethod
    def read(cls, path: Path) -> TrainingState:
        """Return the state that :meth:`write` wrote, a new one without a file; raise UserError for a damaged file."""
        if not path.is_file():
            return cls()
        arrays = read_safetensors(path)
        steps = arrays.pop("steps", np.zeros(0, np.int64))
        if steps.shape != (1,) or steps.dtype.kind != "i" or steps[0] < 1:
            raise UserError(f"{path} has no number of steps; remove it to begin the optimizer anew")
        slots: dict[str, dict[str, np.ndarray]] = {}
        for name, array in arrays.items():
            param, _, slot = name.rpartition("/")
            slots.setdefault(param, {})[slot] = array
        return cls(int(steps[0]), slots)


class FitBegin(NamedTuple):
    """What a fit begins with: the seed that it has by default, and the steps that the optimizer has done."""

    seed: int = 0
    steps: int = 0


class FitBegins:
    """What the fits of a model have begun with, by their workspaces: a fit that resumes one of them begins so, too."""

    def __init__(self) -> None:
        self._begins: dict[str, FitBegin] = {}

    def note(self, workspace: Any, begin: FitBegin) -> None:
        """Remember what the fit in a workspace has begun with."""
        if workspace is not None:
            self._begins[_place(workspace)] = begin

    def resumed(self, workspace: Any, resume: Any, begin: FitBegin) -> FitBegin:
        """Return what a fit begins with: ``begin``, unless it resumes a fit of this model."""
        if isinstance(resume, (str, os.PathLike)) and resume != "auto":
            workspace = Path(resume).expanduser().absolute().parent.parent
        if workspace is None or not resume or _place(workspace) not in self._begins:
            return begin
        is_anew = resume == "auto" and not has_checkpoint(os.fspath(workspace))
        return begin if is_anew else self._begins[_place(workspace)]


def _place(workspace: str | os.PathLike[str]) -> str:
    text = os.fspath(workspace)
    return text if is_url(text) else str(Path(text).absolute())


MARK = "$mark"  # a key: no input is called so


def write_names(names: Mapping[str, RecordNames], path: Path, mark: str) -> None:
    """Write the names of each input, if there are any, as JSON that says by ``mark`` what params they are for.

    Raises OSError.
    """
    if known := {name: each._asdict() for name, each in names.items() if any(each)}:
        write_file(path, json.dumps({MARK: mark, **known}, indent=1, ensure_ascii=False) + "\n")


def read_names(path: Path) -> dict[str, RecordNames]:
    """Return the names that :func:`write_names` wrote, none without a file; raise UserError for a damaged file."""
    if not path.is_file():
        return {}
    try:
        described = read_json(path)
        described.pop(MARK, None)
        for each in described.values():
            if columns := each.pop("columns", ()):  # as earlier versions wrote them
                each["order"] = [["row"], ["column", *columns]]
        names = {name: RecordNames(**{key: _names(each[key]) for key in each}) for name, each in described.items()}
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({str(error)[:100]}); save the model again") from error
    return names


def _names(value: Any) -> Any:
    """Return names in nested lists as tuples. Raises TypeError for anything else."""
    if not isinstance(value, (str, list)):
        raise TypeError("a name is no text")
    return value if isinstance(value, str) else tuple(map(_names, value))
