"""The node cases of onnx.backend.test whose numbers are float32, by operator."""

import functools
import importlib
import pkgutil
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

PACKAGE = "onnx.backend.test.case.node"
# Making these cases takes seconds: their references go through each window of large volumes.
LONG = ("AveragePool", "MaxPool")
BESIDE_FLOAT32 = {"int64", "int32", "bool"}


@dataclass(frozen=True)
class Case:
    """A graph of one node, or of the nodes that its operator is short for, with its inputs and what they give."""

    name: str
    operator: str  # also where the graph has the nodes that spell it out
    positions: tuple[int, ...]  # of each input of the graph: which input of the operator it is
    model: Any  # an onnx.ModelProto
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]  # what its outputs have to be

    @property
    def is_spelled_out(self) -> bool:
        """Whether the graph has the nodes that its operator is short for."""
        return "_expanded" in self.name


@functools.cache
def modules() -> dict[str, str]:
    """Return the modules of node cases by the small letters of their operator."""
    package = importlib.import_module(PACKAGE)
    return {name.replace("_", ""): name for _, name, is_package in pkgutil.iter_modules(package.__path__)}


@functools.cache
def cases_of(operator: str) -> tuple[Case, ...]:
    """Return the float32 cases of an operator."""
    package = importlib.import_module(PACKAGE)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        importlib.import_module(f"{PACKAGE}.{modules()[operator.lower()]}")
    known = {case.name: case for case in package._NodeTestCases}
    result = []
    for case in known.values():
        whole = known[case.name.partition("_expanded")[0]].model.graph.node[0]
        inputs, outputs = case.data_sets[0]
        if whole.op_type != operator or whole.domain or not is_float32((*inputs, *outputs)):
            continue
        positions = tuple(list(whole.input).index(info.name) for info in case.model.graph.input)
        arrays = [tuple(np.asarray(x) for x in part) for part in (inputs, outputs)]
        result.append(Case(case.name, operator, positions, case.model, *arrays))
    return tuple(result)


def is_float32(arrays: tuple[Any, ...]) -> bool:
    """Return whether arrays are of float32 numbers, with codes and truth values beside them at most."""
    if not all(isinstance(x, (np.ndarray, np.generic)) for x in arrays):
        return False
    dtypes = {x.dtype.name for x in arrays}
    return "float32" in dtypes and dtypes <= {"float32", *BESIDE_FLOAT32}
