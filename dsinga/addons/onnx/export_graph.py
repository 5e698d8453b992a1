"""Collects the nodes and initialisers of an ONNX graph while a net's layers are written in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from dsinga.addons.onnx.files import onnx_package

FIRST, LAST = -(1 << 63), (1 << 63) - 1  # in Slice: from the beginning, to the end
FLOAT, INT32, INT64, STRING, BOOL, DOUBLE = 1, 6, 7, 8, 9, 11  # ONNX's numbers of types


class Refused(Exception):
    """Raised for a layer that cannot be exported; the text is the reason."""


class GraphWriter:
    """An ONNX graph under construction: its nodes, initialisers and value names.

    Attributes:
        records: the stored shapes of records, by input, if augmentations change them.
        weights: the initialisers by name; params keep their names.
        integers: the names of int64 values; others are float32.
        types: ONNX's type numbers of inputs and outputs of other types, by name.
        encoded: the values of input layers with records made of other inputs, by layer.
        joined: the names of initialisers made of several params, or of a reshaped one, by the params.
    """

    def __init__(self, params: Mapping[str, np.ndarray], records: Mapping[str, tuple[int, ...]] = MappingProxyType({})):
        self.params, self.records = params, records
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.integers: set[str] = set()
        self.types: dict[str, int] = {}
        self.encoded: dict[str, str] = {}
        self.joined: dict[tuple[str, ...], str] = {}
        self._values, self._nodes = set(params), set[str]()  # names in use
        self._constants: dict[Any, str] = {}

    def unique(self, name: str) -> str:
        """Return ``name``, or a similar name that no value or param has."""
        return _free(name, self._values)

    def node(self, operator: str, inputs: Sequence[Any], name: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node and return its outputs' names; numbers and arrays as inputs become constants."""
        name = _free(name, self._nodes)
        values = [self.unique(name if outputs == 1 else f"{name}/{number}") for number in range(outputs)]
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(onnx_package().helper.make_node(operator, names, values, name=name, **attributes))
        return values

    def constant(self, value: Any) -> str:
        """Add a constant initialiser: arrays keep their dtype, whole numbers are int64, others float32."""
        array = np.asarray(value)
        if not isinstance(value, np.ndarray):
            array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        key = array.dtype.str, array.shape, tuple(array.flat) if array.dtype == object else array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.unique(f"constant_{len(self._constants)}")
            self.weights[self._constants[key]] = array
        return self._constants[key]

    def weight(self, name: str, array: np.ndarray) -> str:
        """Add an initialiser for a param; several layers may share one."""
        known = self.weights.setdefault(name, array)
        if known is array or np.array_equal(known, array, equal_nan=True):
            return name
        return self.weight(f"{name}/{'x'.join(map(str, array.shape))}", array)

    def takes(self, value: str) -> bool:
        """Whether some node reads the value with this name."""
        return any(value in node.input for node in self.nodes)

    def rename(self, value: str, name: str, first: int = 0) -> str:
        """Rename a value in the nodes after the first ``first``; return its new name, similar to ``name``."""
        self._values.discard(value)
        name = self.unique(name)
        for node in self.nodes[first:]:
            for names in (node.input, node.output):
                names[:] = [name if each == value else each for each in names]
        if value in self.integers:
            self.integers.add(name)
        return name

    def copy(self, value: str, layer: str, order: Sequence[int] = ()) -> str:
        """Add a copy of a value, with axes in ``order`` if given, named like its layer if possible."""
        if order:
            (result,) = self.node("Transpose", [value], f"{layer}/transpose", perm=order)
        else:
            (result,) = self.node("Identity", [value], f"{layer}/identity")
        if value in self.integers:
            self.integers.add(result)
        return self.rename(result, layer)

    def name_layer(self, name: str, value: Any, first: int) -> Any:
        """Name the layer's last node with a param, or else its last node, after the layer.

        ``first`` is the layer's first node; returns ``value``, renamed too unless it is passed on or has parts.
        """
        made = self.nodes[first:]
        if not any(value in node.output or value == list(node.output) for node in made):
            return value
        constants = set(self._constants.values())
        takes_param = [node for node in made if (self.weights.keys() - constants).intersection(node.input)]
        node = (takes_param or made)[-1]
        node.name = _free(name, self._nodes)
        return self.rename(value, name, first) if isinstance(value, str) else value

    def keep(self, values: Sequence[str]) -> None:
        """Remove all nodes and initialisers that these values do not need."""
        needed, kept = set(values), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.weights = {name: array for name, array in self.weights.items() if name in needed}


def _free(name: str, taken: set[str]) -> str:
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name}_{number}"
    taken.add(free)
    return free


class ExportedLayer:
    """A layer to export, with its params and the values of its sources.

    ``lengths`` has each source's number of valid steps, (B,) int64, None if all are valid; ``ends`` is the number for
    the layer's feature. ``rank`` is the first source's number of axes. With ``steps`` the layer, defined for one step,
    computes each step of sequences (B, T, ...).
    """

    def __init__(
        self, graph: GraphWriter, layer: Any, params: Sequence[str], sources: list[str],
        lengths: list[str | None], rank: int = 0,
    ):  # fmt: skip
        self.graph, self.layer, self.params, self.sources, self.lengths = graph, layer, params, sources, lengths
        self.rank = rank
        self.ends = next((value for value in lengths if value is not None), None)

    @property
    def settings(self) -> Any:
        """The settings of the layer."""
        return self.layer.settings

    @property
    def steps(self) -> bool:
        """Whether the sources have an axis of steps that the layer lacks."""
        return self.rank > len(self.layer.source_shapes[0])

    @property
    def labels(self) -> str | None:
        """The number of valid steps, from the source that gives labels; None if all steps are valid."""
        return None if self.layer.labels.source is None else self.lengths[self.layer.labels.source]

    def add(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Add the node "LAYER/operator", and return its output."""
        return self.graph.node(operator, inputs, f"{self.layer.name}/{operator.lower()}", **attributes)[0]

    def parts(self, operator: str, *inputs: Any, outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs, and return them."""
        return self.graph.node(operator, inputs, f"{self.layer.name}/{operator.lower()}", outputs, **attributes)

    def chain(self, x: Any, *nodes: tuple[Any, ...]) -> str:
        """Add nodes (operator, further inputs ..., attributes), each applied to the result before, the first to x."""
        for operator, *inputs in nodes:
            attributes = inputs.pop() if inputs and isinstance(inputs[-1], dict) else {}
            x = self.add(operator, x, *inputs, **attributes)
        return x

    def param(self, role: int, shape: Sequence[int] | None = None) -> str:
        """Return the initialiser of the layer's param with this number, reshaped to ``shape``."""
        name = self.params[role]
        array = self.graph.params[name]
        return self.graph.weight(name, array if shape is None else array.reshape(shape))

    def joined(self, name: str, roles: Sequence[int], join: Callable[[list[np.ndarray]], np.ndarray]) -> str:
        """Add an initialiser "LAYER_NAME" computed from params, reused for the same params."""
        params = tuple(self.params[role] for role in roles)
        if params not in self.graph.joined:
            array = np.ascontiguousarray(join([self.graph.params[param] for param in params]))
            self.graph.joined[params] = self.graph.weight(f"{self.layer.name}_{name}", array)
        return self.graph.joined[params]

    def floats(self, source: int = 0) -> str:
        """Convert a source's feature to float32."""
        value = self.sources[source]
        return self.add("Cast", value, to=FLOAT) if value in self.graph.integers else value

    def all_floats(self) -> list[Any]:
        """Convert all sources' features to float32."""
        return [self.floats(source) for source in range(len(self.sources))]

    def codes(self, source: int = 0) -> str:
        """Convert a source's feature to int64."""
        value = self.sources[source]
        return value if value in self.graph.integers else self.as_integers(self.add("Cast", value, to=INT64))

    def as_integers(self, value: str) -> str:
        """Mark a value as int64, and return it."""
        self.graph.integers.add(value)
        return value

    def size(self, x: str, axis: int = 1) -> str:
        """Add nodes for the size of an axis of x, as a vector."""
        return self.add("Shape", x, start=axis, end=axis + 1)

    def places(self, x: str) -> str:
        """Add nodes for the step numbers of x (B, T, ...), (T,) int64."""
        return self.add("Range", 0, self.add("Squeeze", self.size(x), [0]), 1)

    def counted(self, x: str, lengths: str) -> str:
        """Add nodes for a mask of the valid steps of sequences x (B, T, ...), (B, T) bool."""
        return self.add("Less", self.places(x), self.add("Unsqueeze", lengths, [1]))

    def masked(self, x: str, lengths: str | None, fill: float = 0.0) -> str:
        """Add nodes that fill sequences (B, T, n) after their ends with ``fill``."""
        if lengths is None:
            return x
        return self.add("Where", self.add("Unsqueeze", self.counted(x, lengths), [2]), x, fill)


WriteLayer = Callable[[ExportedLayer], Any]  # returns the name of the feature's value, or a list with one for each part
